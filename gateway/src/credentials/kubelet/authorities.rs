use std::path::{Path, PathBuf};

use attest::UnixTime;
use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, TrustAnchor};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificates::Certificate;
use crate::certificates::source::{self, SourceError};

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
    TooMany {
        /// The file.
        path: PathBuf,
        /// How many.
        found: usize,
    },
    /// A certificate that cannot vouch for others.
    #[error("{path}: {subject} is not the certificate of a CA: {problem}")]
    NoAuthority {
        /// The file.
        path: PathBuf,
        /// Whose certificate it is.
        subject: String,
        /// Why not.
        problem: String,
    },
}

/// The CAs whose word is taken for kubelets: what `tls.client_ca` holds. Empty if there is no such setting: then no client is asked
/// for a certificate.
#[derive(Debug, Clone, Default)]
pub struct Authorities {
    all: Vec<Authority>,
    hints: Vec<DistinguishedName>,
}

#[derive(Debug, Clone)]
struct Authority {
    certificate: Certificate,
    anchor: TrustAnchor<'static>,
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

    /// Of certificates that were read already: a record's.
    ///
    /// # Errors
    /// The subject of one that is no CA's, and why.
    pub fn of(certificates: Vec<Certificate>) -> Result<Self, (String, String)> {
        let mut authorities = Self::default();
        for certificate in certificates {
            let known = |known: &Authority| known.certificate.fingerprint == certificate.fingerprint;
            if authorities.all.iter().any(known) {
                continue;
            }
            let anchor = anchor(&certificate.der).map_err(|problem| (certificate.subject.clone(), problem))?;
            // A CA that was renewed keeps its name.
            if !authorities.all.iter().any(|known| known.anchor.subject == anchor.subject) {
                authorities.hints.push(DistinguishedName::in_sequence(&anchor.subject));
            }
            authorities.all.push(Authority { certificate, anchor });
        }
        Ok(authorities)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Their certificates, in the file's order.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.all.iter().map(|authority| &authority.certificate)
    }

    /// Their names, by which a client finds out which of its certificates to show.
    pub(super) fn hints(&self) -> &[DistinguishedName] {
        &self.hints
    }

    /// Those that are valid at that time. webpki does not look at the dates of what it is told to trust; the kube-apiserver does.
    pub(super) fn anchors(&self, now: UnixTime) -> Vec<TrustAnchor<'static>> {
        let current = self.all.iter().filter(|authority| authority.certificate.is_current(now));
        current.map(|authority| authority.anchor.clone()).collect()
    }
}

/// What a path can end at. A certificate that is no CA's would let a node vouch for others.
fn anchor(der: &CertificateDer<'static>) -> Result<TrustAnchor<'static>, String> {
    let (_, parsed) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    let constraints = parsed.basic_constraints().map_err(|error| error.to_string())?;
    if !constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err("it has no basicConstraints that say so".to_owned());
    }
    Ok(webpki::anchor_from_trusted_cert(der).map_err(|error| error.to_string())?.to_owned())
}
