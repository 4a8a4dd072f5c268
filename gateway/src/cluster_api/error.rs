//! Why the cluster's API is of no use.

use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};

/// Why there is nobody to ask, or no answer. No text has anything of a token or of an object's contents.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// This is no pod, or one without a service account.
    #[error("no service account of a pod: {0}")]
    InCluster(#[from] InClusterError),
    /// The kubeconfig cannot be used.
    #[error("{path}: {source}")]
    Kubeconfig { path: PathBuf, source: KubeconfigError },
    /// It says that anybody may be the API.
    #[error("{path}: insecure-skip-tls-verify: whoever answers would be believed; name the CA")]
    Insecure { path: PathBuf },
    /// It is not asked over TLS.
    #[error("{api}: not https, so whoever is between would be believed")]
    Plain { api: String },
    /// No client can be made of it.
    #[error("{api}: {source}")]
    Client { api: String, source: kube::Error },
    /// It did not answer, or refused.
    #[error("{what}: {}", crate::causes::with_causes(.source))]
    Api { what: &'static str, source: kube::Error },
    /// It did not answer in time.
    #[error("{what}: no answer within {seconds} s")]
    Silent { what: &'static str, seconds: u64 },
}

impl ClusterError {
    /// Whether there is no such object, or no such kind of object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        const NOT_FOUND: u16 = 404;
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == NOT_FOUND)
    }

    /// Whether it is an answer of this HTTP status.
    #[must_use]
    pub fn is_status(&self, code: u16) -> bool {
        matches!(self, Self::Api { source: kube::Error::Api(status), .. } if status.code == code)
    }

    /// Whether the API has answered, whatever it has said.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Api {
                source: kube::Error::Api(_),
                ..
            }
        )
    }
}
