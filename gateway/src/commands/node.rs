//! `attest-gateway node`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::enrolment;

use super::{table, with_store};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the names of nodes, and the machines they belong to.
    #[command(after_help = "Example:\n  attest-gateway node list")]
    List,
    /// Free a node's name, so that another machine can take it: the explicit re-enrolment after a repair.
    #[command(
        after_help = "Example:\n  attest-gateway node forget worker-7\n\nA name belongs to one machine from its first use, or from `ek add --name`. If an allowlisted EK was given the name,\nremove that EK too: `attest-gateway ek remove`."
    )]
    Forget {
        /// The name.
        name: String,
    },
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List => {
            let all = with_store(config, |store| async move { Ok(enrolment::names(&store).await?) })?;
            let rows: Vec<[String; 2]> = all.into_iter().map(|(name, identity)| [name, identity]).collect();
            print!("{}", table(["NODE", "IDENTITY"], &rows));
        }
        Command::Forget { name } => {
            let wanted = name.clone();
            if !with_store(config, |store| async move { Ok(enrolment::forget_name(&store, &wanted).await?) })? {
                bail!("there is no node named {name:?}");
            }
            println!("forgotten: {name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
