//! Diagnosis of TLS connections that end without a message. If a server rejects the certificate, the client of etcd often reports only a
//! closed connection, because the alert comes after the handshake.

use std::sync::Arc;
use std::time::Duration;

use attest_system::causes::with_causes;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use attest_tls::provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::settings::EtcdSettings;

/// Time limit for a server to report its objection.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the problem between this gateway and an endpoint, if TLS is the cause.
pub(super) async fn diagnose_tls(settings: &EtcdSettings, endpoint: &str) -> Option<String> {
    if !settings.is_encrypted() {
        return None;
    }
    timeout(PATIENCE, shake_hands(settings, endpoint)).await.ok()?.err()
}

/// Shows the certificate, and waits for the first byte: etcd speaks first.
async fn shake_hands(settings: &EtcdSettings, endpoint: &str) -> Result<(), String> {
    let url = Url::parse(endpoint).map_err(|error| error.to_string())?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
    let port = url.port_or_known_default().unwrap_or_default();
    let config = config(settings).map_err(|error| with_causes(&*error))?;
    // Whether it is there was found out before.
    let Ok(stream) = TcpStream::connect((host.as_str(), port)).await else {
        return Ok(());
    };
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let mut stream = connected.map_err(|error| format!("TLS: {}", with_causes(&error)))?;
    match stream.read(&mut [0; 1]).await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("TLS: {}", with_causes(&error))),
    }
}

fn config(settings: &EtcdSettings) -> Result<ClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for ca in settings.ca.iter() {
        for certificate in CertificateDer::pem_slice_iter(&files::read(ca, SMALL_FILE_LIMIT_BYTES)?) {
            roots.add(certificate?)?;
        }
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match &settings.identity {
        Some((certificate, key)) => {
            let [certificate, key] = [
                files::read(certificate, SMALL_FILE_LIMIT_BYTES)?,
                files::read(key, SMALL_FILE_LIMIT_BYTES)?,
            ];
            let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<_, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
