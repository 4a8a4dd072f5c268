//! The command `attest-gateway log abandon`: declares a gateway's log lost.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_log::{Abandoned, LastCheckpoint, LogKey, LogKeyError, LogPublicKey, last_chain};
use attest_recording::{AbandonOutcome, abandon, last_checkpoints};
use attest_system::clock::rfc3339;

use super::super::acting::change_store_as;
use super::super::now;
use super::super::visible;
use super::output;

/// Fewest digits of a chain's id: as many as `audit` shows.
const DIGITS: usize = 8;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: gw-2 was set up anew, and its old log is nowhere any more\n  attest-gateway log abandon 6f0c51d2\n\nUntil then `audit` says that the chain is missing: the store knows that it was signed. Afterwards it is not required. The store keeps its last checkpoint\nfor ever, with who abandoned it, and `audit` and `log status` show that; the log of another gateway has it, too (log.abandon). A gateway that serves, or was\nkilled less than 15 s ago, is refused. A chain that is signed on after it was abandoned is required again.\n\nExample: log.key of this gateway was lost, and it has started with a new one\n  attest-gateway log abandon 6f0c51d2\n\nThat abandons the checkpoint by the old key only. Lines that are there have to be the ones that were signed all the same."
)]
pub(crate) struct Arguments {
    /// The chain's id, or its first 8 digits or more, as `attest-audit log audit` and `log status` show them.
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
    let abandoned = change_store_as(who, config, Verb::LogAbandon, async |store| {
        ensure!(
            wanted.len() >= DIGITS,
            "{wanted:?} is too short: give the first {DIGITS} digits of the chain, as `attest-audit log audit` shows them"
        );
        let all = last_checkpoints(&*store).await?;
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
        if let Some(Abandoned { at, by }) = all.iter().filter(|kept| is_wanted(kept)).find_map(|kept| kept.abandoned.as_ref())
            && all.iter().filter(|kept| is_wanted(kept)).all(|kept| kept.abandoned.is_some())
        {
            bail!("chain {chain} was abandoned on {} by {by}", rfc3339(*at));
        }
        let serves_as = store.serves_as().map(str::to_owned);
        // By a key before its own this gateway may abandon what it has signed while it serves: it has served with the new one.
        let this = serves_as.filter(|this| {
            let is_this = |kept: &LastCheckpoint| kept.serves_as.as_ref() == Some(this) && own == Some(kept.key());
            all.iter().any(is_this)
        });
        match abandon(&*store, is_wanted, this.as_deref(), Abandoned { at: now(), by }).await? {
            AbandonOutcome::Done(abandoned) => Ok(abandoned),
            AbandonOutcome::Serves(kept) => bail!(
                "gateway {} serves, or was killed less than 15 s ago: chain {chain} is not lost. Stop it first; if it has a new log.key, abandon the chain at its host",
                kept.line.checkpoint.replica
            ),
            AbandonOutcome::Changed => {
                bail!("chain {chain} got a new checkpoint during this command: nothing was abandoned; run the command again")
            }
        }
    })?;
    for kept in abandoned {
        let (chain, replica) = (&kept.line.chain, visible(&kept.line.checkpoint.replica));
        output::done(format_args!(
            "chain {} of {replica}, up to line {}: abandoned",
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
