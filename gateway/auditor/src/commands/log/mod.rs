//! The commands `attest-audit log`.

mod audit;
mod compare_boots;
mod show_config;

use std::process::ExitCode;

use super::gateway_files::GatewayFiles;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Verify the log, and repeat its decisions from the recorded evidence.
    Audit(Box<audit::Arguments>),
    /// Render a served config again, and print it if its SHA-256 matches.
    ShowConfig(show_config::Arguments),
    /// Compare the boots of two machines, or two boots of one machine, event by event.
    CompareBoots(compare_boots::Arguments),
}

pub(crate) fn run(files: &GatewayFiles, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Audit(arguments) => audit::run(files, arguments),
        Command::ShowConfig(arguments) => show_config::run(files, arguments),
        Command::CompareBoots(arguments) => compare_boots::run(files, arguments),
    }
}
