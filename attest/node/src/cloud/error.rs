//! Errors of a cloud's metadata server, and of evidence that the instance itself has to make.

use crate::failure::Failure;

/// Failure to get this instance's data from the cloud. Holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// No connection, or it was lost, each time.
    #[error("the metadata server cannot be reached at {url} ({attempts} attempts): {error}")]
    Unreachable {
        /// Requested URL, without its query.
        url: String,
        attempts: u32,
        /// Error of the last attempt.
        error: String,
    },
    /// An answer that asks to come again, each time.
    #[error("the metadata server answers {status} at {url} ({attempts} attempts)")]
    Failing {
        /// Requested URL, without its query.
        url: String,
        attempts: u32,
        /// HTTP status of the last attempt.
        status: u16,
    },
    #[error("the metadata server refuses with status {status} at {url}")]
    Refused {
        /// Requested URL, without its query.
        url: String,
        status: u16,
    },
    /// An answer that this program does not understand.
    #[error("the metadata server at {url} answers with {what}")]
    Answer {
        /// Requested URL, without its query.
        url: String,
        /// Description of the invalid answer.
        what: String,
    },
    /// The HTTP client cannot be set up.
    #[error("the HTTP client for the metadata server cannot be set up: {0}")]
    Client(String),
    /// Azure's custom data is on a medium that cannot be read.
    #[error("the virtual machine has no user data, and its custom data cannot be read: {0}")]
    ProvisioningMedia(String),
    /// The program that asks the NitroTPM has failed.
    #[error("{program} returned no NitroTPM attestation document: {problem}")]
    NitroTpm {
        /// Path of the program.
        program: String,
        problem: String,
    },
    /// Values to be signed for AWS STS do not have AWS's form.
    #[error("a request to AWS STS cannot be signed: {0}")]
    Sts(String),
}

impl From<CloudError> for Failure {
    fn from(error: CloudError) -> Self {
        let (code, next_step) = match &error {
            CloudError::Unreachable { .. } | CloudError::Failing { .. } => (
                "metadata-unreachable",
                "check that this node's network is up, and that its metadata service is enabled",
            ),
            CloudError::Refused { .. } => (
                "metadata-refused",
                "enable the metadata service (IMDSv2) on Amazon EC2, or attach a service account on Google Compute Engine",
            ),
            CloudError::Answer { .. } => (
                "metadata-answer",
                "find out which server answers at the metadata address; if it is the cloud's, report this message",
            ),
            CloudError::ProvisioningMedia(_) => (
                "provisioning-media",
                "give the virtual machine the pointer config as user data, or name its file with --pointer",
            ),
            CloudError::NitroTpm { .. } => (
                "nitro-tpm-failed",
                "run this program on the node; the instance's image must be registered with NitroTPM",
            ),
            CloudError::Sts(_) => ("sts-request", "set this node's clock; if it is right, report this message"),
            CloudError::Client(_) => ("internal", "report this message"),
        };
        Self::new(code, &error, next_step)
    }
}
