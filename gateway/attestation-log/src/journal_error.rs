//! Errors of writing the attestation log.

use std::path::PathBuf;

use super::blobs::BlobError;
use super::newer_log::NewerLog;
use super::store_link::StoreFailure;

/// The attestation log cannot be written: nothing may be answered that it should hold.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// Another process has the file open.
    #[error("a gateway is writing {0}; stop it first: `systemctl stop attest-gateway`")]
    InUse(PathBuf),
    /// A newer release has written the log.
    #[error(transparent)]
    Newer(#[from] NewerLog),
    /// A record could not be made durable; the log says why.
    #[error("the attestation log cannot be written")]
    Failed,
    /// The store cannot make durable what decisions have used up.
    #[error(transparent)]
    Store(StoreFailure),
    /// A record could not be put into JSON.
    #[error("the record cannot be written: {0}")]
    Record(#[from] serde_json::Error),
    /// The folder of large parts.
    #[error(transparent)]
    Blobs(#[from] BlobError),
}
