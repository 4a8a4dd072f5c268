//! Sources and targets of a store's contents that are exported, imported or copied, and the errors of that.

use std::io;

use serde::{Deserialize, Serialize};

use super::engine::{KeyRange, KeyValue};
use super::known::Known;
use super::moved::Moved;
use super::{StoreError, StoreMark};

/// The reason why a store was not exported, imported or copied.
#[derive(Debug, thiserror::Error)]
pub enum HouseError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be written or read.
    #[error("the file cannot be written or read: {0}")]
    Io(#[from] io::Error),
    /// It is no whole, unaltered file of a store.
    #[error("line {line} {problem}: nothing was taken from the file")]
    File { line: u64, problem: String },
    /// There is something in the store.
    #[error(
        "{0} keys are in the store: what another holds comes into an empty one. Move the store away first, if that one is not wanted any more"
    )]
    NotEmpty(u64),
    /// A gateway serves, so that the store goes on.
    #[error("{place}: a gateway on {hosts} serves: stop it first; one that was killed counts for 15 s more")]
    Served { place: String, hosts: String },
    /// The store has gone on while it was read.
    #[error("the store was written to meanwhile, so that nothing was taken: stop the gateways that use it, then run the command again")]
    WentOn,
    /// There is nothing to take back.
    #[error("{0} was not moved: there is nothing to take back")]
    NotMoved(String),
    /// What was moved is in use there, or could be.
    #[error(
        "{to} holds all that was moved there, as store {store}: it is not taken back, as it may have gone on. Use the settings of that one; to \
         come back from there: copy it back, into an empty store"
    )]
    Whole { to: String, store: StoreMark },
    /// What arrived is not what was read.
    #[error("{} keys with digest {} were read, and {} with {} have arrived: nothing was taken", .read.count, .read.sha256, .arrived.count, .arrived.sha256)]
    Differs { read: Contents, arrived: Contents },
}

/// What a store holds, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// The number of its keys.
    pub count: u64,
    /// SHA-256 of the contents, in hexadecimal.
    pub sha256: String,
}

/// A store as it is at one moment, whoever writes to it meanwhile.
pub(super) trait Source {
    /// Which one, and how far it had come at that moment.
    fn store(&self) -> StoreMark;

    /// The first of a range, so many at most.
    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// Which one it is now, and how far it has come; what is read from here on may be of another moment.
    fn store_now(&mut self) -> Result<StoreMark, StoreError>;

    /// Where it has gone, if it was moved.
    fn moved(&self) -> Option<&Moved>;

    /// Has it say that it has gone there, if it is as it was at that moment, and nobody serves on it: whoever has it open writes and reads nothing more.
    fn move_to(&mut self, to: &Moved) -> Result<(), HouseError>;

    /// Has it be again what it was before it was moved.
    fn take_back(&mut self) -> Result<(), HouseError>;
}

/// An empty store that takes what another holds. It is none before that is finished, and what it has taken by then is nobody's.
pub(super) trait Target {
    /// What is known of the store in whose place it comes.
    fn known(&self) -> &Known;

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError>;

    /// What has arrived, from the first key on.
    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// Makes a store of it, another one than that which it was taken from, by this name.
    fn finish(&mut self, from: &StoreMark, id: &str) -> Result<StoreMark, StoreError>;
}
