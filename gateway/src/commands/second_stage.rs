//! The command `attest-gateway second-stage render`: prints MachineConfigs of the second stage.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_gateway::settings::Settings;

use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the MachineConfigs of the pools' second stage.
    Render(Arguments),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway second-stage render | oc apply --server-side -f -\n\nThe command prints a MachineConfig for each pool with second_stage.machine_config_daemon. Apply it before a node boots with the pool's\npre-approved config, and leave earlier ones in the cluster while nodes may use them. Without --server-side the object is too large for\noc's annotation.\n\nSteps and troubleshooting: docs/how-to/second-stage.md."
)]
pub(crate) struct Arguments {
    /// Pool to print (repeatable) [default: every pool].
    #[arg(long, value_name = "POOL")]
    pool: Vec<String>,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let named = !arguments.pool.is_empty();
    let pools = if named {
        arguments.pool.clone()
    } else {
        attest_pool::folders(&settings.pools)?.pools.into_keys().collect()
    };
    let mut printed = String::new();
    for name in pools {
        let pool = super::pool(&settings, &name)?;
        match pool.second_stage().with_context(|| format!("pool {name}"))? {
            Some(object) => printed.push_str(&format!("{:#}\n", object.value)),
            None if named => bail!(
                "pool {name} has no second stage: set second_stage.machine_config_daemon in its pool.toml, and let a grant earn the pre-approved config"
            ),
            None => {}
        }
    }
    if printed.is_empty() {
        bail!("no pool has a second stage: set second_stage.machine_config_daemon in a pool's pool.toml");
    }
    output::print(printed)?;
    Ok(ExitCode::SUCCESS)
}
