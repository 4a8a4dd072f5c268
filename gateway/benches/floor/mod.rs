//! TLS settings of the gateway, for servers that it is compared with.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Returns the gateway's own TLS settings: one certificate, no resumption, HTTP/1.1.
pub fn tls(certificate: &Path, key: &Path) -> TlsAcceptor {
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates(certificate), key)
        .unwrap();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

pub fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
}
