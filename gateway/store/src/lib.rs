//! What must be known again after a crash, and by every replica: what was spent, who was enrolled, which tokens and EKs are accepted.
//!
//! The trait is what the gateway asks for. What is said of it here is done once, over keys and values that an [`engine`] keeps. Which
//! engine that is, [`AnyStore`] knows, which opens what the settings name.

#![deny(unreachable_pub)]

mod accept;
mod believed;
#[cfg(feature = "kubernetes")]
pub mod cluster_api;
mod documents;
mod embedded;
pub mod engine;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fence;
mod health;
mod held;
mod holders;
mod house;
mod keys;
mod known;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod late;
mod lead;
mod mark;
mod migration;
mod moved;
mod named;
mod outbox;
mod outcomes;
mod peek;
mod pending;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod remote;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod replica;
mod schema;
mod seen;
pub mod settings;
mod sqlite;
mod tend;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
mod threads;
pub mod through;
mod transactions;
mod turnstile;
mod uses;
mod witness;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use accept::{Accepted, Replacement, accept};
use async_trait::async_trait;
pub use embedded::Embedded;
pub use engine::CHALLENGES_LIMIT_ROWS;
pub use error::StoreError;
pub use health::Health;
pub use house::{Copied, Exported, alone, copy, export, import, place, undo};
pub use known::{Known, mark_file};
pub use lead::{Held, Lead, Turn};
pub use mark::{StoreMark, Wrote};
pub use migration::{Contents, HouseError};
pub use named::AnyStore;
pub use outbox::Witnessed;
pub use seen::{Anew, Deciding, Reading, Seen};
pub use tend::{Tended, Tending};
pub use witness::{Change, Witness};

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
    /// Identities, and the name each goes by: the other direction.
    NameOf,
    /// The clock of each TPM that has attested, when it did so last, by identity.
    Clock,
    /// Pointers that were seen, by pool and the CAs that they carry.
    Pointer,
    /// Instances of clouds, and to whom each belongs.
    Instance,
    /// Who gets nothing any more, by name or identity.
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
    /// What machines have shown that no reference value has, which of them wait, and what an administrator has said.
    NewValue,
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
            Self::NewValue => "new-value",
        }
    }
}

/// What is forgotten by time. What is not here goes with what it belongs to: a token's uses.
const REMEMBERED: [EntryKind; 2] = [EntryKind::Challenge, EntryKind::Ticket];

/// One thing of limited use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spendable {
    pub kind: EntryKind,
    pub id: String,
    /// How often it may be used.
    pub limit: u32,
    /// Until when its use must be remembered, seconds since 1970: not before the thing itself has expired.
    pub remember_until: u64,
}

/// How time goes on for whoever holds the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// What the clock says, seconds since 1970. It may jump.
    pub now: u64,
    /// How long the gateway has run since it said so last; zero at the start.
    pub passed: Duration,
}

/// By whom, or when, something is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occasion {
    /// Whoever it is, and in time: one use more.
    Any,
    /// Somebody who can be told from others: one use more, or the one that was made a short while ago, again.
    By(Holder),
    /// It has expired: only what was not used before is used, and after that for a while.
    Late(Late),
}

/// Who uses something, and what of it counts as the same use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who it is; the same text is the same one. No secret.
    pub id: String,
    /// How long after a use it can be made again, seconds.
    pub seconds: u64,
    /// How often it can be made again.
    pub repeats: u32,
}

/// How something is used that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// Until when it can be used first, seconds since 1970.
    pub first_until: u64,
    /// For how long after its first use it can be used, seconds, if that came after it had expired.
    pub seconds: u64,
}

/// What [`Store::spend`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spend {
    /// This was a use within the limit.
    Granted {
        /// 1 for the first use.
        use_number: u32,
    },
    /// This was a use that its holder had made before.
    Again { use_number: u32 },
    /// The limit was reached before.
    Exhausted,
    /// It has expired, and was used before that, or its first use was too long ago.
    TooLate,
    /// It has expired, and whether it was used before that is not decided yet.
    Undecided,
}

/// A decision that has used something up, or has claimed something, and is not recorded yet. If it never is, because the gateway was killed,
/// nobody got anything for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Id of the decision: the record's.
    pub decision: String,
    /// When, seconds since 1970.
    pub at: u64,
}

/// What came of [`Store::change_unless_served`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeUnlessServed {
    Changed,
    /// The entries are other ones than was expected: nothing was written.
    Otherwise,
    /// The gateway with this id serves: nothing was written.
    Serves(String),
}

/// An entry of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    /// Its value, JSON.
    pub value: String,
}

/// An entry as it is to be from now on; `None` is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    pub kind: EntryKind,
    pub id: String,
    pub value: Option<String>,
}

/// What a decision writes that is not recorded yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub entry: Entry,
    /// The value in whose place it may be put, if there is one.
    pub instead_of: Option<String>,
}

/// Durable, shared state. Every method returns only when what it did would survive a crash; those by which a decision uses something up, claims, notes or
/// gives back only when it would survive the end of the process: what they did is durable before a later [`Store::sync`] ends, and before anything that is done
/// after them.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Uses something once more, atomically: of two that race for the last use, one gets it.
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError>;

    /// As [`Store::spend`], on this occasion, at the time of the decision; and remembers, in the same transaction, which decision it was for:
    /// until that is settled or given back. A use that was made again is given back when all have given it back that made it.
    ///
    /// If something that the decision was made from is not as it was, as of this transaction, it is [`StoreError::Changed`], and nothing is
    /// used up; so for [`Store::claim`] and [`Store::share`].
    async fn spend_for(&self, thing: Spendable, occasion: Occasion, decision: Deciding) -> Result<Spend, StoreError>;

    /// Says, for a decision that uses nothing up, that all it was made from stood there at one moment: [`StoreError::Changed`] if it does not any more.
    async fn confirm(&self, seen: Seen) -> Result<(), StoreError>;

    /// What [`Store::spend_for`] would find at this time, seconds since 1970. Nothing is used up.
    async fn would_spend(&self, thing: Spendable, occasion: Occasion, at: u64) -> Result<Spend, StoreError>;

    /// Writes an entry, if there is none with that id or the one that it may replace; gives the one there is otherwise. Remembers, in the
    /// same transaction, which decision it was for: until that is settled or given back.
    async fn claim(&self, kind: EntryKind, claim: Claim, decision: Deciding) -> Result<Option<Entry>, StoreError>;

    /// Lets an entry that is there stand for one more decision: given back by whoever wrote it, it stays until this one is given back, too.
    /// Says whether it is there, unchanged.
    async fn share(&self, kind: EntryKind, entry: Entry, decision: Deciding) -> Result<bool, StoreError>;

    /// Says that a decision is recorded: what it used up stays used, and what it claimed is claimed. Not durable by itself; what a crash makes of it is found out from
    /// the log.
    fn settle(&self, decision: &str);

    /// Gives back what a decision used up for which nobody got anything: its use, with its number, is free again; and what it claimed: the
    /// entry is gone, or what it was before. Says whether there was anything; a second time there is not.
    async fn give_back(&self, decision: &str) -> Result<bool, StoreError>;

    /// The decisions that are neither settled nor given back.
    async fn pending(&self) -> Result<Vec<Pending>, StoreError>;

    /// How often something was used; 0 also when its uses are forgotten.
    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError>;

    /// Writes an entry if there is none with that id; gives the one there is otherwise. What this, [`Store::put`], [`Store::change`], [`Store::rewrite`] or
    /// [`Store::remove`] has written stays, whatever becomes of decisions that have written the same, or something else, before.
    async fn insert(&self, kind: EntryKind, entry: Entry) -> Result<Option<Entry>, StoreError>;

    /// As [`Store::put`], all of them at once, of what a decision that is about to be recorded was about.
    async fn note(&self, kind: EntryKind, entries: Vec<Entry>) -> Result<(), StoreError>;

    /// Writes an entry, whatever was there.
    async fn put(&self, kind: EntryKind, entry: Entry) -> Result<(), StoreError>;

    /// Reads an entry.
    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<Entry>, StoreError>;

    /// Reads entries, all at one moment: for no more than one costs.
    async fn get_all(&self, wanted: Vec<(EntryKind, String)>) -> Result<Vec<Option<Entry>>, StoreError>;

    /// Whether there is an entry with that id, whatever becomes of the decisions that are neither settled nor given back.
    async fn stays(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError>;

    /// Whether an entry is there, unchanged, and nothing becomes of it by decisions that are neither settled nor given back.
    async fn stands(&self, kind: EntryKind, entry: Entry) -> Result<bool, StoreError>;

    /// Removes an entry; says whether there was one. With a token its uses go, at once or soon.
    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError>;

    /// Writes all entries of `write` if every entry of `expected` is there, unchanged; says whether it did. Two that race with the same
    /// expectation: one of them writes.
    async fn change(&self, kind: EntryKind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError>;

    /// Changes entries as [`Store::change`] does, if at that moment none of these gateways serves, by their ids ([`Store::serves_as`]). A
    /// gateway that was killed serves until its lease is over. The one gateway of a store of its own has no lease, and is not checked.
    async fn change_unless_served(
        &self,
        gateways: Vec<String>,
        kind: EntryKind,
        expected: Vec<Entry>,
        write: Vec<Entry>,
    ) -> Result<ChangeUnlessServed, StoreError>;

    /// Writes and removes entries of any kinds, all or none, if all that this was decided from is unchanged: [`StoreError::Changed`] if not.
    async fn rewrite(&self, seen: Seen, rewrites: Vec<Rewrite>) -> Result<(), StoreError>;

    /// All entries of a kind, by id.
    async fn list(&self, kind: EntryKind) -> Result<Vec<Entry>, StoreError>;

    /// The same store, whose changes of entries are told of, each in the transaction that makes it: they wait in the outbox until they are recorded.
    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store>;

    /// Puts something into the outbox that changes nothing in the store.
    async fn tell(&self, told: String) -> Result<(), StoreError>;

    /// What waits in the outbox, the oldest first: after that one, so many at most.
    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError>;

    /// Takes out of the outbox what is recorded, durably.
    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError>;

    /// Makes durable what decisions have used up, claimed, noted and given back before: the one who records them does so first. It waits for a disk.
    ///
    /// # Errors
    /// [`StoreError`]: nobody may be told what was decided.
    fn sync(&self) -> Result<(), StoreError>;

    /// Which store this is and how far it has come, as far as is known here. `None` if it cannot say.
    fn standing(&self) -> Option<StoreMark> {
        None
    }

    /// Returns the store's mark, if it was learnt within the last seconds without a request. As long as it stays the same, nothing was
    /// written.
    fn recent_mark(&self) -> Option<u64> {
        None
    }

    /// Writes down beside the store how far it has come, so that an older one in its place is noticed.
    async fn keep_mark(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The file beside which that is written down. `None` if there is no place for it.
    fn beside(&self) -> Option<&Path> {
        None
    }

    /// From here on this gateway decides, and no other that has the same state: [`StoreError::Copied`] says that one serves. The caller keeps
    /// others from serving with the same state folder.
    async fn serve(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Which of several gateways this is. `None`: there is one alone.
    fn serves_as(&self) -> Option<&str> {
        None
    }

    /// Leads a work that only one of several gateways does at a time, if no other does. [`Turn`] is how to ask for it.
    async fn lead(&self, _work: &str) -> Result<Option<Lead>, StoreError> {
        Ok(Some(Lead::alone()))
    }

    /// The store's own time, in seconds since 1970, which begins if there is none yet. It does not go on by this: that is
    /// [`Store::forget_expired`]'s.
    async fn time(&self, now: u64) -> Result<u64, StoreError>;

    /// For the one who tends the store. Lets the store's own time follow the clock, step by step, and forgets challenges and tickets that expired a day before it, and
    /// the oldest challenges beyond what there is room for, some at a time. Gives that time, in seconds since 1970: a clock that jumps ahead makes nothing forgotten at once, and one that jumps back makes nothing good again.
    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError>;
}
