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
    /// Give the seal of challenges and tickets a new key now; a gateway does so by itself each month.
    #[command(
        after_help = "Example:\n  attest-gateway seal rotate\n\nA running gateway seals with it within a minute; with store.key_file in an hour, when every replica has it. The key before opens\nuntil the longest-lived challenge and ticket that it sealed have expired, so no node notices. If a key was stolen, that is too long:\n--drop, and restart the gateways, which would go on with it for five minutes otherwise."
    )]
    Rotate {
        /// Drop all other keys, for one that was stolen: challenges and tickets under way are worthless.
        #[arg(long)]
        drop: bool,
        /// The key by which the keys in the store are encrypted is lost, on every host: take the one of store.key_file here.
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
                    "{}: no key yet; `attest-gateway serve` creates it at its first start",
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
        true => {
            output::done("the seal has only a new key: all challenges and tickets are invalid. Restart the gateway now, and every replica")?
        }
        false => output::done("the seal has a new key; challenges and tickets of the previous key stay valid until they expire")?,
    }
    Ok(ExitCode::SUCCESS)
}
