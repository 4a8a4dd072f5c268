//! `attest-gateway reference-values`.

mod predict;
mod set;

use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Compute what machines will measure, from the files that they will boot. No gateway needs to be here.
    Predict(predict::Arguments),
}

pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Predict(arguments) => predict::run(arguments),
    }
}
