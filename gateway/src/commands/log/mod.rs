//! The command `attest-gateway log`: reads the attestation log.

mod abandon;
mod chains;
mod changes;
mod export;
mod list_checkpoints;
mod node_identities;
pub(super) mod row;
mod show;
mod status;
mod tail;

pub(crate) use node_identities::source_with_identities;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::settings::Settings;
use attest_log::LogKey;

use super::{OutputOption, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the public key (PEM) that verifies the attestation log's checkpoints.
    #[command(
        after_help = "Example:\n  attest-gateway log show-key > gateway-1.pub\n\nStore the file where nobody who can write the log can change it. An auditor proves with it that this gateway wrote the log:\nattest-audit log audit --log-key gateway-1.pub.\n\nEach gateway creates its own key, state/log.key, at its first start."
    )]
    ShowKey,
    /// List decisions, or print one whole record.
    Show(show::Arguments),
    /// Print the last decisions, and follow new ones.
    Tail(tail::Arguments),
    /// Write records as JSON lines, byte for byte.
    Export(export::Arguments),
    /// Print the store's checkpoints as JSON lines, for `attest-audit log audit --checkpoints`.
    ListCheckpoints,
    /// List the log chains that the store has checkpoints of.
    Status {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Declare a gateway's log lost for good, or accept its new log.key.
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
            "{}: the log has no key yet; the gateway creates it at its first start: `attest-gateway serve`",
            file.display()
        );
    }
    Ok(LogKey::read(&file)?)
}
