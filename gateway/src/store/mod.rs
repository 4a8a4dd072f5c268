//! What must be known again after a crash, and by every replica: what was spent, who was enrolled, which tokens and EKs are accepted.
//!
//! The trait is as small as a key-value store with transactions allows: a second implementation (etcd: a transaction on the key's
//! revision for [`Store::spend`] and [`Store::insert`], a lease for expiry) has to give these and no more.

mod embedded;

use async_trait::async_trait;
pub use embedded::Embedded;

/// The kinds of entries; each has its own space of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Challenges that were answered, by id.
    Challenge,
    /// Tickets that were presented, by id.
    Ticket,
    /// Uses of provisioning tokens, by the token's hash.
    TokenUse,
    /// Provisioning tokens, by hash.
    Token,
    /// Allowlisted EKs, by digest.
    Ek,
    /// Node names, and the identity each belongs to.
    Name,
    /// Identities, and the name each goes by: the other direction.
    NameOf,
    /// The last clock of each identity's TPM.
    Clock,
    /// Pointers that were seen, by pool and the CAs that they carry.
    Pointer,
    /// Instances of clouds, and to whom each belongs.
    Instance,
    /// Nodes whose certificates are not taken any longer, by name.
    Revoked,
}

impl Kind {
    /// The kind's name in the store.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Challenge => "challenge",
            Self::Ticket => "ticket",
            Self::TokenUse => "token-use",
            Self::Token => "token",
            Self::Ek => "ek",
            Self::Name => "name",
            Self::NameOf => "name-of",
            Self::Clock => "clock",
            Self::Pointer => "pointer",
            Self::Instance => "instance",
            Self::Revoked => "revoked",
        }
    }
}

/// One thing of limited use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spendable {
    /// Its kind.
    pub kind: Kind,
    /// Its id.
    pub id: String,
    /// How often it may be used.
    pub limit: u32,
    /// Until when its use must be remembered, seconds since 1970: not before the thing itself has expired.
    pub remember_until: u64,
}

/// What [`Store::spend`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spend {
    /// This was a use within the limit.
    Granted {
        /// 1 for the first use.
        use_number: u32,
    },
    /// The limit was reached before.
    Exhausted,
}

/// An entry of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// Its value, JSON.
    pub value: String,
}

/// The store cannot answer; whatever depended on it is refused with 503.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed.
    #[error("the store failed: {0}")]
    Database(#[from] rusqlite::Error),
    /// Files around the database.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The store was closed, or its thread is gone.
    #[error("the store is closed")]
    Closed,
    /// An entry that this release did not write.
    #[error("the {kind} entry {id} cannot be read: {source}")]
    Entry {
        /// Its kind.
        kind: &'static str,
        /// Its id.
        id: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Durable, shared state. Every method returns only when what it did would survive a crash.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Uses something once more, atomically: of two that race for the last use, one gets it.
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError>;

    /// How often something was used; 0 also when its uses are forgotten.
    async fn uses(&self, kind: Kind, id: &str) -> Result<u32, StoreError>;

    /// Writes an entry if there is none with that id; gives the one there is otherwise.
    async fn insert(&self, kind: Kind, entry: Entry) -> Result<Option<Entry>, StoreError>;

    /// Writes an entry, whatever was there.
    async fn put(&self, kind: Kind, entry: Entry) -> Result<(), StoreError>;

    /// Reads an entry.
    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, StoreError>;

    /// Removes an entry; says whether there was one.
    async fn remove(&self, kind: Kind, id: &str) -> Result<bool, StoreError>;

    /// Writes all entries of `write` if every entry of `expected` is there, unchanged; says whether it did. Two that race with the same
    /// expectation: one of them writes.
    async fn change(&self, kind: Kind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError>;

    /// All entries of a kind, by id.
    async fn list(&self, kind: Kind) -> Result<Vec<Entry>, StoreError>;

    /// Forgets uses that need not be remembered any longer at `now` (seconds since 1970).
    async fn forget_expired(&self, now: u64) -> Result<(), StoreError>;
}

/// Makes the folder of private state, for its owner only.
///
/// # Errors
/// The file system's.
pub fn make_private_folder(folder: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
