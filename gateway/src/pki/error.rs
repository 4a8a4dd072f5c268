//! Errors of a change to the CA's and the certificate's files.

use std::path::PathBuf;

use attest_certificates::source::CertificateFileError;
use attest_system::files::WriteError;

use super::ServingError;
use super::issue::CreateError;

/// Error for which the files are left unchanged.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] WriteError),
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] CertificateFileError),
    /// A certificate cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The gateway could not serve with the new files.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The file is a manifest, which another program writes.
    #[error("{0} is a manifest, which this command does not change: rotate it where it is generated; the gateway reloads it by itself")]
    Manifest(PathBuf),
    /// CA and certificate are the cluster's: its operator replaces them.
    #[error(
        "the cluster's operator rotates CA and certificate, and the gateway follows (cluster.mcs_certificate): nothing was changed here"
    )]
    OfCluster,
    /// Certificate and key are in one file.
    #[error(
        "{0} holds both certificate and key: put them into two files (tls.certificate, tls.key), which can be replaced one after the other"
    )]
    OneFile(PathBuf),
    /// The key that is needed is not here.
    #[error("the private key of the CA {subject} is in none of {}: name it with --ca-key FILE, or a certificate that was signed elsewhere with --certificate and --key", .looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoAuthorityKey {
        /// Subject of the CA.
        subject: String,
        /// Files that were searched for the key.
        looked: Vec<PathBuf>,
    },
    /// There is nothing where a CA or a certificate should be.
    #[error("{path}: {problem}")]
    Unfit { path: PathBuf, problem: String },
    /// Another command is changing the files.
    #[error("another command is changing the files in {0}: wait until it ends, then run this command again")]
    Busy(PathBuf),
}
