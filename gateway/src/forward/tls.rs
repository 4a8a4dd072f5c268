//! TLS to receivers: by the CAs that the settings name, and by nobody else's.

use std::path::Path;

use attest_tls::Beside;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::sink::OpenError;
use crate::files::{self, SMALL_FILE_LIMIT_BYTES};

/// Nothing is known of a receiver beside its CAs.
#[derive(Debug)]
struct Nothing;

impl Beside for Nothing {}

pub(super) fn client_config(name: &str, ca: &Path) -> Result<ClientConfig, OpenError> {
    let problem = |problem: String| OpenError::File {
        name: name.to_owned(),
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
    let authorities = attest_tls::authorities(roots).map_err(|error| problem(error.to_string()))?;
    attest_tls::client_config(authorities, Nothing, None).map_err(|error| problem(error.to_string()))
}

/// Plain HTTP needs none, and whoever speaks it wants one.
pub(super) fn trusting_nobody(name: &str) -> Result<ClientConfig, OpenError> {
    let builder = ClientConfig::builder_with_provider(attest_tls::provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| OpenError::Client {
        name: name.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}
