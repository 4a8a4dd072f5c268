//! The gateway's own requests, to hosts that are known beforehand: no redirects, no cookies, no compression, no proxy, bounded in time
//! and size.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use attest_system::causes::with_causes;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Client, RequestBuilder, redirect, retry};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::CloudSettingsError;
use crate::settings::OutgoingSettings;

/// For TCP and TLS. A host that is reachable answers within a fraction of a second; the rest is for one lost packet.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// For a whole request, its connection and the answer's body included. It is longer than a node's request waits, so that a slow answer
/// still arrives, for the next node.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Time for which an idle connection is kept: many nodes that boot at once then share those to STS.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Idle connections to one host: as many as a burst of nodes needs.
const IDLE_LIMIT_CONNECTIONS: usize = 4;

/// HTTP client of all outgoing requests.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    client: Client,
    authorities: usize,
}

/// An answer with any status.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    /// At most one byte more than the limit that was given.
    pub body: Vec<u8>,
}

impl Outgoing {
    /// Reads the CAs; sends no request.
    pub(super) fn new(settings: &OutgoingSettings) -> Result<Self, CloudSettingsError> {
        let roots = match &settings.ca {
            Some(path) => configured(path)?,
            None => system(),
        };
        let authorities = roots.len();
        let client = |error: &dyn Error| CloudSettingsError::Client(with_causes(error));
        let mut tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| client(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            // The environment has no say in whom the gateway asks, and neither has whoever answers.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .user_agent(concat!("attest-gateway/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(IDLE_LIMIT_CONNECTIONS)
            .pool_idle_timeout(IDLE_LIMIT)
            .connect_timeout(CONNECT_LIMIT)
            .timeout(REQUEST_LIMIT);
        for (host, address) in &settings.connect {
            builder = builder.resolve(host, *address);
        }
        let client = builder.build().map_err(|error| client(&error.without_url()))?;
        Ok(Self { client, authorities })
    }

    /// Returns the number of CAs that are accepted for servers. Without one no server is believed.
    pub(super) const fn authorities(&self) -> usize {
        self.authorities
    }

    /// Fetches a document. Anything but a 200 with at most `limit_bytes` is an error, in words.
    pub(super) async fn get(&self, url: &str, accept: &'static str, limit_bytes: usize) -> Result<HttpAnswer, String> {
        let answer = self.send(self.client.get(url).header(ACCEPT, accept), limit_bytes).await?;
        if answer.status != 200 {
            return Err(format!("{url}: HTTP {}", answer.status));
        }
        if answer.body.len() > limit_bytes {
            return Err(format!("{url}: more than {limit_bytes} bytes"));
        }
        Ok(answer)
    }

    /// Returns a request with a body, to be completed and sent.
    pub(super) fn post(&self, url: &str) -> RequestBuilder {
        self.client.post(url)
    }

    /// Sends a request. No error has anything of its headers or body.
    pub(super) async fn send(&self, request: RequestBuilder, limit_bytes: usize) -> Result<HttpAnswer, String> {
        let failed = |error: reqwest::Error| with_causes(&error);
        let mut response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status().as_u16(), std::mem::take(response.headers_mut()));
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            let room = (limit_bytes + 1).saturating_sub(body.len());
            body.extend(piece.iter().take(room));
            // One more than allowed says enough.
            if body.len() > limit_bytes {
                break;
            }
        }
        Ok(HttpAnswer { status, headers, body })
    }
}

/// Reads the CAs of a file.
fn configured(path: &Path) -> Result<RootCertStore, CloudSettingsError> {
    let problem = |problem: String| CloudSettingsError::Authorities {
        path: path.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    let pem = files::read(path, SMALL_FILE_LIMIT_BYTES).map_err(|error| problem(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| problem(error.to_string()))?;
        roots.add(certificate).map_err(|error| problem(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(problem("holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// Returns the system's CAs. A system without any is accepted: most gateways send no outgoing requests.
fn system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::debug!("cannot read one of the system's CAs: {error}");
    }
    roots.add_parsable_certificates(found.certs);
    roots
}
