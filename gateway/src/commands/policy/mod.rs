//! The command `attest-gateway policy`: explains policies of pools.

mod explain;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Say in words what a pool requires of a node that attests.
    Explain(explain::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Explain(arguments) => explain::run(config, arguments),
    }
}
