//! TLS settings of the gateway, for servers that it is compared with.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::NoServerSessionStorage;
use rustls::{CipherSuite, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Returns the gateway's own TLS settings: one certificate, its cipher suites, no resumption, HTTP/1.1.
pub fn tls(certificate: &Path, key: &Path) -> TlsAcceptor {
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let mut provider = default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates(certificate), key)
        .unwrap();
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

pub fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
}
