use std::path::Path;

use attest_log::admin::Verb;
use attest_machines::new_values;

use super::who;
use crate::commands::acting::change_store;
use crate::commands::beginnings::completed;
use crate::commands::{now, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nobody has rolled this out\n  attest-gateway reference-values deny worker 0f3c…32 digits…9a --reason 'unknown kernel on rack 7'\n\nMachines whose boots have all of it are refused at once from now on, with the refusal that there is without any question; the log says that it was denied, by whom\nand why. With less of it, or with another value in its place, a boot is another question."
)]
pub(crate) struct Arguments {
    /// Pool of the question.
    pool: String,
    /// The question's id, or its first 8 characters or more.
    id: String,
    /// Reason, for the attestation log; the node does not see it.
    #[arg(long, value_name = "TEXT", required_unless_present = "take_back")]
    reason: Option<String>,
    /// Take a denial back: who boots it asks again.
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
            None => new_values::take_back(&*store, pool, &id).await?,
        }
        Ok(id)
    })?;
    let done = if reason.is_some() { "denied" } else { "taken back" };
    output::done(format_args!("{done}: {id}"))
}
