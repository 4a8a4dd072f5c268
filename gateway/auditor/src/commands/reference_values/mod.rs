//! The commands `attest-audit reference-values`.

mod predict;
mod record;
mod set;

use std::process::ExitCode;

use super::gateway_files::GatewayFiles;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Predict the machines' measurements from the files that they boot.
    Predict(Box<predict::Arguments>),
    /// Add a generation from a node's last trusted boot.
    Record(record::Arguments),
}

pub(crate) fn run(files: &GatewayFiles, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Predict(arguments) => predict::run(arguments),
        Command::Record(arguments) => record::run(files, arguments),
    }
}
