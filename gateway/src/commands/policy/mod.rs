//! The command `attest-gateway policy`: explains policies of pools.

mod explain;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print a pool's requirements for attesting nodes in words.
    Explain(explain::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Explain(arguments) => explain::run(config, arguments),
    }
}
