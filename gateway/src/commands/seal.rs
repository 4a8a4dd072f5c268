//! The command `attest-gateway seal`: rotates the keys of the seal.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::settings::Settings;
use attest_log::admin::{ValueChange, Verb};

use super::acting::{change_files, change_store};
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Rotate the key that encrypts challenges and tickets.
    #[command(
        after_help = "Example: rotate now; gateways also rotate each month\n  attest-gateway seal rotate\n\nExample: a key was stolen; then restart every gateway\n  attest-gateway seal rotate --drop\n\nGateways use the new key within a minute; with store.key_file within an hour, when every replica has it. The previous key stays valid\nfor the challenges and tickets that it has encrypted, so no node notices.\n\nWith --drop all challenges and tickets become invalid at once, except on gateways that were not restarted, for five minutes."
    )]
    Rotate {
        /// Delete all other keys, because one was stolen. All challenges and tickets become invalid.
        #[arg(long)]
        drop: bool,
        /// Use the key of store.key_file on this host, because the previous store key is lost on every host.
        #[arg(long, requires = "drop")]
        key_lost: bool,
    },
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let Command::Rotate { drop, key_lost } = *command;
    let verb = if drop { Verb::SealDrop } else { Verb::SealRotate };
    match &settings.store_key_file {
        Some(key_file) => change_store(config, verb, async |store| {
            let now = super::times(&*store).await?;
            match drop {
                true => {
                    SealKeyRing::replace_shared(&*store, key_file, now, key_lost).await?;
                    // Of before there was a key file.
                    SealKeyRing::replace_if_exists(&settings.seal_key())?;
                }
                false => SealKeyRing::rotate_shared(&*store, key_file, now).await?,
            }
            Ok(())
        })?,
        None => change_files(&settings, verb, || {
            let file = settings.seal_key();
            if !drop && file.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                bail!(
                    "{}: the seal has no key yet; the gateway creates it at its first start: `attest-gateway serve`",
                    file.display()
                );
            }
            match drop {
                true => SealKeyRing::replace(&file)?,
                false => SealKeyRing::rotate(&file, super::now(), settings.seal_keep())?,
            }
            Ok(((), vec![ValueChange::file(&file)]))
        })?,
    }
    match drop {
        true => output::done(
            "the seal has a new key, and no other: all challenges and tickets are invalid.\nNext: restart every gateway now: `systemctl restart attest-gateway`",
        )?,
        false => output::done("the seal has a new key; challenges and tickets of the previous key stay valid until they expire")?,
    }
    Ok(ExitCode::SUCCESS)
}
