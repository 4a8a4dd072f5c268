//! The command `attest-gateway log give-up`: declares a gateway's log lost.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_log::{GivenUp, LastCheckpoint, LogKey, LogKeyError, LogPublicKey, last_chain};
use attest_recording::{GivingUp, give_up, kept};
use attest_system::clock::rfc3339;

use super::super::acting::change_store_as;
use super::super::now;
use super::super::visible;
use super::output;

/// Fewest digits of a chain's id: as many as `audit` shows.
const DIGITS: usize = 8;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: gw-2 was set up anew, and its old log is nowhere any more\n  attest-gateway log give-up 6f0c51d2\n\nUntil then `audit` says that the chain is missing: the store knows that it was signed. Afterwards it is not required. The store keeps its last checkpoint\nfor ever, with who gave it up, and `audit` and `log status` show that; the log of another gateway has it, too (log.give-up). A gateway that serves, or was\nkilled less than 15 s ago, is refused. A chain that is signed on after it was given up is required again.\n\nExample: log.key of this gateway was lost, and it has started with a new one\n  attest-gateway log give-up 6f0c51d2\n\nThat gives up the checkpoint by the old key only. Lines that are there have to be the ones that were signed all the same."
)]
pub(crate) struct Arguments {
    /// The chain's id, or its first 8 digits or more, as `attest-audit audit` and `log status` show them.
    chain: String,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let wanted = arguments.chain.as_str();
    let own = own_key(&settings)?;
    let here = last_chain(&settings.attestation_log()).unwrap_or_default();
    // Before this becomes the state's owner.
    let who = By::this_process();
    let by = who.to_string();
    let given_up = change_store_as(who, config, Verb::LogGiveUp, async |store| {
        ensure!(
            wanted.len() >= DIGITS,
            "{wanted:?} is too short: give the first {DIGITS} digits of the chain, as `attest-audit audit` shows them"
        );
        let all = kept(&*store).await?;
        let chain = the_chain(&all, wanted)?;
        let is_wanted = |kept: &LastCheckpoint| kept.line.chain.id == chain && Some(kept.key()) != own;
        ensure!(
            all.iter().any(is_wanted),
            "chain {chain} is this gateway's own: it is in its log, or another one there says what is missing"
        );
        let has_served = all.iter().any(|kept| own == Some(kept.key()));
        ensure!(
            has_served || here.as_ref() != Some(&chain),
            "chain {chain} is in this gateway's log, and nothing in the store is signed by its log.key: if that was replaced, start the gateway first"
        );
        if let Some(GivenUp { at, by }) = all.iter().filter(|kept| is_wanted(kept)).find_map(|kept| kept.given_up.as_ref())
            && all.iter().filter(|kept| is_wanted(kept)).all(|kept| kept.given_up.is_some())
        {
            bail!("chain {chain} was given up on {} by {by}", rfc3339(*at));
        }
        let serves_as = store.serves_as().map(str::to_owned);
        // By a key before its own this gateway may give up what it has signed while it serves: it has served with the new one.
        let this = serves_as.filter(|this| {
            let is_this = |kept: &LastCheckpoint| kept.serves_as.as_ref() == Some(this) && own == Some(kept.key());
            all.iter().any(is_this)
        });
        match give_up(&*store, is_wanted, this.as_deref(), GivenUp { at: now(), by }).await? {
            GivingUp::Done(given_up) => Ok(given_up),
            GivingUp::Serves(kept) => bail!(
                "gateway {} serves, or was killed less than 15 s ago: chain {chain} is not lost. Stop it first; if it has a new log.key, give the chain up at its host",
                kept.line.checkpoint.replica
            ),
            GivingUp::Changed => {
                bail!("chain {chain} got a new checkpoint during this command: nothing was given up; run the command again")
            }
        }
    })?;
    for kept in given_up {
        let (chain, replica) = (&kept.line.chain, visible(&kept.line.checkpoint.replica));
        output::done(format_args!(
            "chain {} of {replica}, up to line {}: given up",
            chain.id, chain.number
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the one chain whose id begins so.
fn the_chain(all: &[LastCheckpoint], wanted: &str) -> anyhow::Result<String> {
    let chains: BTreeSet<&String> = all
        .iter()
        .map(|kept| &kept.line.chain.id)
        .filter(|id| id.starts_with(wanted))
        .collect();
    let mut chains = chains.into_iter();
    match (chains.next(), chains.next()) {
        (Some(chain), None) => Ok(chain.clone()),
        (None, _) => bail!("no chain that the store knows begins with {wanted:?}: `attest-gateway log status` shows which there are"),
        (Some(one), Some(other)) => bail!("several chains begin with {wanted:?}, as {one} and {other}: give more digits"),
    }
}

/// Returns the key of the gateway of this state; `None` if no gateway has served.
fn own_key(settings: &Settings) -> anyhow::Result<Option<LogPublicKey>> {
    match LogKey::read(&settings.log_key()) {
        Ok(key) => Ok(Some(key.public())),
        Err(LogKeyError::Io { source, .. }) if source.kind() == ErrorKind::NotFound && !settings.attestation_log().exists() => Ok(None),
        Err(error) => bail!("cannot determine which chains are this gateway's own: {error}"),
    }
}
