//! The gateway's serving certificate: a chain that every client which trusts the MCS CA accepts now, and its key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use attest::UnixTime;
use attest_certificates::source::{self, CertificateFileError};
use attest_certificates::{Certificate, Fingerprint};
use attest_system::clock::rfc3339;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::settings::TlsSettings;

/// Error in files that the gateway cannot serve with.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// A file is of no use.
    #[error(transparent)]
    Source(#[from] CertificateFileError),
    /// No key in the file is the certificate's.
    #[error("{key} does not hold the private key of {certificate}")]
    WrongKey {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
    },
    /// The certificate is not valid at this time.
    #[error("{path}: {subject} is valid from {} until {}, it is now {}", rfc3339(*.not_before), rfc3339(*.not_after), rfc3339(*.now))]
    NotCurrent {
        path: PathBuf,
        /// Subject of the certificate.
        subject: String,
        not_before: u64,
        not_after: u64,
        now: u64,
    },
    /// The certificate has no name and no address.
    #[error("{0} names no host and no address, so nodes cannot verify it")]
    NoName(PathBuf),
    /// Nodes would refuse it.
    #[error("nodes that trust {ca} refuse {certificate}: {problem}")]
    Untrusted {
        /// Path of the CA.
        ca: PathBuf,
        /// Path of the certificate.
        certificate: PathBuf,
        /// Error with which nodes refuse it.
        problem: String,
    },
}

/// The serving certificate with its key and CAs. Only [`ServingCertificate::load`] and [`ServingCertificate::from_contents`] make one, so it is always checked.
#[derive(Debug)]
pub struct ServingCertificate {
    chain: Vec<Certificate>,
    key: Arc<CertifiedKey>,
    authorities: Vec<Certificate>,
    authority: Certificate,
}

impl ServingCertificate {
    /// Reads the files, and sees that a node that trusts the CA would take the certificate at `now`, and that there is its key.
    ///
    /// # Errors
    /// [`ServingError`].
    pub fn load(files: &TlsSettings, now: UnixTime) -> Result<Self, ServingError> {
        let authorities = source::authorities(&files.ca)?;
        let chain = source::certificates(&files.certificate)?;
        let keys = source::keys(&files.key)?;
        Self::from_contents(files, authorities, chain, keys, now)
    }

    /// Like [`ServingCertificate::load`], but checks contents that have not been written to the files yet.
    ///
    /// # Errors
    /// [`ServingError`].
    pub fn from_contents(
        files: &TlsSettings,
        authorities: Vec<Certificate>,
        chain: Vec<Certificate>,
        keys: Vec<PrivateKeyDer<'static>>,
        now: UnixTime,
    ) -> Result<Self, ServingError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let ders: Vec<CertificateDer<'static>> = chain.iter().map(|certificate| certificate.der.clone()).collect();
        let key = keys.into_iter().find_map(|key| {
            let key = provider.key_provider.load_private_key(key).ok()?;
            let certified = CertifiedKey::new(ders.clone(), key);
            certified.keys_match().is_ok().then_some(certified)
        });
        let Some(key) = key else {
            return Err(ServingError::WrongKey {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
            });
        };
        let leaf = chain.first().ok_or_else(|| ServingError::NoName(files.certificate.clone()))?;
        if let Some(stale) = chain.iter().find(|certificate| !certificate.is_current(now)) {
            return Err(not_current(&files.certificate, stale, now));
        }
        if leaf.names.is_empty() {
            return Err(ServingError::NoName(files.certificate.clone()));
        }
        let authority = Self::signer(files, &authorities, &chain, now)?;
        Ok(Self {
            chain,
            key: Arc::new(key),
            authorities,
            authority,
        })
    }

    /// Returns the CA that nodes accept the chain by: the newest such CA, as two may have the same key.
    ///
    /// # Errors
    /// [`ServingError`].
    pub(crate) fn signer(
        files: &TlsSettings,
        authorities: &[Certificate],
        chain: &[Certificate],
        now: UnixTime,
    ) -> Result<Certificate, ServingError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let untrusted = |problem: String| ServingError::Untrusted {
            ca: files.ca.clone(),
            certificate: files.certificate.clone(),
            problem,
        };
        let mut refused = None;
        for authority in authorities.iter().rev() {
            let leaf = chain.first().is_some_and(|leaf| leaf.fingerprint == authority.fingerprint);
            match accepts(authority, chain, &provider, now) {
                // Whoever verifies with Go, as Ignition does, looks at more of the CA than its key: its dates, and whether it is one.
                Ok(()) if !authority.is_current(now) => refused = Some(not_current(&files.ca, authority, now)),
                Ok(()) if !authority.is_authority && !leaf => refused = Some(untrusted(format!("{} is not a CA", authority.subject))),
                Ok(()) => return Ok(authority.clone()),
                Err(error) => refused = refused.or_else(|| Some(untrusted(error))),
            }
        }
        Err(refused.unwrap_or_else(|| untrusted("it is not signed by any of them".to_owned())))
    }

    /// Returns the certificate that nodes see.
    #[must_use]
    pub fn certificate(&self) -> Option<&Certificate> {
        self.chain.first()
    }

    /// Returns the first DNS name of that certificate that names one host.
    #[must_use]
    pub fn dns_name(&self) -> Option<&str> {
        let names = self.certificate()?.names.iter().map(String::as_str);
        names
            .into_iter()
            .find(|name| name.parse::<IpAddr>().is_err() && !name.contains('*'))
    }

    /// Returns the certificate and its intermediate CAs.
    #[must_use]
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Returns the CAs that new pointers carry, in their file's order: the newest last.
    #[must_use]
    pub fn authorities(&self) -> &[Certificate] {
        &self.authorities
    }

    /// Returns the fingerprint of the CA that the chain ends at.
    #[must_use]
    pub const fn signed_by(&self) -> Fingerprint {
        self.authority.fingerprint
    }

    /// Returns the CA that the chain ends at.
    #[must_use]
    pub const fn authority(&self) -> &Certificate {
        &self.authority
    }

    /// Returns chain and key in the form that rustls takes.
    #[must_use]
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key)
    }
}

fn not_current(path: &std::path::Path, certificate: &Certificate, now: UnixTime) -> ServingError {
    ServingError::NotCurrent {
        path: path.to_owned(),
        subject: certificate.subject.clone(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
        now: now.as_secs(),
    }
}

/// Checks that a client which trusts only this CA accepts the chain, for every name in it.
fn accepts(authority: &Certificate, chain: &[Certificate], provider: &Arc<CryptoProvider>, now: UnixTime) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone()).map_err(|error| error.to_string())?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| error.to_string())?;
    let (leaf, intermediates) = chain.split_first().ok_or("there is no certificate")?;
    let intermediates: Vec<CertificateDer<'_>> = intermediates.iter().map(|certificate| certificate.der.clone()).collect();
    for name in &leaf.names {
        // A wildcard is no name of a server, but stands for some.
        let server = name.strip_prefix("*.").map_or_else(|| name.clone(), |rest| format!("any.{rest}"));
        let server = ServerName::try_from(server.as_str()).map_err(|error| format!("{name}: {error}"))?;
        verifier
            .verify_server_cert(&leaf.der, &intermediates, &server, &[], now)
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}
