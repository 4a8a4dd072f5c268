//! Changes of entries, and the trait that describes them for the outbox.

use super::StoreError;

/// An entry that is another than it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChange {
    /// The kind's name in the store.
    pub kind: String,
    pub id: String,
    /// Its value; `None` if there was none.
    pub before: Option<String>,
    /// Its new value; `None` if it was removed.
    pub after: Option<String>,
}

/// Describes changes for the outbox: who makes them, and why.
pub trait Witness: Send + Sync + std::fmt::Debug {
    /// Returns the outbox entry for these changes, JSON; `None` to record nothing. It may be called more than once for the same changes,
    /// and only the last answer counts.
    ///
    /// # Errors
    /// [`StoreError`]: then nothing is changed.
    fn outbox_entry(&self, changes: &[EntryChange]) -> Result<Option<String>, StoreError>;
}
