//! The HTTP server on which Microsoft publishes the certificates of its CAs.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use rustls_pki_types::CertificateDer;

use super::attested_document::ISSUER_URL;
use crate::server::{Answer, Request, Server, loopback};

/// A server for one certificate at [`ISSUER_URL`].
pub struct Aia {
    server: Server,
    certificate: Arc<Mutex<Vec<u8>>>,
}

impl Deref for Aia {
    type Target = Server;

    fn deref(&self) -> &Server {
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
        let server = Server::start(address, None, {
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

fn answer(request: &Request, certificate: &[u8]) -> Answer {
    if request.method == "GET" && format!("http://{}{}", request.host(), request.target) == ISSUER_URL {
        Answer::new(200, "application/pkix-cert", certificate)
    } else {
        Answer::new(404, "text/html", "Not Found")
    }
}
