//! TLS to upstream: one CA, and keys that are pinned.

use std::path::Path;
use std::sync::Arc;

use attest::SpkiSha256;
use attest_pool::upstream::UpstreamError;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use attest_tls::ServerKnowledge;
use rustls::{ClientConfig, OtherError, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Returns the configuration for TLS 1.2 and 1.3 with an upstream that shows a certificate of `ca`, with one of `keys` if there are any.
pub(super) fn client_config(ca: &Path, keys: Vec<SpkiSha256>, upstream: &str) -> Result<ClientConfig, UpstreamError> {
    let client = |error: &dyn std::error::Error| UpstreamError::Client {
        upstream: upstream.to_owned(),
        problem: error.to_string(),
    };
    let authorities = attest_tls::authorities(read_roots(ca)?).map_err(|error| client(&error))?;
    attest_tls::client_config(authorities, PinnedKeys(keys), None).map_err(|error| client(&error))
}

fn read_roots(ca: &Path) -> Result<RootCertStore, UpstreamError> {
    let problem = |problem: String| UpstreamError::Ca {
        path: ca.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    let pem = files::read(ca, SMALL_FILE_LIMIT_BYTES).map_err(|error| problem(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| problem(error.to_string()))?;
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(problem("holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// The certificate is good, but its key is not pinned.
#[derive(Debug, thiserror::Error)]
#[error("the certificate's key is not in keys_sha256; its SHA-256 is {}", .0.map_or_else(|| "unknown".to_owned(), |key| key.to_string()))]
struct NotPinned(Option<SpkiSha256>);

/// The keys that a server may have, if any are named.
#[derive(Debug)]
struct PinnedKeys(Vec<SpkiSha256>);

impl ServerKnowledge for PinnedKeys {
    fn accept(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let Self(keys) = self;
        let seen = SpkiSha256::from_certificate(certificate);
        if keys.is_empty() || seen.is_some_and(|key| keys.contains(&key)) {
            Ok(())
        } else {
            Err(rustls::Error::Other(OtherError(Arc::new(NotPinned(seen)))))
        }
    }
}
