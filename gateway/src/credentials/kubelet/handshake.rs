//! The handshake's part: that the client holds the key of the certificate which it shows, and nothing more.

use std::sync::Arc;

use attest::UnixTime;
use attest_certificates::kubelet::Authorities;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::CertificateDer;

/// Asks for a certificate, which a client need not have, and verifies the handshake's signature by it. The certificate itself is judged for
/// each request. A refusal is then recorded and explained, and an old connection is not better than a fresh one.
#[derive(Debug)]
pub struct PossessionVerifier {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl PossessionVerifier {
    /// Names these CAs to clients.
    #[must_use]
    pub fn new(authorities: &Authorities, provider: Arc<CryptoProvider>) -> Self {
        Self {
            hints: authorities.hints().to_vec(),
            provider,
        }
    }
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(&self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>], _: UnixTime) -> Result<ClientCertVerified, Error> {
        // Nothing is concluded from a handshake that succeeded: `Presented` can only be read by `verify`.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
