use std::path::{Path, PathBuf};

use attest::UnixTime;
use attest::x509::{Anchors, Ca, NoCa};
use rustls::DistinguishedName;

use crate::Certificate;
use crate::source::{self, SourceError};

/// Most CAs in the bundle: their names are in every handshake, and a cluster has a handful.
const AUTHORITIES_LIMIT: usize = 64;

/// Why kubelets' certificates cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The file is of no use.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// More than a cluster has.
    #[error("{path}: {found} certificates, at most {AUTHORITIES_LIMIT} CAs are read")]
    TooMany { path: PathBuf, found: usize },
    /// A certificate that cannot vouch for others.
    #[error("{path}: {subject} is not the certificate of a CA: {problem}")]
    NoAuthority {
        path: PathBuf,
        /// Whose certificate it is.
        subject: String,
        problem: String,
    },
}

/// The CAs whose word is taken for kubelets: what `tls.client_ca` holds. Empty if there is no such setting: then no client is asked
/// for a certificate.
#[derive(Debug, Clone, Default)]
pub struct Authorities {
    certificates: Vec<Certificate>,
    anchors: Anchors,
    hints: Vec<DistinguishedName>,
}

impl Authorities {
    /// Reads the bundle.
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
        Self::of(certificates).map_err(|(subject, problem)| AuthoritiesError::NoAuthority {
            path: path.to_owned(),
            subject,
            problem,
        })
    }

    /// As [`Authorities::load`], of a text of PEM.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_text(pem: &str) -> Result<Self, String> {
        let certificates = source::certificates_in(pem)?;
        if certificates.len() > AUTHORITIES_LIMIT {
            return Err(format!(
                "{} certificates, at most {AUTHORITIES_LIMIT} CAs are read",
                certificates.len()
            ));
        }
        Self::of(certificates).map_err(|(subject, problem)| format!("{subject} is not the certificate of a CA: {problem}"))
    }

    /// Of certificates that were read already: a record's.
    ///
    /// # Errors
    /// The subject of one that is no CA's, and why.
    pub fn of(certificates: Vec<Certificate>) -> Result<Self, (String, String)> {
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

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Their certificates, in the file's order.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.certificates.iter()
    }

    /// Their names, by which a client finds out which of its certificates to show.
    #[must_use]
    pub fn hints(&self) -> &[DistinguishedName] {
        &self.hints
    }

    /// Those that are valid at that time: one that is not vouches for nobody, as if it were not configured.
    pub(super) fn anchors(&self, now: UnixTime) -> Anchors {
        self.anchors.valid_at(now)
    }
}

/// Why a certificate cannot be what a path ends at: one that is no CA's would let a node vouch for others.
fn problem_text(problem: NoCa) -> String {
    match problem {
        NoCa::Malformed(problem) => problem,
        NoCa::NotCa => "it has no basicConstraints that say so".to_owned(),
    }
}
