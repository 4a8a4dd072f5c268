//! Retention of the log: removes segments beyond its rule, never without a record of the removal, and never with anything that is still
//! needed.
//!
//! Before a segment is removed, its checkpoints are kept next to the log, and a note lists the blobs that may go with it. Then the log
//! records the removal, signed; then the segment is removed. A blob goes last, when no file of the log names it. After a kill at any step,
//! the next pass begins with the note. A segment that still exists is removed as if the log had not recorded it.

mod content;
mod kept_lines;
mod name_finder;
mod pass;
mod survey;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
mod unnamed_blobs;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_system::files::WriteError;

pub use pass::{RetainedSegments, Retention, RetentionResult};
pub use unnamed_blobs::newer_note;

use super::blobs::BlobError;
use super::found_decisions::PendingDecision;
use super::journal_error::JournalError;
use super::store_link::StoreFailure;

/// Name of the file next to the log that has the checkpoints of removed segments.
pub const KEPT_NAME: &str = "checkpoints.jsonl";

/// Returns the path of that file for this log.
#[must_use]
pub fn kept_file(log: &Path) -> PathBuf {
    log.with_file_name(KEPT_NAME)
}

/// Limits of how much of the log is kept. Anything beyond either limit is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// Time after a segment's last line at which it is removed.
    pub age: Option<Duration>,
    /// Size on the disk beyond which segments are removed, in bytes, with the log that is written.
    pub bytes: Option<u64>,
}

/// The gateway's pending decisions, and the time that it trusts.
pub trait PendingDecisions: Sync {
    /// Returns the trusted time, in seconds since 1970, at this time of the clock: one that jumps ahead makes nothing old at once.
    fn trusted_time(&self, now: u64) -> impl Future<Output = Result<u64, StoreFailure>> + Send;

    /// Returns the decisions that are not known to be recorded, the oldest first.
    fn pending(&self) -> impl Future<Output = Result<Vec<PendingDecision>, StoreFailure>> + Send;
}

/// Error for which nothing more is removed for now.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] WriteError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Store(StoreFailure),
    /// A segment has been altered since it was written.
    #[error("{path} is not as it was written: {problem}; it is kept, and all that comes after it: `attest-audit log audit` says more")]
    Altered { path: PathBuf, problem: String },
    /// A file has the name of a segment, and cannot be read as one.
    #[error("{path} is called as a segment of the attestation log, and cannot be read: {problem}; it stays until you move it elsewhere")]
    Odd { path: PathBuf, problem: String },
    /// The note about blobs that may go is malformed.
    #[error("{path} says of no blobs that they may go: {problem}; remove it, and they stay")]
    Malformed { path: PathBuf, problem: String },
    /// The log was moved: records may be written to a file that is not searched for names of blobs.
    #[error("the attestation log was moved and has no new file yet: keeping evidence files for now")]
    Moved,
    /// The thread that works on segments has ended.
    #[error("the gateway ends")]
    Ends,
}

impl RetentionError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
