//! Leader election: works that only one of several gateways may do at a time.

use std::fmt::Debug;
use std::sync::Arc;

use super::{Store, StoreError, Witness};

/// Leadership of a work, for as long as this is kept. After it is dropped, other gateways may lead.
#[derive(Debug)]
pub struct LeaderGuard(Option<ActiveLeadership>);

#[derive(Debug)]
struct ActiveLeadership {
    store: Arc<dyn Store>,
    held: Box<dyn LeaderLock>,
}

/// Hold on a work, which keeps other gateways from doing it.
pub trait LeaderLock: Send + Sync + Debug {
    /// Returns whether another gateway may lead, as far as is known locally. `false` proves nothing.
    fn is_lost(&self) -> bool;
}

impl LeaderGuard {
    /// Returns the leadership of a store that only one gateway uses.
    #[must_use]
    pub const fn alone() -> Self {
        Self(None)
    }

    /// Returns a leadership with a store that refuses works once another gateway may lead.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, held: Box<dyn LeaderLock>) -> Self {
        Self(Some(ActiveLeadership { store, held }))
    }

    /// Has the changes of this leader recorded, by way of the outbox.
    pub(super) fn witnessed(self, witness: &Arc<dyn Witness>) -> Self {
        Self(self.0.map(|ActiveLeadership { store, held }| ActiveLeadership {
            store: store.witnessed(Arc::clone(witness)),
            held,
        }))
    }

    fn is_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|led| led.held.is_lost())
    }
}

/// A work that only one of several gateways does at a time.
#[derive(Debug)]
pub struct LeaderTask {
    work: &'static str,
    store: Arc<dyn Store>,
    lead: Option<LeaderGuard>,
    /// Number of the current turn.
    count: u64,
}

impl LeaderTask {
    /// Creates the turn of a work. Its name is the same on all gateways.
    #[must_use]
    pub const fn new(store: Arc<dyn Store>, work: &'static str) -> Self {
        let (lead, count) = (None, 0);
        Self { work, store, lead, count }
    }

    /// Returns the store for the work, if this gateway leads it. It leads until this is dropped, or the leadership is lost. Writes after
    /// another gateway may have begun are refused with [`StoreError::Led`], even if this process was paused meanwhile.
    ///
    /// # Errors
    /// [`StoreError`]: the leader cannot be determined.
    pub async fn take(&mut self) -> Result<Option<&dyn Store>, StoreError> {
        Ok(self.shared().await?.map(|store| &**store))
    }

    /// Returns the number of its last turn: between two turns another gateway may have had its own.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Lets another gateway lead. This one applies again at the next [`LeaderTask::take`].
    pub fn release(&mut self) {
        self.lead = None;
    }

    /// Like [`LeaderTask::take`], but returns the shared pointer.
    ///
    /// # Errors
    /// [`StoreError`]: the leader cannot be determined.
    pub async fn shared(&mut self) -> Result<Option<&Arc<dyn Store>>, StoreError> {
        if self.lead.as_ref().is_none_or(LeaderGuard::is_lost) {
            // What is left of the one that was lost would stand in the way.
            self.lead = None;
            self.lead = self.store.acquire_leadership(self.work).await?;
            self.count += 1;
        }
        Ok(self.lead.as_ref().map(|LeaderGuard(led)| match led {
            Some(led) => &led.store,
            None => &self.store,
        }))
    }
}
