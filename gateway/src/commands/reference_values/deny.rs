use std::path::Path;

use attest_log::admin::Verb;
use attest_machines::new_values;

use super::who;
use crate::commands::acting::change_store;
use crate::commands::{now, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nobody has rolled this out\n  attest-gateway reference-values deny worker 0f3c…32 digits…9a --reason 'unknown kernel on rack 7'\n\nMachines whose boots have all of it are refused at once from now on, with the refusal that there is without any question; the log says that it was denied, by whom\nand why. With less of it, or with another value in its place, a boot is another question."
)]
pub(crate) struct Arguments {
    /// Pool of the question.
    pool: String,
    /// The question, by its id.
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
    change_store(config, Verb::ReferenceValuesDeny, |store| async move {
        match reason {
            Some(reason) => new_values::deny(&*store, pool, id, reason, &by, now).await?,
            None => new_values::withdraw_denial(&*store, pool, id).await?,
        }
        Ok(())
    })?;
    let done = if reason.is_some() { "denied" } else { "taken back" };
    output::done(format_args!("{done}: {id}"))
}
