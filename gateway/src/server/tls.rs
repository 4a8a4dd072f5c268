//! TLS by the MCS certificate: 1.2 and 1.3, hybrid post-quantum key exchange first, no resumption.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::SpkiSha256;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::NoServerSessionStorage;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::settings::TlsSettings;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("{path}: {problem}; `attest-gateway init` makes a new set")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Certificate and key do not fit, or rustls does not take them.
    #[error("{certificate} with {key}: {source}")]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// The server's TLS configuration, and the key that nodes will see.
pub(super) fn server_config(settings: &TlsSettings) -> Result<(Arc<ServerConfig>, SpkiSha256), TlsError> {
    let chain = read_certificates(&settings.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| TlsError::Pem {
        path: settings.key.clone(),
        problem: error.to_string(),
    })?;
    let spki = chain
        .first()
        .and_then(|leaf| SpkiSha256::of_certificate(leaf))
        .ok_or_else(|| TlsError::Pem {
            path: settings.certificate.clone(),
            problem: "holds no X.509 certificate".to_owned(),
        })?;
    let unusable = |source| TlsError::Unusable {
        certificate: settings.certificate.clone(),
        key: settings.key.clone(),
        source,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    // A booting node comes once. Resumption would save nothing here, and would let it go on seeing a certificate that was replaced.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    // What Ignition speaks, and all that is needed.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(config), spki))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let problem = |problem: String| TlsError::Pem {
        path: path.to_owned(),
        problem,
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| problem(error.to_string()))?
        .collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(problem("holds no certificate".to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(problem(error.to_string())),
    }
}
