use std::path::{Path, PathBuf};

use attest::UnixTime;
use attest::x509::{Ca, NoCa, TrustAnchors};
use rustls::DistinguishedName;

use crate::Certificate;
use crate::source::{self, CertificateFileError};

/// Maximum number of CAs in the bundle: their names are in every handshake, and a cluster has a handful.
const AUTHORITIES_LIMIT: usize = 64;

/// Reason why kubelets' certificates cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The file is unusable.
    #[error(transparent)]
    Source(#[from] CertificateFileError),
    /// More than a cluster has.
    #[error("{path}: {found} certificates, at most {AUTHORITIES_LIMIT} CAs are read")]
    TooMany { path: PathBuf, found: usize },
    /// A certificate that cannot sign others.
    #[error("{path}: {subject} is not the certificate of a CA: {problem}")]
    NoAuthority {
        path: PathBuf,
        /// Subject of the certificate.
        subject: String,
        problem: String,
    },
}

/// The CAs of kubelets, from `tls.client_ca`. Empty if that is not set: then clients are not asked for a certificate.
#[derive(Debug, Clone, Default)]
pub struct Authorities {
    certificates: Vec<Certificate>,
    anchors: TrustAnchors,
    hints: Vec<DistinguishedName>,
}

impl Authorities {
    /// Reads the bundle of CAs.
    ///
    /// # Errors
    /// [`AuthoritiesError`].
    pub fn load(path: &Path) -> Result<Self, AuthoritiesError> {
        let certificates = source::authorities(path)?;
        if certificates.len() > AUTHORITIES_LIMIT {
            return Err(AuthoritiesError::TooMany {
                path: path.to_owned(),
                found: certificates.len(),
            });
        }
        Self::from_certificates(certificates).map_err(|(subject, problem)| AuthoritiesError::NoAuthority {
            path: path.to_owned(),
            subject,
            problem,
        })
    }

    /// Reads CAs like [`Authorities::load`], from PEM text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_pem(pem: &str) -> Result<Self, String> {
        let certificates = source::certificates_in(pem)?;
        if certificates.len() > AUTHORITIES_LIMIT {
            return Err(format!(
                "{} certificates, at most {AUTHORITIES_LIMIT} CAs are read",
                certificates.len()
            ));
        }
        Self::from_certificates(certificates).map_err(|(subject, problem)| format!("{subject} is not the certificate of a CA: {problem}"))
    }

    /// Builds it from parsed certificates, such as those of a record.
    ///
    /// # Errors
    /// The subject of the first certificate that is not a CA, and the reason.
    pub fn from_certificates(certificates: Vec<Certificate>) -> Result<Self, (String, String)> {
        let mut authorities = Self::default();
        for certificate in certificates {
            let add = Ca::read(&certificate.der).and_then(|ca| authorities.anchors.add_root(&ca));
            match add {
                Ok(true) => authorities.certificates.push(certificate),
                Ok(false) => {}
                Err(problem) => return Err((certificate.subject, problem_text(problem))),
            }
        }
        let mut names: Vec<&[u8]> = Vec::new();
        for anchor in authorities.anchors.trusted() {
            // A CA that was renewed keeps its name.
            if !names.contains(&anchor.subject.as_ref()) {
                names.push(&anchor.subject);
            }
        }
        authorities.hints = names.into_iter().map(DistinguishedName::in_sequence).collect();
        Ok(authorities)
    }

    /// Returns whether it has no CAs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Returns the certificates, in the file's order.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.certificates.iter()
    }

    /// Returns the CAs' names, by which a client selects its certificate.
    #[must_use]
    pub fn hints(&self) -> &[DistinguishedName] {
        &self.hints
    }

    /// Returns the CAs that are valid at that time. An invalid one is treated as if it were not configured.
    pub(super) fn anchors(&self, now: UnixTime) -> TrustAnchors {
        self.anchors.valid_at(now)
    }
}

/// Describes why a certificate cannot end a path. A certificate of a node, accepted as a CA, would let the node sign others.
fn problem_text(problem: NoCa) -> String {
    match problem {
        NoCa::Malformed(problem) => problem,
        NoCa::NotCa => "it has no basicConstraints with CA:TRUE".to_owned(),
    }
}
