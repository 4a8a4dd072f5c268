//! Server with the gateway's own certificate and arbitrary answers, which a node must survive.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Timeout for a silent client.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a request; those of the protocol's first steps are far smaller.
const REQUEST_LIMIT_BYTES: usize = 256 * 1024;

/// Function from a request line (`GET /v1/attest HTTP/1.1`) to a whole HTTP response.
pub type Script = Box<dyn Fn(&str) -> Vec<u8> + Send>;

/// Server that listens until the process ends.
pub struct StandIn {
    port: u16,
}

impl StandIn {
    /// Starts a TLS server with this certificate and key: one connection after the other, one request on each.
    pub fn tls(certificate_and_key: &[PathBuf; 2], script: Script) -> Result<Self> {
        let [certificate, key] = certificate_and_key;
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&fs::read(key)?)?;
        let provider = rustls::crypto::aws_lc_rs::default_provider().into();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let config = Arc::new(config);
        Self::listen(move |stream| {
            let connection = rustls::ServerConnection::new(Arc::clone(&config))?;
            answer(&mut rustls::StreamOwned::new(connection, stream), &script)
        })
    }

    /// Sends these bytes to every client that connects, without TLS.
    pub fn raw(bytes: &'static [u8]) -> Result<Self> {
        Self::listen(move |mut stream| stream.write_all(bytes).context("writing"))
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn listen(serve: impl Fn(TcpStream) -> Result<()> + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listening")?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // What the client makes of it is the test's question.
                let _ = stream.set_read_timeout(Some(READ_LIMIT));
                let _ = serve(stream);
            }
        });
        Ok(Self { port })
    }
}

/// Returns an HTTP response that closes the connection.
#[must_use]
pub fn response(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes =
        format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn answer(stream: &mut (impl Read + Write), script: &Script) -> Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !is_complete(&request) && request.len() < REQUEST_LIMIT_BYTES {
        let count = stream.read(&mut buffer)?;
        request.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if count == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&request);
    stream.write_all(&script(text.lines().next().unwrap_or_default()))?;
    stream.flush().context("answering")
}

/// Returns whether the headers and as many bytes as they announce are there.
fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let announced = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= announced.unwrap_or(0)
}
