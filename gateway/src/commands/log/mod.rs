//! The command `attest-gateway log`: reads the attestation log.

mod abandon;
mod chains;
mod changes;
mod export;
mod list_checkpoints;
mod node_identities;
mod row;
mod show;
mod status;
mod tail;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::settings::Settings;
use attest_log::LogKey;

use super::{OutputOption, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the public half of the key that signs the attestation log's checkpoints, PEM: for auditors.
    #[command(
        after_help = "Example:\n  attest-gateway log show-key > gateway-1.pub\n\nKeep it where nobody who can write the log can: with it, `attest-audit log audit --log-key` tells the log that this gateway has written from any other.\nThe key is made at the first start, state/log.key, and is this gateway's own."
    )]
    ShowKey,
    /// List recorded decisions, the last of them or those that filters choose; or print one whole.
    Show(show::Arguments),
    /// Print the last decisions, and each one that comes.
    Tail(tail::Arguments),
    /// Write records as JSON lines, as they are.
    Export(export::Arguments),
    /// Print the checkpoints of the store as JSON lines, for `attest-audit log audit --checkpoints`: what the logs must hold.
    ListCheckpoints,
    /// List the chains of which the store keeps a checkpoint: of each gateway that has served, by each key, and those that were abandoned.
    Status {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Declare a gateway's log lost for good, or accept a new log.key: `audit` no longer requires what was signed, and shows who declared
    /// it.
    Abandon(abandon::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::ShowKey => output::print(key(&settings)?.public().pem())?,
        Command::Show(arguments) => return show::run(&settings, arguments),
        Command::Tail(arguments) => return tail::run(&settings, arguments),
        Command::ListCheckpoints => return list_checkpoints::run(config),
        Command::Export(arguments) => return export::run(&settings, arguments),
        Command::Status { format } => return status::run(config, *format),
        Command::Abandon(arguments) => return abandon::run(config, arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn key(settings: &Settings) -> anyhow::Result<LogKey> {
    let file = settings.log_key();
    if file.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        bail!(
            "{}: no such key yet; `attest-gateway serve` creates it at its first start",
            file.display()
        );
    }
    Ok(LogKey::read(&file)?)
}
