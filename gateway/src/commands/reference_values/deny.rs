use std::path::Path;

use attest_log::admin::Verb;
use attest_machines::new_values;

use super::who;
use crate::commands::acting::change_store;
use crate::commands::beginnings::completed;
use crate::commands::{now, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway reference-values deny worker 0f3c5d92a7b14e68c03f9d2b75a81e64 --reason 'unknown kernel on rack 7'\n\nGateways refuse machines whose boots have all of these values from now on; the attestation log has the reason. A boot with fewer or\nother values is another question."
)]
pub(crate) struct Arguments {
    /// Pool of the question.
    pool: String,
    /// The question's id, or its first 8 characters or more.
    id: String,
    /// Reason, for the attestation log; the node does not see it.
    #[arg(long, value_name = "TEXT", required_unless_present = "take_back")]
    reason: Option<String>,
    /// Take a denial back: the question is open again.
    #[arg(long, conflicts_with = "reason")]
    take_back: bool,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { pool, id, reason, .. } = arguments;
    let (by, now) = (who(), now());
    let id = change_store(config, Verb::ReferenceValuesDeny, |store| async move {
        let questions = new_values::questions(&*store, Some(pool), now).await?;
        let id = completed(id, questions.into_iter().map(|row| row.id))?;
        match reason {
            Some(reason) => new_values::deny(&*store, pool, &id, reason, &by, now).await?,
            None => new_values::withdraw_denial(&*store, pool, &id).await?,
        }
        Ok(id)
    })?;
    let done = if reason.is_some() { "denied" } else { "taken back" };
    output::done(format_args!("{done}: {id}"))
}
