//! From the store's outbox into the log.

use attest_store::{Entry, Store, StoreError};
use futures_util::future::try_join_all;

use crate::act::{Act, Verb};
use crate::kept::is_of_key;
use crate::{Journal, JournalError, LogPublicKey};

/// Acts that are taken at once: they share an fsync or two, and are a quarter of a megabyte at the usual size.
const PAGE: usize = 250;

/// Why the outbox was not emptied. What was not recorded is in it still.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Act {
    /// Returns whether it gives up a chain that this key has signed.
    fn gives_up_a_chain_of(&self, key: LogPublicKey) -> bool {
        self.verb == Verb::LogGiveUp && self.things.iter().any(|thing| is_of_key(&thing.id, key))
    }
}

/// Records an act at once, durably.
///
/// # Errors
/// [`JournalError`].
pub async fn record(journal: &Journal, act: Act, at: u64) -> Result<(), JournalError> {
    journal.tell(&act.event(at)?).await
}

/// The number of acts of the outbox that were recorded, and of those left for another gateway to record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    pub recorded: usize,
    pub left: usize,
}

/// Records what waits in the outbox, and takes it out once it is in the log, durably. Whoever is killed in between has recorded something that is
/// recorded once more, with the same id. What a newer release has put there stays for one; and that a chain by this journal's key was given up stays
/// for another gateway, because the record would be lost with the chain.
///
/// # Errors
/// [`TakeError`].
pub async fn take(journal: &Journal, store: &dyn Store, at: u64) -> Result<Taken, TakeError> {
    let (mut taken, mut last) = (Taken::default(), None);
    loop {
        let page = store.outbox(last.as_deref(), PAGE).await?;
        let Some(end) = page.last() else { return Ok(taken) };
        last = Some(end.id.clone());
        let mut events = Vec::new();
        let mut ids = Vec::new();
        for Entry { id, value } in &page {
            match Act::read(id, value) {
                Some(act) if act.gives_up_a_chain_of(journal.key()) => taken.left = taken.left.saturating_add(1),
                Some(act) => {
                    events.push(act.event(at)?);
                    ids.push(id.clone());
                }
                None => tracing::debug!("what waits in the outbox under {id} is a newer release's to record"),
            }
        }
        try_join_all(events.iter().map(|event| journal.tell(event))).await?;
        taken.recorded = taken.recorded.saturating_add(ids.len());
        store.recorded(ids).await?;
        if page.len() < PAGE {
            return Ok(taken);
        }
    }
}
