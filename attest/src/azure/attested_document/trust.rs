use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{VerifiedPath, aws_lc_rs as algorithms};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::AzureCloud;
use super::error::{ChainError, name_text};
use crate::nonce::sha256;
use crate::pkcs7::CERTIFICATE_LIMIT_BYTES;

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

/// Whose signature on an attested document is trusted: that of a metadata service of these clouds, with a certificate that
/// leads to these roots. The intermediates complete a chain and are trusted through a root only.
#[derive(Debug, Clone)]
pub struct AzureTrust {
    clouds: Vec<AzureCloud>,
    /// What webpki anchors paths in; `roots` has as many entries.
    anchors: Vec<TrustAnchor<'static>>,
    roots: Vec<Root>,
    intermediates: Vec<CertificateDer<'static>>,
}

/// What a root's certificate says besides name and key. webpki knows nothing else of an anchor.
#[derive(Debug, Clone)]
pub(super) struct Root {
    pub(super) subject: String,
    pub(super) sha256: [u8; 32],
    not_before: u64,
    not_after: u64,
    path_length: Option<u32>,
}

/// A certificate that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{role} certificate {subject:?} (SHA-256 {sha256}): {problem}")]
pub struct AzureTrustError {
    /// `"root"` or `"intermediate"`.
    pub role: &'static str,
    /// Its subject, if that can be read.
    pub subject: String,
    /// SHA-256 over it, hexadecimal.
    pub sha256: String,
    /// What is wrong.
    pub problem: CaProblem,
}

/// What is wrong with a CA certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaProblem {
    /// It is no certificate, or of a form that path validation does not take.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// Its basicConstraints do not make it a CA.
    #[error("it is not the certificate of a CA (basicConstraints)")]
    NotCa,
    /// Its key is too weak, or of a kind that is not accepted.
    #[error("its key is {0}; accepted are RSA of 2048 to 8192 bits, P-256 and P-384")]
    Key(String),
    /// It is one too many.
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
        let mut trust = Self {
            clouds,
            anchors: Vec::new(),
            roots: Vec::new(),
            intermediates: Vec::new(),
        };
        for root in roots {
            trust
                .add_root(root)
                .map_err(|problem| AzureTrustError::new("root", root, problem))?;
        }
        trust.with_intermediates(intermediates)
    }

    /// The same, with more intermediates: for those that were fetched.
    ///
    /// # Errors
    /// [`AzureTrustError`] for the first certificate that could not be used.
    pub fn with_intermediates(mut self, intermediates: Vec<CertificateDer<'static>>) -> Result<Self, AzureTrustError> {
        for intermediate in intermediates {
            let problem = match ca(&intermediate) {
                Ok(_) if self.intermediates.contains(&intermediate) => continue,
                Ok(_) if self.intermediates.len() >= INTERMEDIATES_LIMIT => CaProblem::TooMany(INTERMEDIATES_LIMIT),
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

    /// The clouds.
    #[must_use]
    pub fn clouds(&self) -> &[AzureCloud] {
        &self.clouds
    }

    fn add_root(&mut self, certificate: &CertificateDer<'static>) -> Result<(), CaProblem> {
        let parsed = ca(certificate)?;
        if self.roots.len() >= ROOTS_LIMIT {
            return Err(CaProblem::TooMany(ROOTS_LIMIT));
        }
        let anchor = webpki::anchor_from_trusted_cert(certificate)
            .map_err(|error| CaProblem::Malformed(error.to_string()))?
            .to_owned();
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let constraints = parsed.basic_constraints().ok().flatten();
        self.roots.push(Root {
            subject: name_text(parsed.subject()),
            sha256: sha256(&[certificate]),
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
            path_length: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        });
        self.anchors.push(anchor);
        Ok(())
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    pub(super) fn intermediates(&self) -> &[CertificateDer<'static>] {
        &self.intermediates
    }

    /// The root at the end of a path.
    pub(super) fn root_of(&self, path: &VerifiedPath<'_>) -> Option<&Root> {
        // By address: a renewed CA has the same name and key as its predecessor, but not its validity.
        let position = self.anchors.iter().position(|anchor| std::ptr::eq(anchor, path.anchor()))?;
        self.roots.get(position)
    }

    /// Checks what webpki does not know of a path's root.
    pub(super) fn check_root(&self, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), ChainError> {
        let Some(root) = self.root_of(path) else {
            return Ok(());
        };
        let now = now.as_secs();
        if !(root.not_before..=root.not_after).contains(&now) {
            return Err(ChainError::Validity {
                certificate: format!("root {:?}", root.subject),
                not_before: root.not_before,
                not_after: root.not_after,
                now,
            });
        }
        let below = path.intermediate_certificates().count();
        let limit = root.path_length.and_then(|limit| usize::try_from(limit).ok());
        if limit.is_some_and(|limit| below > limit) {
            return Err(ChainError::Path(webpki::Error::PathLenConstraintViolated));
        }
        Ok(())
    }
}

impl AzureTrustError {
    fn new(role: &'static str, certificate: &[u8], problem: CaProblem) -> Self {
        let subject = X509Certificate::from_der(certificate).map_or_else(|_| String::new(), |(_, parsed)| name_text(parsed.subject()));
        Self {
            role,
            subject,
            sha256: data_encoding::HEXLOWER.encode(&sha256(&[certificate])),
            problem,
        }
    }
}

/// Reads a CA's certificate.
fn ca<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CaProblem> {
    if certificate.len() > CERTIFICATE_LIMIT_BYTES {
        let bytes = certificate.len();
        return Err(CaProblem::Malformed(format!(
            "{bytes} bytes, at most {CERTIFICATE_LIMIT_BYTES} are read"
        )));
    }
    let (rest, parsed) = X509Certificate::from_der(certificate).map_err(|error| CaProblem::Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(CaProblem::Malformed(format!("{} bytes follow it", rest.len())));
    }
    let constraints = parsed
        .basic_constraints()
        .map_err(|error| CaProblem::Malformed(error.to_string()))?;
    if !constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err(CaProblem::NotCa);
    }
    match parsed.public_key().parsed() {
        Ok(PublicKey::RSA(key)) if (2048..=8192).contains(&key.key_size()) => Ok(parsed),
        Ok(PublicKey::RSA(key)) => Err(CaProblem::Key(format!("RSA-{}", key.key_size()))),
        Ok(PublicKey::EC(point)) if matches!(point.key_size(), 256 | 384) => Ok(parsed),
        _ => Err(CaProblem::Key(format!("of algorithm {}", parsed.public_key().algorithm.algorithm))),
    }
}
