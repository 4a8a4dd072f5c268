//! The store that lines depend on, as the log asks it: by functions, so that the log needs no store engine.

use std::fmt;
use std::sync::Arc;

use super::store_position::StorePosition;

/// An error of the store.
pub type StoreFailure = Box<dyn std::error::Error + Send + Sync>;

/// Functions by which a journal uses the store.
#[derive(Clone)]
pub struct StoreLink {
    pub(super) position: Arc<dyn Fn() -> Option<StorePosition> + Send + Sync>,
    /// Makes durable what decisions have used up.
    pub(super) sync: Arc<dyn Fn() -> Result<(), StoreFailure> + Send + Sync>,
}

impl StoreLink {
    /// Returns a link of these functions. `sync` is called before each line that depends on the store, and waits for a disk; the thread that writes
    /// holds it for as long as the journal is open.
    #[must_use]
    pub fn new(
        position: impl Fn() -> Option<StorePosition> + Send + Sync + 'static,
        sync: impl Fn() -> Result<(), StoreFailure> + Send + Sync + 'static,
    ) -> Self {
        Self {
            position: Arc::new(position),
            sync: Arc::new(sync),
        }
    }
}

impl fmt::Debug for StoreLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLink").finish_non_exhaustive()
    }
}
