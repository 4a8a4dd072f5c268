//! The command `attest-gateway machines`: lists machines, and imports and exports the allowlist.

mod export;
mod import;
mod list;
mod rows;
mod show;
mod state;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List machines with their last attestation, as `kubectl get attestednodes` does.
    List(list::Arguments),
    /// Show what the gateway knows of one machine.
    Show(show::Arguments),
    /// Put the machines of a file on the allowlist: all of them, or none.
    Import(import::Arguments),
    /// Print the allowlist as CSV, which `machines import` reads.
    #[command(
        after_help = "Example: copy the allowlist to another gateway\n  attest-gateway machines export > machines.csv\n  attest-gateway --config other/gateway.toml machines import machines.csv\n\nMachines that were removed from the allowlist are left out."
    )]
    Export,
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(arguments) => list::run(config, arguments),
        Command::Show(arguments) => show::run(config, arguments),
        Command::Import(arguments) => import::run(config, arguments),
        Command::Export => export::run(config),
    }
}
