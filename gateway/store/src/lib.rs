//! State that must survive a crash, and that every replica must know: what was spent, who was enrolled, which tokens and EKs are accepted.
//!
//! The trait [`Store`] is the gateway's interface. It is implemented once, over keys and values that an [`engine`] keeps. [`AnyStore`]
//! opens the engine that the settings name.

#![deny(unreachable_pub)]

mod accept;
#[cfg(feature = "kubernetes")]
pub mod cluster_api;
mod documents;
mod embedded;
pub mod engine;
pub mod engine_layer;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod expected_store;
mod export;
pub mod fence;
mod health;
mod keys;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod leader;
mod maintenance;
mod mark;
mod migration;
mod moved;
mod named;
mod outbox;
mod peek;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod remote;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod replica;
mod schema;
pub mod section;
pub mod settings;
mod sqlite;
mod store_time;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod threads;
mod transact;
mod transaction;
mod transactions;
mod turnstile;
mod upgrade;
mod users;
mod uses;
mod witness;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use accept::{AcceptedStore, Replacement, accept};
use async_trait::async_trait;
pub use embedded::Embedded;
pub use engine::{CHALLENGES_LIMIT_ROWS, Mode};
pub use error::StoreError;
pub use expected_store::{ExpectedStore, mark_file};
pub use export::{CopiedStore, Exported, OutboxState, alone, copy, export, import, place, replicas, undo, verify};
pub use health::StoreHealth;
pub use leader::{LeaderGuard, LeaderLock, LeaderTask};
pub use maintenance::{MaintenanceResult, MaintenanceTask};
pub use mark::{StoreMark, Wrote};
pub use migration::{Contents, ExportError};
pub use named::AnyStore;
pub use outbox::Witnessed;
pub use schema::{StoreSchema, VERSION as SCHEMA};
pub use transact::Transact;
pub use transaction::EntryTransaction;
pub use upgrade::{raise_schema, schema_status};
pub use users::{SchemaStatus, StoreUser};
pub use witness::{EntryChange, Witness};

/// The kinds of entries; each has its own space of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
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
    /// Identities, and the node name of each: the opposite direction.
    NameOf,
    /// The clock of each TPM that has attested, when it did so last, by identity.
    Clock,
    /// Pointers that were seen, by pool and the CAs that they carry.
    Pointer,
    /// Instances of clouds, and to whom each belongs.
    Instance,
    /// Nodes that are revoked, by name or identity.
    Revoked,
    /// Kubelets that have shown their certificate, by name.
    Kubelet,
    /// Attestations for which nothing was approved yet, by identity.
    Attested,
    /// Nodes whose client certificate was approved here, by name.
    Approval,
    /// The last checkpoint of each chain of an attestation log, by the chain's id.
    Checkpoint,
    /// The keys of the seal, where replicas share them.
    SealKey,
    /// Questions about machines, the machines that wait for an answer, and administrators' answers.
    Waiting,
}

impl EntryKind {
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
            Self::Kubelet => "kubelet",
            Self::Attested => "attested",
            Self::Approval => "approval",
            Self::Checkpoint => "checkpoint",
            Self::SealKey => "seal-key",
            Self::Waiting => "waiting",
        }
    }
}

/// Kinds that are forgotten after a time. Uses of other kinds go with the thing they belong to, such as a token.
const REMEMBERED: [EntryKind; 2] = [EntryKind::Challenge, EntryKind::Ticket];

/// A thing of limited use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spendable {
    pub kind: EntryKind,
    pub id: String,
    /// Maximum number of its uses.
    pub limit: u32,
    /// Time until which its uses must be remembered, in seconds since 1970: not before the thing itself has expired.
    pub remember_until: u64,
}

/// A step of time, for the gateway that tends the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The clock's time, in seconds since 1970. It may jump.
    pub now: u64,
    /// Running time of the gateway since its last tick; zero at the start.
    pub passed: Duration,
}

/// Circumstances of a use: by which client, or how late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UseOccasion {
    /// By any client, in time: another use.
    Any,
    /// By a client that can be told from others: another use, or the one that it made a short while ago, again.
    By(UseHolder),
    /// After it has expired: only an unused thing can be used, and after that for a while.
    Late(ExpiredUse),
}

/// Client that uses something, and the rule for what counts as the same use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UseHolder {
    /// Identity of the client: the same text is the same client. Not secret.
    pub id: String,
    /// Seconds after a use in which it can be repeated.
    pub seconds: u64,
    /// Maximum number of its repetitions.
    pub repeats: u32,
}

/// Rule for the use of something that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiredUse {
    /// Time until which its first use is possible, in seconds since 1970.
    pub first_until: u64,
    /// Seconds for which it can be used after its first use, if that was after it had expired.
    pub seconds: u64,
}

/// Result of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spend {
    /// This was another use, within the limit.
    Granted {
        /// 1 for the first use.
        use_number: u32,
    },
    /// This was a repetition of its holder's use.
    Again { use_number: u32 },
    /// The limit was reached before.
    Exhausted,
    /// The thing has expired, and was used before that, or its first use was too long ago.
    TooLate,
}

/// A decision, as the store keeps it until the attestation log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRecord {
    /// Id of the decision: the record's.
    pub decision: String,
    /// Time of the decision, in seconds since 1970.
    pub at: u64,
    /// Record for the log, JSON, if the gateway ends before it has written its own.
    pub record: String,
}

/// A decision that the attestation log does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub decided: DecisionRecord,
    /// Set if a use that it has made counts.
    pub has_use: bool,
    /// Set if it was another gateway's decision, whose log may have it.
    pub adopted: bool,
}

/// An entry of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEntry {
    pub id: String,
    /// Value of the entry, as JSON.
    pub value: String,
}

/// The work of a transaction. It may be run more than once, and only the last run counts: it reads and writes nothing but the transaction.
pub type EntryWork = Box<dyn FnMut(&mut EntryTransaction<'_>) -> Result<(), StoreError> + Send>;

/// Durable, shared state. [`Transact`] has what most callers want: transactions with a result.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Does the work in one transaction. An error of the work is returned, and nothing is written then.
    ///
    /// # Errors
    /// [`StoreError`]: the work's, or the engine's. Whether anything was written is not known if the engine was lost meanwhile.
    async fn work(&self, mode: Mode, work: EntryWork) -> Result<(), StoreError>;

    /// Notes that the attestation log has a decision. Not durable by itself: after a crash, the next start finds the decision in the log.
    fn settle(&self, decision: &str);

    /// Gives back the use of a decision whose answer was not sent; returns whether there was one. The decision itself stays, and is pending
    /// until the log has it.
    ///
    /// # Errors
    /// [`StoreError`]: it is given back later then.
    async fn give_back(&self, decision: &str) -> Result<bool, StoreError>;

    /// Like [`Store::give_back`], as background work. For a decision that may have been written, or not.
    fn give_back_later(&self, decision: &str);

    /// The decisions of this gateway that the log does not have yet, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn pending(&self) -> Result<Vec<Pending>, StoreError>;

    /// Removes an entry; returns whether it existed. The uses of a token are removed with it, at once or soon.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError>;

    /// Checks whether the store has room for another challenge, as far as is known locally.
    ///
    /// # Errors
    /// [`StoreError`]: the client has to retry.
    fn has_room(&self) -> Result<(), StoreError>;

    /// Returns the entry with that id.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<StoreEntry>, StoreError> {
        let id = id.to_owned();
        self.read(move |transaction| transaction.get(kind, &id)).await
    }

    /// Writes an entry if that id has none; otherwise returns the existing one.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn insert(&self, kind: EntryKind, entry: StoreEntry) -> Result<Option<StoreEntry>, StoreError> {
        self.transact(move |transaction| {
            let found = transaction.get(kind, &entry.id)?;
            if found.is_none() {
                transaction.put(kind, entry.clone())?;
            }
            Ok(found)
        })
        .await
    }

    /// Writes an entry, whatever was there.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn put(&self, kind: EntryKind, entry: StoreEntry) -> Result<(), StoreError> {
        self.transact(move |transaction| transaction.put(kind, entry.clone())).await
    }

    /// Returns entries as they are at one moment.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn get_all(&self, wanted: Vec<(EntryKind, String)>) -> Result<Vec<Option<StoreEntry>>, StoreError> {
        self.read(move |transaction| {
            transaction.fetch(wanted.iter().map(|(kind, id)| (*kind, id.as_str())))?;
            wanted.iter().map(|(kind, id)| transaction.get(*kind, id)).collect()
        })
        .await
    }

    /// Writes all entries of `write` if every entry of `expected` is there, unchanged; returns whether it did.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn change(&self, kind: EntryKind, expected: Vec<StoreEntry>, write: Vec<StoreEntry>) -> Result<bool, StoreError> {
        self.transact(move |transaction| {
            transaction.fetch(expected.iter().map(|entry| (kind, entry.id.as_str())))?;
            for entry in &expected {
                if transaction.get(kind, &entry.id)?.as_ref() != Some(entry) {
                    return Ok(false);
                }
            }
            for entry in &write {
                transaction.put(kind, entry.clone())?;
            }
            Ok(true)
        })
        .await
    }

    /// Uses a thing, without a decision. The use is durable before any later decision is recorded.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        if thing.kind == EntryKind::Challenge {
            self.has_room()?;
        }
        // It needs no time: only who comes again, or late, does.
        self.spend_in(Mode::ForRecord, thing).await
    }

    /// Returns how often something was used; 0 also when its uses are forgotten.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        let id = id.to_owned();
        self.read(move |transaction| transaction.uses(kind, &id)).await
    }

    /// All entries of a kind, by id.
    async fn list(&self, kind: EntryKind) -> Result<Vec<StoreEntry>, StoreError>;

    /// Returns the same store with a witness. Each change of an entry is described in the outbox, in the same transaction, until it is
    /// recorded.
    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store>;

    /// Puts something into the outbox that changes nothing in the store.
    async fn append_to_outbox(&self, told: String) -> Result<(), StoreError>;

    /// Returns the oldest outbox entries, at most `most`: after that one, if it is given.
    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<StoreEntry>, StoreError>;

    /// Takes out of the outbox what is recorded, durably.
    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError>;

    /// Makes durable what decisions have used up, claimed, noted and given back so far. The task that records them calls this first. It
    /// waits for a disk.
    ///
    /// # Errors
    /// [`StoreError`]: no client may learn what was decided.
    fn sync(&self) -> Result<(), StoreError>;

    /// Returns the maximum number of entries that one transaction can change; `None` if there is none.
    fn atomic_writes_limit(&self) -> Option<usize>;

    /// Returns the store's id and mark, as far as is known locally. `None` if it cannot tell.
    fn store_mark(&self) -> Option<StoreMark> {
        None
    }

    /// Returns the store's mark, if it was learnt within the last seconds without a request. As long as it stays the same, nothing was
    /// written.
    fn recent_mark(&self) -> Option<u64> {
        None
    }

    /// Writes the store's mark to the file next to it, so that an older store in its place is detected.
    async fn keep_mark(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the file next to which the mark is written. `None` if it has no place.
    fn mark_path(&self) -> Option<&Path> {
        None
    }

    /// Registers this gateway as the only one with its state that decides. [`StoreError::Copied`] reports that another one serves. The
    /// caller keeps others from serving with the same state folder.
    async fn serve(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Registers this process as a user of the store that decides nothing, so that the store is not raised to a schema that it does not
    /// know.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn join(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns which of several gateways this is; `None` if it is the only one.
    fn serves_as(&self) -> Option<&str> {
        None
    }

    /// Leads a work that only one of several gateways does at a time, if no other leads it. Callers use [`LeaderTask`].
    async fn acquire_leadership(&self, _work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        Ok(Some(LeaderGuard::alone()))
    }

    /// Returns the store time, in seconds since 1970, and starts it if that was not done yet. Only [`Store::forget_expired`] advances it.
    async fn time(&self, now: u64) -> Result<u64, StoreError>;

    /// For the gateway that tends the store. Advances the store time towards the clock, step by step. Forgets challenges and tickets that
    /// expired a day before it, and the oldest challenges beyond the limit, some at a time. Returns the store time, in seconds since 1970.
    /// A clock that jumps ahead makes nothing forgotten at once, and one that jumps back makes nothing valid again.
    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError>;
}
