//! Transfer of the store's outbox into the log.

use attest_log::admin::{Act, Verb};
use attest_log::{Journal, JournalError, LogPublicKey};
use attest_store::{Store, StoreEntry, StoreError};
use futures_util::future::try_join_all;

use super::checkpoints::is_of_key;

/// Number of acts that are read at once: they share an fsync or two, and are a quarter of a megabyte at the usual size.
const PAGE: usize = 250;

/// Reason why the outbox was not emptied. Entries that were not recorded are in it still.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Returns whether an act abandons a chain that this key has signed.
fn gives_up_a_chain_of(act: &Act, key: LogPublicKey) -> bool {
    act.verb == Verb::LogAbandon && act.things.iter().any(|thing| is_of_key(&thing.id, key))
}

/// The number of acts of the outbox that were recorded, and of those left for another gateway to record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxCount {
    pub recorded: usize,
    pub left: usize,
}

/// Records the outbox entries, and removes them once they are in the log, durably. If the process is killed in between, they are recorded
/// again with the same ids. Entries of a newer release stay for such a gateway. An entry that abandons a chain by this journal's key stays
/// for another gateway, because the record would be lost with the chain.
///
/// # Errors
/// [`TakeError`].
pub async fn take(journal: &Journal, store: &dyn Store, at: u64) -> Result<OutboxCount, TakeError> {
    let (mut taken, mut last) = (OutboxCount::default(), None);
    loop {
        let page = store.outbox(last.as_deref(), PAGE).await?;
        let Some(end) = page.last() else { return Ok(taken) };
        last = Some(end.id.clone());
        let mut events = Vec::new();
        let mut ids = Vec::new();
        for StoreEntry { id, value } in &page {
            match Act::read(id, value) {
                Some(act) if gives_up_a_chain_of(&act, journal.key()) => taken.left = taken.left.saturating_add(1),
                Some(act) => {
                    events.push(act.event(at)?);
                    ids.push(id.clone());
                }
                None => tracing::debug!("skipping outbox entry {id}: written by a newer release"),
            }
        }
        try_join_all(events.iter().map(|event| journal.record_event(event))).await?;
        taken.recorded = taken.recorded.saturating_add(ids.len());
        store.recorded(ids).await?;
        if page.len() < PAGE {
            return Ok(taken);
        }
    }
}
