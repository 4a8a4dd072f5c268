//! Link of a journal to a store: each line has the store's mark.

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;

use std::sync::Arc;

use attest_log::{GatewayCommits, Journal, StoreLink, StorePosition, StoreReplacement};
use attest_store::{Replacement, Store, StoreMark, Wrote};

/// Has each line of the journal say how far this store has come, and be written only when that is durable.
#[must_use]
pub fn with_store<S: Store + ?Sized + 'static>(journal: Journal, store: &Arc<S>) -> Journal {
    // The thread that writes does not keep it open: one that is closed is durable.
    let [seen, synced] = [(); 2].map(|()| Arc::downgrade(store));
    let position = move || seen.upgrade()?.store_mark().map(position);
    let sync = move || synced.upgrade().map_or(Ok(()), |store| Ok(store.sync()?));
    journal.with_store(StoreLink::new(position, sync))
}

/// Returns a store's mark as lines of the log have it.
#[must_use]
pub fn position(StoreMark { id, mark, wrote }: StoreMark) -> StorePosition {
    let commits = |Wrote { replica, commits }| GatewayCommits { replica, commits };
    StorePosition {
        id,
        mark,
        wrote: wrote.map(commits),
    }
}

/// Returns the replacement of a store as the log's line has it.
#[must_use]
pub fn replacement(Replacement { known, found }: &Replacement) -> StoreReplacement {
    StoreReplacement {
        known: known.clone().map(position),
        found: found.clone().map(position),
    }
}
