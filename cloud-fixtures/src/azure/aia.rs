//! The HTTP server on which Microsoft publishes the certificates of its CAs.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use rustls_pki_types::CertificateDer;

use super::attested_document::ISSUER_URL;
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

/// A server for one certificate at [`ISSUER_URL`].
pub struct Aia {
    server: TestServer,
    certificate: Arc<Mutex<Vec<u8>>>,
}

impl Deref for Aia {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl Aia {
    /// Starts a server on a port of its own.
    #[must_use]
    pub fn start(certificate: &CertificateDer<'_>) -> Self {
        Self::start_at(loopback(), certificate)
    }

    /// Starts a server at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, certificate: &CertificateDer<'_>) -> Self {
        let certificate = Arc::new(Mutex::new(certificate.to_vec()));
        let server = TestServer::start(address, None, {
            let certificate = certificate.clone();
            move |request| answer(request, &certificate.lock().unwrap())
        });
        Self { server, certificate }
    }

    /// Replaces the response: another certificate, PEM, or arbitrary bytes.
    pub fn set_certificate(&self, bytes: &[u8]) {
        *self.certificate.lock().unwrap() = bytes.to_vec();
    }
}

fn answer(request: &HttpRequest, certificate: &[u8]) -> ServerAnswer {
    if request.method == "GET" && format!("http://{}{}", request.host(), request.target) == ISSUER_URL {
        ServerAnswer::new(200, "application/pkix-cert", certificate)
    } else {
        ServerAnswer::new(404, "text/html", "Not Found")
    }
}
