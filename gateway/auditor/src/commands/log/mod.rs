//! The commands `attest-audit log`.

mod boot_diff;
mod config;

use std::process::ExitCode;

use super::gateway_files::GatewayFiles;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Render a config that was served from the pool's folder of that time, and print it if its SHA-256 is that of the record.
    Config(config::Arguments),
    /// Compare the boots of two machines, or two boots of one machine, event by event.
    BootDiff(boot_diff::Arguments),
}

pub(crate) fn run(files: &GatewayFiles, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Config(arguments) => config::run(files, arguments),
        Command::BootDiff(arguments) => boot_diff::run(files, arguments),
    }
}
