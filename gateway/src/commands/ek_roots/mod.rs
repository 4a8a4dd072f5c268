//! The command `attest-gateway ek-roots`: the folder with the CAs of TPM manufacturers.

mod difference;
mod import;
mod list;

use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Import the CAs of a public bundle. Print the difference first; change nothing without --yes.
    Import(import::Arguments),
    /// List the CAs with manufacturer, expiry and origin.
    List(list::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Import(arguments) => import::run(config, arguments),
        Command::List(arguments) => list::run(config, arguments).map(|()| ExitCode::SUCCESS),
    }
}
