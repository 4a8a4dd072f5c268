//! Trust in the pointer's CAs, and refused certificates explained to the person at the console.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use attest_tls::{ServerChain, ServerKnowledge};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::described::{Described, date};
use super::go_compat::RefusedChain;
use super::identity::ClientIdentity;
use super::{GatewayError, TlsProblem};
use crate::failure::printable;

/// The CAs of one pointer.
#[derive(Debug)]
pub struct PointerTrust {
    verifier: Arc<WebPkiServerVerifier>,
    authorities: Arc<[CertificateDer<'static>]>,
    subjects: String,
    /// `true` if Ignition trusts more of the pointer's CAs than these.
    is_partial: bool,
    refused: Arc<Mutex<Option<RefusedCertificate>>>,
}

/// A certificate that was refused.
#[derive(Debug)]
struct RefusedCertificate {
    certificate: CertificateDer<'static>,
    /// `true` if Ignition may accept it all the same.
    may_be_taken: bool,
}

impl PointerTrust {
    /// Trusts these CAs and nothing else.
    ///
    /// # Errors
    /// [`GatewayError::Authority`] for a certificate that cannot be a CA's.
    pub fn new(authorities: &[CertificateDer<'static>]) -> Result<Self, GatewayError> {
        let mut roots = RootCertStore::empty();
        let mut subjects = Vec::new();
        for authority in authorities {
            roots
                .add(authority.clone())
                .map_err(|error| GatewayError::Authority(error.to_string()))?;
            subjects.push(Described::new(authority).subject);
        }
        let verifier = attest_tls::authorities(roots).map_err(|error| GatewayError::Authority(error.to_string()))?;
        Ok(Self {
            verifier,
            authorities: authorities.into(),
            subjects: printable(&subjects.join(", ")),
            is_partial: false,
            refused: Arc::default(),
        })
    }

    /// Returns the same trust, marked as partial if CAs of the pointer were left out.
    #[must_use]
    pub const fn partial(mut self, is_partial: bool) -> Self {
        self.is_partial = is_partial;
        self
    }

    /// Returns the TLS configuration with this trust. The quote is bound to the key of the current server, which each handshake shows.
    /// HTTP/2 is not offered: this client panics if a server selects it.
    pub(super) fn client_config(&self, identity: Option<&Arc<ClientIdentity>>) -> Result<ClientConfig, rustls::Error> {
        let beside = OfPointer {
            authorities: Arc::clone(&self.authorities),
            is_partial: self.is_partial,
            refused: Arc::clone(&self.refused),
        };
        let identity = identity.map(|identity| -> Arc<dyn ResolvesClientCert> { Arc::<ClientIdentity>::clone(identity) });
        attest_tls::client_config(Arc::clone(&self.verifier), beside, identity)
    }

    /// Returns the defect of the certificate that was refused last, and whether Ignition may accept it all the same. A server that presents
    /// a trusted certificate without having its key is refused by every client.
    pub(super) fn explain(&self, error: &CertificateError) -> (TlsProblem, bool) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        (
            self.problem(error, refused.as_ref().map(|refused| &refused.certificate)),
            refused.as_ref().is_some_and(|refused| refused.may_be_taken),
        )
    }

    fn problem(&self, error: &CertificateError, refused: Option<&CertificateDer<'_>>) -> TlsProblem {
        let certificate = refused.map(Described::new).unwrap_or_default();
        let Described {
            subject,
            issuer,
            names,
            not_before,
            not_after,
        } = certificate;
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsProblem::UnknownCa {
                subject,
                issuer,
                trusted: self.subjects.clone(),
            },
            CertificateError::NotValidForNameContext { expected, .. } => TlsProblem::WrongName {
                wanted: printable(&expected.to_str()),
                presented: names,
            },
            CertificateError::NotValidForName => TlsProblem::WrongName {
                wanted: "another name".to_owned(),
                presented: names,
            },
            CertificateError::NotValidYetContext { time, .. } => TlsProblem::NotYetValid {
                clock: date(*time),
                not_before,
                not_after,
            },
            CertificateError::NotValidYet => TlsProblem::NotYetValid {
                clock: date(UnixTime::now()),
                not_before,
                not_after,
            },
            CertificateError::ExpiredContext { time, .. } => TlsProblem::Expired {
                clock: date(*time),
                not_before,
                not_after,
            },
            CertificateError::Expired => TlsProblem::Expired {
                clock: date(UnixTime::now()),
                not_before,
                not_after,
            },
            other => TlsProblem::Other(printable(&other.to_string())),
        }
    }
}

/// A configuration that no server's certificate satisfies, for a client that speaks plain HTTP only.
///
/// # Errors
/// None of the provider's protocol versions are known to rustls, which does not happen.
pub(crate) fn trusting_nobody() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(attest_tls::provider()).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Ignition's additional trust: a certificate that is listed in the pointer is trusted itself. Keeps the refused certificate for the
/// explanation.
#[derive(Debug)]
struct OfPointer {
    authorities: Arc<[CertificateDer<'static>]>,
    is_partial: bool,
    refused: Arc<Mutex<Option<RefusedCertificate>>>,
}

impl ServerKnowledge for OfPointer {
    fn trusted(&self, shown: &ServerChain<'_>) -> Option<Result<(), rustls::Error>> {
        let presented = RefusedChain::new(shown);
        presented.is_one_of(&self.authorities).then(|| presented.verify_trusted())
    }

    fn refused(&self, shown: &ServerChain<'_>, error: &rustls::Error) {
        let by_go = |error| RefusedChain::new(shown).may_be_taken(error, &self.authorities, !self.is_partial);
        let may_be_taken = match error {
            rustls::Error::InvalidCertificate(error) => by_go(error) || is_trusted_by_the_system(shown),
            _ => false,
        };
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(RefusedCertificate {
            certificate: shown.certificate.clone().into_owned(),
            may_be_taken,
        });
    }
}

/// Returns whether the system's CAs accept it, which Ignition trusts in addition to the pointer's. They are found as Ignition finds them:
/// by the variables and files that Go's and OpenSSL's programs use. Most initramfs have none.
fn is_trusted_by_the_system(shown: &ServerChain<'_>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    attest_tls::authorities(roots).is_ok_and(|system| shown.verify_by(&system).is_ok())
}

/// The reason for which a certificate was refused, if that is what an error comes from.
pub(super) fn certificate_error<'error>(error: &'error (dyn Error + 'static)) -> Option<&'error CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(refused)) = error.downcast_ref() {
        return Some(refused);
    }
    // An io::Error's source is the source of what it wraps, so what it wraps must be asked for.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(wrapped) => certificate_error(wrapped),
        None => error.source().and_then(certificate_error),
    }
}
