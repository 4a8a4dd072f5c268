//! Errors of the store.

use std::path::PathBuf;

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
    /// The tables are those of a newer release.
    #[error("{path} has schema version {found}, this release knows {known} at most: run the release that wrote it, or a newer one")]
    Schema {
        path: PathBuf,
        /// Schema version of the file.
        found: i64,
        /// The newest one that is known here.
        known: i64,
    },
    /// The tables are not those of a store.
    #[error("{path} is not a store of this release: {missing}")]
    Foreign {
        path: PathBuf,
        /// SQLite's error, which names the missing part.
        missing: String,
    },
    /// The store is missing, although there was one.
    #[error(
        "{path} is not there, or is empty, but {known}: without it revoked nodes are trusted and spent tickets are good again. \
         Bring it back; if it is lost: `attest-gateway store accept`"
    )]
    Lost {
        path: PathBuf,
        /// File that names the store.
        known: String,
    },
    /// A copy of a store is incomplete.
    #[error(
        "{0} is not whole: a copy into it (store import, store copy) came to no end. Do it again; or remove what is there, if it is not wanted: \
         etcdctl del --prefix, or kubectl delete secret"
    )]
    Unfinished(PathBuf),
    /// Another store is in its place.
    #[error(
        "{path} is {found}, but {by} knows store {known}: another one may trust nodes that are revoked. \
         Bring the right one back; if this one is to be used: `attest-gateway store accept`"
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
        "{path} was moved to {to} (store copy), and nobody goes on with it here: use the settings of that one. If the copy came to no end: do it \
         again, or take it back (store copy --undo). If what was moved is lost there: `attest-gateway store accept`"
    )]
    Moved {
        path: PathBuf,
        /// Place that the content was moved to.
        to: String,
    },
    /// The store is one from before.
    #[error(
        "{path} is at mark {found}, but it had come to {known}: what was revoked or spent since would be forgotten. \
         Bring the newer one back; if it is lost: `attest-gateway store accept`"
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
        "{path} was set back: {why}. What was revoked or spent since would be forgotten. \
         Bring the newer one back; if it is lost: `attest-gateway store accept`"
    )]
    SetBack {
        path: PathBuf,
        /// Source of this finding, and its evidence.
        why: String,
    },
    /// The store is the known one.
    #[error("{0} is the store that is known: there is nothing to accept")]
    Known(PathBuf),
    /// The file has been deleted, replaced or set back since it was opened.
    #[error("{0} was deleted, replaced or set back while it was in use: bring it back and start the gateway again")]
    Replaced(PathBuf),
    /// The file and its log of transactions do not fit.
    #[error("{path} is damaged: {problem}; were files of another state put beside it?")]
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
        "a {kind} that expires at {expires} may have been used: what expired until {until} is forgotten (seconds since 1970). \
         The clock was set back: set it right, if it is not; what expires later than that is taken"
    )]
    Forgotten {
        kind: &'static str,
        expires: u64,
        /// Time up to which uses are forgotten.
        until: u64,
    },
    /// A document that this release cannot read.
    #[error("what the store has under {key} cannot be read: {source}. If a newer release has written it: run that one")]
    Document { key: String, source: serde_json::Error },
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
        "a gateway on {host} serves as replica {replica} ({place}), and so would this one: was its state folder copied? Each gateway has \
         one of its own: begin with an empty one here, or stop the other. If that was killed, its lease is over soon: start again then"
    )]
    Copied {
        replica: String,
        /// Host of the other gateway.
        host: String,
        place: String,
    },
    /// The leadership of a work was lost: another gateway leads it, or none does.
    #[error("another gateway may have begun {work} meanwhile: this one has left it")]
    Led {
        /// What only one does.
        work: String,
    },
    /// The store was closed, or its thread is gone.
    #[error("the store is closed")]
    Closed,
    /// An entry that this release did not write.
    #[error("the {kind} entry {id} cannot be read: {source}. If a newer release has written it: run that one")]
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
