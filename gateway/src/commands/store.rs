//! `attest-gateway store`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::audit::CommandLog;
use attest_gateway::credentials::seal::Seal;
use attest_gateway::files::make_private_folder;
use attest_gateway::settings::Settings;
use attest_gateway::store::{self, Accepted, Replacement, StoreMark};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Take the store that is there for the right one, or begin an empty one, after the gateway has refused to start.
    #[command(
        after_help = "Example:\n  attest-gateway store accept\n\nThe gateway refuses a store that is not the one it knows: lost, emptied, another one, or restored from before. Bring the right one\nback if there is any. What is lost with it: nodes and EKs revoked or restricted since, names, and which tokens were used. Challenges\nand tickets under way become worthless: the seal gets a new key. The attestation log\nhas a line about it. Stop the gateway first; then look through `node list`, `ek list` and\n`token list`, and revoke again what has to be."
    )]
    Accept,
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::Accept => accept(&settings),
    }
}

fn accept(settings: &Settings) -> anyhow::Result<ExitCode> {
    super::owner::act(settings)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // No gateway serves meanwhile.
    let mut log = CommandLog::open(&settings.attestation_log())?;
    let first = |replacement: &Replacement| {
        log.store_accepted(replacement, super::now())?;
        // What was spent under the old key may not be known to this store.
        Ok::<_, anyhow::Error>(Seal::replace(&settings.seal_key())?)
    };
    let Accepted {
        replacement: Replacement { known, found },
        now,
    } = store::accept(&settings.store(), first)?;
    let named = |mark: Option<StoreMark>, otherwise: &str| mark.map_or_else(|| otherwise.to_owned(), |mark| mark.to_string());
    println!("known was:   {}", named(known, "a store, nobody says which"));
    println!("found was:   {}", named(found, "none, or one of an older release"));
    println!("accepted as: {now}");
    println!(
        "The seal has a new key: challenges and tickets under way are worthless. Revoke again what was revoked since: node list, ek list, token list."
    );
    Ok(ExitCode::SUCCESS)
}
