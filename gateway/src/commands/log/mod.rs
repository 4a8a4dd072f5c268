//! `attest-gateway log`.

mod boot_diff;
mod chains;
mod changes;
mod config;
mod export;
mod filter;
mod give_up;
mod row;
mod show;
mod source;
mod status;
mod tail;

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::settings::Settings;
use attest_log::LogKey;

use super::output;
pub(crate) use show::{Record, record};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the public half of the key that signs the attestation log's checkpoints, PEM: for auditors.
    #[command(
        after_help = "Example:\n  attest-gateway log key > gateway-1.pub\n\nKeep it where nobody who can write the log can: with it, `audit --log-key` tells the log that this gateway has written from any other.\nThe key is made at the first start, state/log.key, and is this gateway's own."
    )]
    Key,
    /// List recorded decisions, the last of them or those that filters choose; or print one whole.
    Show(show::Arguments),
    /// Print the last decisions, and each one that comes.
    Tail(tail::Arguments),
    /// Render a config that was served from the pool's folder of that time, and print it if its SHA-256 is that of the record.
    Config(config::Arguments),
    /// Write records as JSON lines, as they are.
    Export(export::Arguments),
    /// What two machines have booted, or one machine twice: event by event, beside one another.
    BootDiff(boot_diff::Arguments),
    /// List the chains of which the store keeps a checkpoint: of each gateway that has served, by each key, and those that were given up.
    Status,
    /// Say that a gateway's log is lost for good, or accept a new log.key: `audit` misses what was signed no longer, and shows who has said so.
    GiveUp(give_up::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    // Files of event logs are compared without a gateway.
    if let Command::BootDiff(arguments) = command {
        return boot_diff::run(config, arguments);
    }
    let settings = Settings::load(config)?;
    match command {
        Command::Key => output::print(key(&settings)?.public().pem())?,
        Command::Show(arguments) => return show::run(&settings, arguments),
        Command::Tail(arguments) => return tail::run(&settings, arguments),
        Command::Config(arguments) => return config::run(&settings, arguments),
        Command::Export(arguments) => return export::run(&settings, arguments),
        Command::Status => return status::run(config),
        Command::GiveUp(arguments) => return give_up::run(config, arguments),
        Command::BootDiff(arguments) => return boot_diff::run(config, arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn key(settings: &Settings) -> anyhow::Result<LogKey> {
    let file = settings.log_key();
    if file.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        bail!("{}: there is no such key yet; `serve` makes it at its first start", file.display());
    }
    Ok(LogKey::read(&file)?)
}
