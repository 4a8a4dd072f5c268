//! Verification of kubelets: nodes that present the client certificate that their cluster has signed for them.
//!
//! A node that started with the pre-approved config submits a CSR; once that is approved, its kubelet has a certificate for
//! `system:node:NAME`, and the node can come back for the rest.

mod authorities;
mod error;
mod names;
mod subject;
mod verify;

pub use authorities::{Authorities, AuthoritiesError};
pub use error::KubeletError;
pub use names::{NamePatterns, PatternError, WrongPool};
pub use subject::{SubjectError, node_name};
pub use verify::{VerifiedKubelet, verify};

use std::fmt;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;

use super::Fingerprint;

/// Maximum number of certificates that a node may present: its own, and three CAs below the cluster's. Clusters have at most one.
pub const CHAIN_LIMIT_CERTIFICATES: usize = 4;
/// Largest certificate that is parsed: a kubelet's has about 1 KiB, with RSA-4096 2 KiB.
pub const CERTIFICATE_LIMIT_BYTES: usize = 8 * 1024;

/// Certificates that a client presented in its handshake, with proof that it holds the first one's key. They are neither verified nor
/// parsed: only [`verify`] reads them.
#[derive(Clone)]
pub struct PresentedCertificate {
    chain: Arc<[CertificateDer<'static>]>,
    /// Number of presented certificates, and the length of the largest one; excess certificates are dropped.
    found: usize,
    largest_bytes: usize,
}

impl PresentedCertificate {
    /// Takes the certificates of a handshake; beyond the limits only the leaf.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'_>]) -> Self {
        let largest_bytes = chain.iter().map(|certificate| certificate.len()).max().unwrap_or(0);
        let kept = if chain.len() <= CHAIN_LIMIT_CERTIFICATES && largest_bytes <= CERTIFICATE_LIMIT_BYTES {
            chain.len()
        } else {
            1
        };
        Self {
            chain: chain
                .iter()
                .take(kept)
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
            found: chain.len(),
            largest_bytes,
        }
    }

    /// Returns the SHA-256 of the first certificate, by which a record names a certificate that it does not keep. `None` for an empty
    /// chain.
    #[must_use]
    pub fn leaf_fingerprint(&self) -> Option<Fingerprint> {
        self.chain.first().map(Fingerprint::of)
    }
}

impl fmt::Debug for PresentedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Presented({} certificates, not verified)", self.found)
    }
}
