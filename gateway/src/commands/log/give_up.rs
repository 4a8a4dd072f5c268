//! `attest-gateway log give-up`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use attest_gateway::audit::admin::Verb;
use attest_gateway::audit::{LogKey, give_up, kept};
use attest_gateway::settings::Settings;

use super::super::acting::change_store;
use super::super::visible::visible;
use super::output;

/// As many digits of a chain's id as `audit` shows.
const DIGITS: usize = 8;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: gw-2 was set up anew, and its old log is nowhere any more\n  attest-gateway log give-up 6f0c51d2\n\nUntil then `audit` says that the chain is missing: the store knows that it was signed. Afterwards it is not required; that it was given up, by whom, and\nits last checkpoint stand in the attestation log (log.give-up)."
)]
pub struct Arguments {
    /// The chain's id, or its first digits, as `audit` shows them.
    chain: String,
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let wanted = arguments.chain.as_str();
    let own = LogKey::read(&settings.log_key()).ok().map(|key| key.public());
    let given_up = change_store(config, Verb::LogGiveUp, async |store| {
        ensure!(
            wanted.len() >= DIGITS,
            "{wanted:?} is too short: give the first {DIGITS} digits of the chain, as `audit` shows them"
        );
        let all = kept(&*store).await?;
        let found: Vec<_> = all.iter().filter(|kept| kept.line.chain.id.starts_with(wanted)).collect();
        let [found] = found.as_slice() else {
            bail!(
                "{} chains that the store knows begin with {wanted:?}: `attest-gateway audit` shows which there are",
                found.len()
            );
        };
        ensure!(
            Some(found.line.checkpoint.key) != own,
            "chain {} is this gateway's own: it is in its log, or another one there says what is missing",
            found.line.chain.id
        );
        Ok(give_up(&*store, &found.line.chain.id).await?)
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
