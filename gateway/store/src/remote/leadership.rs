//! Leadership of a work that only one of several gateways does at a time.

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Engine;
use crate::fence::{Fence, Fenced};
use crate::leader::{LeaderGuard, LeaderLock};

/// Leadership of a work. After it is dropped, others may lead.
pub struct Leadership {
    fence: Fence,
    lost: watch::Receiver<bool>,
    abandon: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl Leadership {
    /// `lost` turns `true` when another may lead; `abandon` lets others lead.
    pub(crate) fn new(fence: Fence, lost: watch::Receiver<bool>, abandon: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            fence,
            lost,
            abandon: Some(Box::new(abandon)),
        }
    }

    /// Returns the fence, which refuses a work unless this is still the leader when the work is committed.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Returns whether another may lead, as far as is known locally.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow() || self.fence.has_refused()
    }

    /// Waits until another may lead, as far as is known locally. One may lead earlier: only the fence prevents its writes.
    pub async fn lost(&mut self) {
        // An error says that nobody keeps the lease any more.
        drop(self.lost.wait_for(|lost| *lost).await);
    }

    /// Returns the store of this engine, behind the fence.
    pub(crate) fn into_leader(self, engine: impl Engine + 'static) -> LeaderGuard {
        let fenced = Fenced::new(engine, self.fence());
        LeaderGuard::new(Arc::new(fenced), Box::new(self))
    }
}

impl LeaderLock for Leadership {
    fn is_lost(&self) -> bool {
        Self::is_lost(self)
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(abandon) = self.abandon.take() {
            abandon();
        }
    }
}
