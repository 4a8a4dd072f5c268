//! Errors in loading, and in fetching, the certificates and keys that cloud evidence is verified against.

use std::path::PathBuf;
use std::time::Duration;

use attest::aws::identity_document::RegionCertificatesError;
use attest::aws::nitro_tpm::NitroRootsError;
use attest::azure::attested_document::AzureTrustError;
use attest::gcp::KeysError;
use attest_certificates::folder::CertificateFolderError;

/// Error in a file or folder that the settings name: the gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum CloudSettingsError {
    /// A folder of certificates cannot be read.
    #[error(transparent)]
    Folder(#[from] CertificateFolderError),
    /// The certificates of AWS's regions cannot be used together.
    #[error(transparent)]
    Regions(#[from] RegionCertificatesError),
    /// The roots of NitroTPM documents cannot be used together.
    #[error(transparent)]
    NitroRoots(#[from] NitroRootsError),
    /// Azure's roots and CAs cannot be used together.
    #[error(transparent)]
    Azure(#[from] AzureTrustError),
    /// The CAs of outgoing connections cannot be used.
    #[error("outgoing.ca: {path}: {problem}")]
    Authorities { path: PathBuf, problem: String },
    /// No HTTP client can be made.
    #[error("no client for outgoing connections: {0}")]
    Client(String),
    /// The file of Google's keys cannot be read.
    #[error("gcp.jwks: {path}: {source}")]
    JwksFile { path: PathBuf, source: std::io::Error },
    /// The file of Google's keys cannot be used.
    #[error("gcp.jwks: {path}: {source}")]
    Jwks { path: PathBuf, source: KeysError },
}

/// Something that evidence is verified against cannot be had at the moment. This is not a statement about the node, which may try again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudUnavailable {
    /// No answer in time.
    #[error("{what}: no answer within {} ms", .limit.as_millis())]
    Slow {
        what: &'static str,
        /// Time that was waited.
        limit: Duration,
    },
    /// No answer that can be used.
    #[error("{what}: {problem}")]
    Failed { what: &'static str, problem: String },
    /// Too many requests for the same are under way.
    #[error("{what}: {limit} requests are in progress, and none has ended within {} ms", .waited.as_millis())]
    Busy {
        what: &'static str,
        /// Most requests that may be under way.
        limit: usize,
        /// Time that was waited.
        waited: Duration,
    },
    /// The last fetched keys are too old to be used.
    #[error("{what}: the ones fetched last expired at {until}, it is now {now}; {problem}")]
    TooOld {
        what: &'static str,
        /// Last second, since 1970, in which it could be used.
        until: u64,
        /// The time, in seconds since 1970.
        now: u64,
        /// Reason for which there is nothing newer.
        problem: String,
    },
}
