//! TLS to upstream: one CA, and keys that are pinned.

use std::path::Path;
use std::sync::Arc;

use attest::SpkiSha256;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::UpstreamError;

/// TLS 1.2 and 1.3 for an upstream that shows a certificate of `ca`, with one of `keys` if there are any.
pub(super) fn client_config(ca: &Path, keys: Vec<SpkiSha256>, upstream: &str) -> Result<ClientConfig, UpstreamError> {
    let client = |error: &dyn std::error::Error| UpstreamError::Client {
        upstream: upstream.to_owned(),
        problem: error.to_string(),
    };
    let roots = Arc::new(read_roots(ca)?);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| client(&error))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| client(&error))?
        // "Dangerous" is what rustls calls every verifier that is not its own. This one only refuses more.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { inner, keys }))
        .with_no_client_auth();
    // A resumed session shows no certificate, and so would outlive one that was replaced.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read_roots(ca: &Path) -> Result<RootCertStore, UpstreamError> {
    let problem = |problem: String| UpstreamError::Ca {
        path: ca.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|error| problem(error.to_string()))? {
        let certificate = certificate.map_err(|error| problem(error.to_string()))?;
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(problem("holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// The certificate is good, but its key is none of those that are pinned.
#[derive(Debug, thiserror::Error)]
#[error("the certificate's key is not in keys_sha256; its SHA-256 is {}", .0.map_or_else(|| "unknown".to_owned(), |key| key.to_string()))]
struct NotPinned(Option<SpkiSha256>);

/// Checks as everybody does, and then the key. No pins, no second check.
#[derive(Debug)]
struct Pinned {
    inner: Arc<WebPkiServerVerifier>,
    keys: Vec<SpkiSha256>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        if self.keys.is_empty() {
            return Ok(verified);
        }
        let seen = SpkiSha256::of_certificate(end_entity);
        if seen.is_some_and(|key| self.keys.contains(&key)) {
            Ok(verified)
        } else {
            Err(rustls::Error::Other(OtherError(Arc::new(NotPinned(seen)))))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.inner.root_hint_subjects()
    }
}
