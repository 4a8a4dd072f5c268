//! Errors of the store.

use std::path::PathBuf;

use attest_system::newer_format::NewerFormat;

use super::StoreMark;

/// The store cannot answer; whatever depended on it is refused with 503.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine that keeps it failed.
    #[error("the store failed: {problem} ({engine}, {place}): {advice}")]
    Engine {
        /// Name of the engine, such as `etcd`.
        engine: &'static str,
        /// Its file or its endpoints.
        place: String,
        /// The failure, as the engine reports it.
        problem: String,
        /// What can be done.
        advice: String,
    },
    /// The engine did not answer. It may later, with nothing changed here.
    #[error("the store failed: {problem} ({engine}, {place}): {advice}")]
    Unanswered {
        /// Name of the engine, such as `etcd`.
        engine: &'static str,
        /// Its endpoints, or its object.
        place: String,
        /// What was heard instead.
        problem: String,
        /// What can be done.
        advice: String,
    },
    /// Files around the database.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The store has the schema of a newer release.
    #[error("{path} has {newer}")]
    Schema {
        path: PathBuf,
        #[source]
        newer: NewerFormat,
    },
    /// A process that uses the store does not know the schema that it should be raised to.
    #[error(
        "{place} was left as it is: schema {schema} is unknown to {users}. Install this release there, or stop it, then run the command again"
    )]
    Behind {
        place: String,
        schema: i64,
        /// Hosts of the processes, and the release of each.
        users: String,
    },
    /// There is no store yet.
    #[error("{0} does not exist yet: the gateway creates it at its first start")]
    Missing(PathBuf),
    /// The tables are not those of a store.
    #[error("{path} is not a store of this release: {missing}")]
    Foreign {
        path: PathBuf,
        /// SQLite's error, which names the missing part.
        missing: String,
    },
    /// The store is missing, although there was one.
    #[error(
        "{path} is missing or empty, but {known}: without it, revoked nodes would be trusted and spent tickets valid again. \
         Restore it; if it is lost: `attest-gateway store accept`"
    )]
    Lost {
        path: PathBuf,
        /// File that names the store.
        known: String,
    },
    /// A copy of a store is incomplete.
    #[error(
        "{0} is incomplete: `attest-gateway restore` or `attest-gateway store copy` did not finish. Run that command again, or remove the \
         data: etcdctl del --prefix, or kubectl delete secret"
    )]
    Unfinished(PathBuf),
    /// Another store is in its place.
    #[error(
        "{path} is {found}, but {by} expects store {known}: another store may trust revoked nodes. \
         Restore the expected one; to use this one: `attest-gateway store accept`"
    )]
    Other {
        path: PathBuf,
        found: String,
        known: Box<StoreMark>,
        /// File that names the known store.
        by: String,
    },
    /// The store's content was moved to another place.
    #[error(
        "{path} was migrated to {to}: configure that store. If the copy did not finish, run it again, or undo it: \
         `attest-gateway store copy --to GATEWAY.TOML --undo`. If the data there is lost: `attest-gateway store accept`"
    )]
    Moved {
        path: PathBuf,
        /// Place that the content was moved to.
        to: String,
    },
    /// The store is one from before.
    #[error(
        "{path} is at mark {found}, but {known} was seen before: later revocations and uses would be forgotten. \
         Restore the newer store; if it is lost: `attest-gateway store accept`"
    )]
    Older {
        path: PathBuf,
        /// Mark of the store that was found.
        found: u64,
        /// The mark it had.
        known: u64,
    },
    /// The store was rolled back, although others have raised its mark since.
    #[error(
        "{path} was rolled back: {why}. Later revocations and uses would be forgotten. \
         Restore the newer store; if it is lost: `attest-gateway store accept`"
    )]
    SetBack {
        path: PathBuf,
        /// Source of this finding, and its evidence.
        why: String,
    },
    /// The store is the known one.
    #[error("{0} is the expected store: nothing to accept")]
    Known(PathBuf),
    /// The file has been deleted, replaced or set back since it was opened.
    #[error("{0} was deleted, replaced or rolled back while in use: restore it and restart the gateway")]
    Replaced(PathBuf),
    /// The file and its log of transactions do not fit.
    #[error("{path} is damaged: {problem}; check whether its -wal file belongs to another database")]
    Damaged {
        path: PathBuf,
        /// What the engine says.
        problem: String,
    },
    /// The file with the store's mark cannot be read.
    #[error("{path} cannot be read: {source}; if it is lost: `attest-gateway store accept`")]
    Mark { path: PathBuf, source: serde_json::Error },
    /// The use of a thing may have been forgotten.
    #[error(
        "a {kind} that expires at {expires} may have been used: uses that expired until {until} are forgotten (seconds since 1970). \
         The clock was set back: correct it if it is wrong; credentials that expire later are accepted"
    )]
    Forgotten {
        kind: &'static str,
        expires: u64,
        /// Time up to which uses are forgotten.
        until: u64,
    },
    /// A document that this release cannot read.
    #[error("the store's key {key} cannot be read: {source}. If a newer release has written it, run that release")]
    Document { key: String, source: serde_json::Error },
    /// A newer release has written the value of a key.
    #[error("the store's key {key} has {newer}")]
    Newer {
        key: String,
        #[source]
        newer: NewerFormat,
    },
    /// A key that no release writes.
    #[error("the store has a key that no release writes: {key}")]
    Key { key: String },
    /// The work of a transaction has returned an error of its own.
    #[error("the transaction was refused by its work")]
    Refused,
    /// The engine has to begin a transaction again, which it does by itself.
    #[error("the transaction was interrupted")]
    Interrupted,
    /// The system's random generator failed.
    #[error("the system's random generator failed")]
    Random,
    /// Another gateway serves as this one.
    #[error(
        "a gateway on {host} already serves as replica {replica} ({place}). If its state folder was copied here, start with an empty \
         state folder. If that gateway was killed, start this one again when its lease has expired"
    )]
    Copied {
        replica: String,
        /// Host of the other gateway.
        host: String,
        place: String,
    },
    /// The leadership of a work was lost: another gateway leads it, or none does.
    #[error("lost leadership of {work}; aborted")]
    Led {
        /// What only one does.
        work: String,
    },
    /// The store was closed, or its thread is gone.
    #[error("the store is closed")]
    Closed,
    /// An entry that this release did not write.
    #[error("the {kind} entry {id} cannot be read: {source}. If a newer release has written it, run that release")]
    Entry {
        kind: &'static str,
        id: String,
        source: serde_json::Error,
    },
}

impl StoreError {
    /// Returns whether the store may answer later, with nothing changed here.
    #[must_use]
    pub const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }
}
