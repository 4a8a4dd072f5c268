//! Sources and targets of a store's contents that are exported, imported or copied, and the errors of that.

use std::io;

use attest_system::newer_format::NewerFormat;
use serde::{Deserialize, Serialize};

use super::engine::{KeyRange, KeyValue};
use super::expected_store::ExpectedStore;
use super::moved::Moved;
use super::schema::StoreSchema;
use super::{StoreError, StoreMark};

/// The reason why a store was not exported, imported or copied.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be written or read.
    #[error("the file cannot be written or read: {0}")]
    Io(#[from] io::Error),
    /// A newer release has exported it.
    #[error("the file has {0}: nothing was imported")]
    Newer(#[source] NewerFormat),
    /// It is not a complete, unaltered file of a store.
    #[error("line {line} {problem}: nothing was imported")]
    File { line: u64, problem: String },
    /// There is something in the store.
    #[error(
        "the store holds {0} keys, but an import requires an empty store. If you do not need the existing store, remove it first, then run the command again"
    )]
    NotEmpty(u64),
    /// A gateway serves, so that the store may change.
    #[error("{place}: a gateway on {hosts} serves; stop it first: `systemctl stop attest-gateway`. After a kill, retry in 15 s")]
    Served { place: String, hosts: String },
    /// The store has gone on while it was read.
    #[error(
        "the store was written to during the command: nothing was copied. Stop the gateways that use it (`systemctl stop attest-gateway`), then run the command again"
    )]
    WentOn,
    /// The store was not moved.
    #[error("{0} was not migrated: nothing to undo")]
    NotMoved(String),
    /// The moved content is in use there, or could be.
    #[error(
        "{to} holds the complete migrated data, as store {store}, and may have changed since: not undone. Configure that store; to \
         return, copy it back into an empty store"
    )]
    Whole { to: String, store: StoreMark },
    /// The content that arrived is not the content that was read.
    #[error("read {} keys with digest {}, but {} with {} arrived: nothing was copied", .read.count, .read.sha256, .arrived.count, .arrived.sha256)]
    Differs { read: Contents, arrived: Contents },
}

/// Summary of a store's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// The number of its keys.
    pub count: u64,
    /// SHA-256 of the contents, in hexadecimal.
    pub sha256: String,
}

/// Snapshot of a store, unaffected by other writers.
pub(super) trait MigrationSource {
    /// Returns the store's id, and its mark at that moment.
    fn store(&self) -> StoreMark;

    /// Returns the first `most` values of a range.
    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// Returns the store's current id and mark; later reads may be of another moment.
    fn store_now(&mut self) -> Result<StoreMark, StoreError>;

    /// Returns the store's schema.
    fn schema(&self) -> StoreSchema;

    /// Returns the new place of the store, if it was moved.
    fn moved(&self) -> Option<&Moved>;

    /// Records the new place, if the store is unchanged since that moment and no gateway serves on it. From then on a process that has it
    /// open writes and reads nothing more.
    fn move_to(&mut self, to: &Moved) -> Result<(), ExportError>;

    /// Has it be again what it was before it was moved.
    fn undo_move(&mut self) -> Result<(), ExportError>;
}

/// An empty store that receives another's content. Until that is finished it is not a store, and no process uses what has arrived.
pub(super) trait MigrationTarget {
    /// Returns what is known of the store that it replaces.
    fn expected_store(&self) -> &ExpectedStore;

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError>;

    /// Returns a page of what has arrived, from the first key on.
    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// Makes it a store with this id, other than the store that it was taken from, in the schema of that.
    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError>;
}
