use std::path::Path;

use attest_command_line::reference_set_file::who;
use attest_log::admin::Verb;
use attest_machines::waiting;

use super::chosen;
use crate::commands::acting::change_store;
use crate::commands::{now, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway waiting refuse 0f3c5d92a7b1 --reason 'unknown kernel on rack 7'\n\nGateways refuse machines that show all values of the question from now on; the attestation log has the reason. A boot with fewer or\nother values is another question."
)]
pub(crate) struct Arguments {
    /// Id of the question, or its first 8 digits or more.
    id: String,
    /// Pool of the question.
    #[arg(long = "for", alias = "pool", value_name = "POOL")]
    pool: Option<String>,
    /// Reason, for the attestation log; the node does not see it.
    #[arg(long, value_name = "TEXT", required_unless_present = "take_back")]
    reason: Option<String>,
    /// Take a refusal back: the question is open again.
    #[arg(long, conflicts_with = "reason")]
    take_back: bool,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { id, pool, reason, .. } = arguments;
    let (by, now) = (who(), now());
    let id = change_store(config, Verb::WaitingRefuse, |store| async move {
        let row = chosen(&waiting::questions(&*store, pool.as_deref(), now).await?, id)?;
        match reason {
            Some(reason) => waiting::refuse(&*store, &row.pool, &row.id, reason, &by, now).await?,
            None => waiting::withdraw_refusal(&*store, &row.pool, &row.id).await?,
        }
        Ok(row.id)
    })?;
    let done = if reason.is_some() { "refused" } else { "taken back" };
    output::done(format_args!("{done}: {id}"))
}
