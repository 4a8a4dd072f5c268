//! The command `attest-gateway log abandon`: declares a gateway's log lost.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_log::{Abandoned, LastCheckpoint, LogKey, LogKeyError, LogPublicKey, log_head};
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
    after_help = "Example: gw-2 was set up again, and its old log is lost\n  attest-gateway log status\n  attest-gateway log abandon 6f0c51d2\n\nExample: this gateway lost its log.key, and has started with a new one\n  attest-gateway log abandon 6f0c51d2\n\nUntil then `attest-audit log audit` reports the chain as missing, because the store has its checkpoint. Afterwards it no longer\nrequires the chain, and shows who abandoned it. With a new log.key, only the signature by the old key is given up: the lines must\nstill be there.\n\nThe command refuses the chain of a gateway that runs, or was killed less than 15 s ago. If the chain is signed again later, the audit\nrequires it again."
)]
pub(crate) struct Arguments {
    /// Id of the chain, or at least its first 8 digits, as `log status` prints it.
    chain: String,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let wanted = arguments.chain.as_str();
    let own = own_key(&settings)?;
    let here = log_head(&settings.attestation_log()).unwrap_or_default().map(|head| head.chain);
    // Before this becomes the state's owner.
    let who = By::this_process();
    let by = who.to_string();
    let abandoned = change_store_as(who, config, Verb::LogAbandon, async |store| {
        ensure!(
            wanted.len() >= DIGITS,
            "chain {wanted:?} is too short: give at least its first {DIGITS} digits, as `attest-gateway log status` prints them"
        );
        let all = last_checkpoints(&*store).await?;
        let chain = the_chain(&all, wanted)?;
        let is_wanted = |kept: &LastCheckpoint| kept.line.chain.id == chain && Some(kept.key()) != own;
        ensure!(
            all.iter().any(is_wanted),
            "chain {chain} belongs to this gateway, and is signed by its present log.key: it cannot be abandoned; to check its log: `attest-audit log audit`"
        );
        let has_served = all.iter().any(|kept| own == Some(kept.key()));
        ensure!(
            has_served || here.as_ref() != Some(&chain),
            "chain {chain} is in this gateway's log, but the store has no checkpoint by its present log.key: if log.key was replaced, start the gateway once, then run the command again"
        );
        if let Some(Abandoned { at, by }) = all.iter().filter(|kept| is_wanted(kept)).find_map(|kept| kept.abandoned.as_ref())
            && all.iter().filter(|kept| is_wanted(kept)).all(|kept| kept.abandoned.is_some())
        {
            bail!("chain {chain} was abandoned already, on {} by {by}", rfc3339(*at));
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
                "gateway {} runs, or was killed less than 15 s ago, so chain {chain} may not be lost. Stop that gateway first (`systemctl stop attest-gateway` on its host), or, if it has a new log.key, run this command on its host",
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
        (None, _) => bail!("the store has no chain that begins with {wanted:?}; to list all chains: `attest-gateway log status`"),
        (Some(one), Some(other)) => bail!("several chains begin with {wanted:?}, among them {one} and {other}: give more digits"),
    }
}

/// Returns the key of the gateway of this state; `None` if no gateway has served.
fn own_key(settings: &Settings) -> anyhow::Result<Option<LogPublicKey>> {
    match LogKey::read(&settings.log_key()) {
        Ok(key) => Ok(Some(key.public())),
        Err(LogKeyError::Io { source, .. }) if source.kind() == ErrorKind::NotFound && !settings.attestation_log().exists() => Ok(None),
        Err(error) => bail!("cannot read this gateway's log.key, so its own chains are unknown; nothing was abandoned: {error}"),
    }
}
