use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use webpki::aws_lc_rs as algorithms;

use super::AzureCloud;
use crate::pkcs7::CERTIFICATE_LIMIT_BYTES;
use crate::x509::{Ca, CaKey, NoCa, TrustAnchors, Unusable};

/// Most roots. Azure's certificates lead to about ten.
pub const ROOTS_LIMIT: usize = 64;

/// Most intermediates, configured or fetched. Microsoft lists about 60 for all of Azure.
pub const INTERMEDIATES_LIMIT: usize = 128;

/// Signatures that are accepted in a chain. SHA-1 and RSA under 2048 bits are not among them.
pub(super) static SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = &[
    algorithms::RSA_PKCS1_2048_8192_SHA256,
    algorithms::RSA_PKCS1_2048_8192_SHA384,
    algorithms::RSA_PKCS1_2048_8192_SHA512,
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P256_SHA384,
    algorithms::ECDSA_P384_SHA256,
    algorithms::ECDSA_P384_SHA384,
];

/// Trust anchors for attested documents: the signer must be a metadata service of these clouds, with a certificate that leads to these
/// roots. The intermediates complete a chain and are trusted through a root only.
#[derive(Debug, Clone)]
pub struct AzureTrust {
    clouds: Vec<AzureCloud>,
    roots: TrustAnchors,
    intermediates: Vec<CertificateDer<'static>>,
}

/// A certificate that cannot be used.
pub type AzureTrustError = Unusable<AzureCaProblem>;

/// Problem with a CA certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AzureCaProblem {
    /// The bytes are not a certificate, or of a form that path validation does not accept.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// Its basicConstraints do not make it a CA.
    #[error("it is not the certificate of a CA (basicConstraints)")]
    NotCa,
    /// Its key is too weak, or of a kind that is not accepted.
    #[error("its key is {0}; accepted are RSA of 2048 to 8192 bits, P-256 and P-384")]
    Key(String),
    /// The list has more certificates than are read.
    #[error("it is one more than the {0} that are read")]
    TooMany(usize),
}

impl AzureTrust {
    /// Trusts the metadata services of `clouds` whose certificates lead to `roots` over `intermediates`.
    ///
    /// # Errors
    /// [`AzureTrustError`] for the first certificate that could not be used.
    pub fn new(
        clouds: Vec<AzureCloud>,
        roots: &[CertificateDer<'static>],
        intermediates: Vec<CertificateDer<'static>>,
    ) -> Result<Self, AzureTrustError> {
        let mut anchors = TrustAnchors::default();
        for (position, root) in roots.iter().enumerate() {
            let add = ca(root).and_then(|ca| match position {
                0..ROOTS_LIMIT => Ok(anchors.add_root(&ca)?),
                _ => Err(AzureCaProblem::TooMany(ROOTS_LIMIT)),
            });
            add.map_err(|problem| AzureTrustError::new("root", root, problem))?;
        }
        let trust = Self {
            clouds,
            roots: anchors,
            intermediates: Vec::new(),
        };
        trust.with_intermediates(intermediates)
    }

    /// Returns the same with more intermediates, for those that were fetched.
    ///
    /// # Errors
    /// [`AzureTrustError`] for the first certificate that could not be used.
    pub fn with_intermediates(mut self, intermediates: Vec<CertificateDer<'static>>) -> Result<Self, AzureTrustError> {
        for intermediate in intermediates {
            let problem = match ca(&intermediate) {
                Ok(_) if self.intermediates.contains(&intermediate) => continue,
                Ok(_) if self.intermediates.len() >= INTERMEDIATES_LIMIT => AzureCaProblem::TooMany(INTERMEDIATES_LIMIT),
                Ok(_) => {
                    self.intermediates.push(intermediate);
                    continue;
                }
                Err(problem) => problem,
            };
            return Err(AzureTrustError::new("intermediate", &intermediate, problem));
        }
        Ok(self)
    }

    #[must_use]
    pub fn clouds(&self) -> &[AzureCloud] {
        &self.clouds
    }

    pub(super) const fn roots(&self) -> &TrustAnchors {
        &self.roots
    }

    pub(super) fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }
}

impl From<NoCa> for AzureCaProblem {
    fn from(problem: NoCa) -> Self {
        match problem {
            NoCa::Malformed(problem) => Self::Malformed(problem),
            NoCa::NotCa => Self::NotCa,
        }
    }
}

/// Reads a CA's certificate.
fn ca(certificate: &[u8]) -> Result<Ca<'_>, AzureCaProblem> {
    let ca = Ca::read_within(certificate, CERTIFICATE_LIMIT_BYTES)?;
    match ca.key() {
        CaKey::Rsa(2048..=8192) | CaKey::Curve(256 | 384) => Ok(ca),
        other => Err(AzureCaProblem::Key(other.to_string())),
    }
}
