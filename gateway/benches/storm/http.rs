//! HTTP client of the nodes: over TLS on a connection of its own, one request at a time, from an address of the node's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::floor;

/// Maximum length of an answer's head, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;

/// Reason for an attempt without an answer.
pub type Lost = &'static str;

/// Address and TLS settings of the server.
pub struct Server {
    pub address: SocketAddr,
    tls: TlsConnector,
}

impl Server {
    /// Describes a server whose certificate is of this CA.
    pub fn new(address: SocketAddr, ca: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in floor::certificates(ca) {
            roots.add(certificate).unwrap();
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A booting node has no session to resume.
        config.resumption = Resumption::disabled();
        let tls = TlsConnector::from(Arc::new(config));
        Self { address, tls }
    }

    /// Returns a request as bytes.
    pub fn request(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut request = format!("{line} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        if !body.is_empty() {
            request.extend([
                "content-type: application/json\r\ncontent-length: ",
                &body.len().to_string(),
                "\r\n",
            ]);
        }
        request.push_str("\r\n");
        [request.as_bytes(), body].concat()
    }

    /// Opens a connection, with these timeouts for the handshakes of TCP and of TLS.
    pub async fn connect(&self, source: Ipv4Addr, tcp: Duration, tls: Duration) -> Result<Connection, Lost> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        let stream = timeout(tcp, socket.connect(self.address)).await;
        let stream = stream.map_err(|_| "no connection: timeout")?.map_err(|_| "no connection")?;
        stream.set_nodelay(true).map_err(|_| "no connection")?;
        let name = ServerName::from(self.address.ip());
        let stream = timeout(tls, self.tls.connect(name, stream)).await;
        let stream = stream.map_err(|_| "TLS: timeout")?.map_err(|_| "TLS: cut off")?;
        Ok(Connection(stream))
    }
}

/// Returns the address of node `number`: each has its own.
pub fn source(number: usize) -> Ipv4Addr {
    let part = |value: usize| u8::try_from(value).unwrap();
    Ipv4Addr::new(127, part(16 + number / 62_500), part(number / 250 % 250), part(1 + number % 250))
}

pub struct Connection(TlsStream<TcpStream>);

/// Head of an answer.
pub struct Head {
    pub status: u16,
    pub length: usize,
    pub closes: bool,
    pub retry_after: Option<u64>,
    /// Part of the body that was read with the head.
    begun: Vec<u8>,
}

impl Connection {
    /// Returns this connection, unless the server has closed it while it was idle.
    pub fn if_open(mut self) -> Option<Self> {
        self.0.read(&mut [0]).now_or_never().is_none().then_some(self)
    }

    pub async fn send(&mut self, request: &[u8]) -> Result<(), Lost> {
        self.0.write_all(request).await.map_err(|_| "cut off")?;
        self.0.flush().await.map_err(|_| "cut off")
    }

    pub async fn head(&mut self) -> Result<Head, Lost> {
        let mut read = Vec::with_capacity(HEAD_LIMIT);
        let end = loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if read.len() > HEAD_LIMIT || self.0.read_buf(&mut read).await.map_err(|_| "cut off")? == 0 {
                return Err("cut off");
            }
        };
        let text = std::str::from_utf8(&read[..end]).map_err(|_| "no HTTP")?.to_ascii_lowercase();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Head {
            status: status.ok_or("no HTTP")?,
            length: field("content-length:").map_or(Ok(0), str::parse).map_err(|_| "no HTTP")?,
            closes: field("connection:") == Some("close"),
            retry_after: field("retry-after:").and_then(|seconds| seconds.parse().ok()),
            begun: read.split_off(end + 4),
        })
    }

    /// Reads a body to its end.
    pub async fn body(&mut self, head: &mut Head, mut each: impl FnMut(&[u8])) -> Result<(), Lost> {
        let begun = std::mem::take(&mut head.begun);
        each(&begun);
        let mut left = head.length.saturating_sub(begun.len());
        let mut chunk = vec![0; left.min(16 * 1024)];
        while left > 0 {
            match self.0.read(&mut chunk).await {
                Ok(0) | Err(_) => return Err("cut off in the body"),
                Ok(read) => {
                    each(&chunk[..read]);
                    left = left.saturating_sub(read);
                }
            }
        }
        Ok(())
    }
}
