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
    after_help = "Example:\n  attest-gateway second-stage render | oc apply --server-side -f -\n\nOf each pool with second_stage.machine_config_daemon, the MachineConfig that its pre-approved config names. It must be in the cluster before a node boots with that config, and stay while one may: those that\nwere applied before are not taken away. --server-side, because what oc apply else notes on an object has no room for a MachineConfig.\ndocs/second-stage.md says what a node goes through."
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
                "pool {name} has no second stage: its pool.toml does not set second_stage.machine_config_daemon, or grants its pre-approved config to no one"
            ),
            None => {}
        }
    }
    if printed.is_empty() {
        bail!("no pool has a second stage: none says second_stage.machine_config_daemon in pool.toml");
    }
    output::print(printed)?;
    Ok(ExitCode::SUCCESS)
}
