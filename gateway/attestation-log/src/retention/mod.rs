//! What is kept of the log, and how what is past that rule is removed: never without a record that says so, and never with what others need.
//!
//! Of a segment that goes, first its checkpoints are kept beside the log, and it is noted which blobs may go with it; then the log says, signed, that it
//! is removed; then it is. A blob goes last, when no file of the log names it any more. Killed at whatever step, the next pass begins with what was noted,
//! and a segment that is there still is removed as if nothing had been said of it.

mod content;
mod kept_lines;
mod named;
mod pass;
mod survey;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
mod unnamed;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_system::files::FileError;

pub use pass::{Held, Retention, Tended};

use super::blobs::BlobError;
use super::found_decisions::PendingDecision;
use super::journal_error::JournalError;
use super::store_link::StoreFailure;

/// Where checkpoints of segments stand that were removed, beside the log.
pub const KEPT_NAME: &str = "checkpoints.jsonl";

/// Those of this log.
#[must_use]
pub fn kept_file(log: &Path) -> PathBuf {
    log.with_file_name(KEPT_NAME)
}

/// How much of the log is kept. What is past either is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rule {
    /// So long after its last line was written.
    pub age: Option<Duration>,
    /// So many bytes, on the disk, with the log that is written.
    pub bytes: Option<u64>,
}

/// The gateway's pending decisions, and the time that it trusts.
pub trait PendingDecisions: Sync {
    /// Returns the trusted time, in seconds since 1970, at this time of the clock: one that jumps ahead makes nothing old at once.
    fn trusted_time(&self, now: u64) -> impl Future<Output = Result<u64, StoreFailure>> + Send;

    /// Returns the decisions that are not known to be recorded, the oldest first.
    fn pending(&self) -> impl Future<Output = Result<Vec<PendingDecision>, StoreFailure>> + Send;
}

/// Nothing more is removed for now.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Store(StoreFailure),
    /// A segment is not as it was written.
    #[error("{path} is not as it was written: {problem}; it is kept, and all that comes after it: `attest-audit audit` says more")]
    Altered { path: PathBuf, problem: String },
    /// It is called as a segment is, and nobody knows what it holds.
    #[error("{path} is called as a segment of the attestation log, and cannot be read: {problem}; it stays until you move it elsewhere")]
    Odd { path: PathBuf, problem: String },
    /// What was noted is not that.
    #[error("{path} says of no blobs that they may go: {problem}; remove it, and they stay")]
    Malformed { path: PathBuf, problem: String },
    /// Records may be written where nobody looks for names of blobs.
    #[error("the attestation log was moved, and no new one is begun: blobs stay for now")]
    Moved,
    /// The thread that does it is gone.
    #[error("the gateway ends")]
    Ends,
}

impl RetentionError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
