//! TLS to pinned servers: by CAs that the configuration names, and by further rules ([`ServerKnowledge`]).
//!
//! A node's pointer names the CAs of its gateway; a pool's `[upstream]` names the CA of a server, and its keys. webpki verifies both, by
//! these CAs only. An implementation of [`ServerKnowledge`] can refuse more certificates, trust a certificate itself, and is notified of each
//! refusal.

#![deny(unreachable_pub)]

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Rules for a server in addition to its CAs.
pub trait ServerKnowledge: fmt::Debug + Send + Sync + 'static {
    /// Verifies a certificate that is trusted itself, without a CA; returns `None` for each other.
    fn trusted(&self, _: &ServerChain<'_>) -> Option<Result<(), Error>> {
        None
    }

    /// Accepts or refuses a certificate that one of the CAs has signed, for this server and this time.
    ///
    /// # Errors
    /// The reason for the refusal.
    fn accept(&self, _: &CertificateDer<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Receives a certificate that was refused, by the CAs, by [`ServerKnowledge::accept`] or by [`ServerKnowledge::trusted`].
    fn refused(&self, _: &ServerChain<'_>, _: &Error) {}
}

/// Certificates that a server has presented.
#[derive(Debug, Clone, Copy)]
pub struct ServerChain<'a> {
    pub certificate: &'a CertificateDer<'a>,
    /// Other certificates that the server sent.
    pub intermediates: &'a [CertificateDer<'a>],
    /// Expected name of the server.
    pub name: &'a ServerName<'a>,
    ocsp_response: &'a [u8],
    /// Time of the handshake.
    pub now: UnixTime,
}

impl ServerChain<'_> {
    /// Verifies the certificate by these CAs.
    ///
    /// # Errors
    /// The reason why they do not vouch for it.
    pub fn verify_by(&self, authorities: &WebPkiServerVerifier) -> Result<ServerCertVerified, Error> {
        authorities.verify_server_cert(self.certificate, self.intermediates, self.name, self.ocsp_response, self.now)
    }
}

/// Verifies servers by the CAs, and by the additional rules.
#[derive(Debug)]
struct Pinned<B> {
    authorities: Arc<WebPkiServerVerifier>,
    beside: B,
}

/// Returns the provider of the one cryptographic library.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Builds the trust in these CAs, and no others.
///
/// # Errors
/// `roots` is empty.
pub fn authorities(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()
}

/// TLS 1.2 and 1.3 to servers that are pinned, and HTTP/1.1 over it; with a certificate to show if there is an identity. Every connection makes a full
/// handshake: a resumed one shows no certificate, and so would outlive one that was replaced.
///
/// # Errors
/// The provider has none of the protocol versions, which does not happen.
pub fn client_config(
    authorities: Arc<WebPkiServerVerifier>,
    beside: impl ServerKnowledge,
    identity: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        // "Dangerous" is what rustls calls every verifier that is not its own.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { authorities, beside }));
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

impl<B: ServerKnowledge> ServerCertVerifier for Pinned<B> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = ServerChain {
            certificate,
            intermediates,
            name,
            ocsp_response,
            now,
        };
        let verified = match self.beside.trusted(&shown) {
            Some(trusted) => trusted.map(|()| ServerCertVerified::assertion()),
            None => shown.verify_by(&self.authorities),
        };
        verified
            .and_then(|verified| self.beside.accept(certificate).map(|()| verified))
            .inspect_err(|error| self.beside.refused(&shown, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.authorities.root_hint_subjects()
    }
}
