//! A real TLS server with answers that the test chooses.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use attest::SpkiSha256;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData};
use rustls::{ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use url::Url;

use attest_pool::upstream::{Include, UpstreamSettings};

pub(super) const HOST: &str = "mcs.example.com";
/// A request, as the server sees it.
pub(super) struct Asked {
    pub(super) head: String,
    pub(super) version: String,
    pub(super) etag: Option<String>,
    /// How many came before.
    pub(super) before: usize,
}

/// The server's reaction to a request.
pub(super) enum Reply {
    Bytes(String),
    /// The same, and then the connection is cut.
    Cut(String),
    Silence,
}

type Play = dyn Fn(&Asked) -> Reply + Send + Sync;

/// A server with its own CA.
pub(super) struct Server {
    pub(super) folder: TempDir,
    pub(super) address: SocketAddr,
    pub(super) key: SpkiSha256,
    /// Versions asked for, in order; with a `!` if conditionally.
    log: Arc<Mutex<Vec<String>>>,
}

pub(super) fn answer(status: u16, headers: &str, body: &str) -> Reply {
    Reply::Bytes(format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    ))
}

pub(super) fn status(status: u16) -> Reply {
    answer(status, "", "")
}

pub(super) fn config(version: &str, path: &str) -> String {
    format!(r#"{{"ignition":{{"version":"{version}"}},"storage":{{"files":[{{"path":"{path}"}}]}}}}"#)
}

/// Answers like a Machine Config Server whose only file is `path`. Its 2.2.0 is left out, because its content does not matter here.
pub(super) fn mcs(asked: &Asked, path: &str) -> Reply {
    match asked.version.as_str() {
        "3.6.0" => answer(200, "", &config("3.5.0", path)),
        "2.2.0" => status(500),
        version => answer(200, "", &config(version, path)),
    }
}

fn certificates(folder: &TempDir) -> (ServerConfigParts, SpkiSha256) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.path().join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![HOST.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key)).unwrap();
    let spki = SpkiSha256::from_spki(&key.subject_public_key_info());
    ((leaf.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap()), spki)
}

type ServerConfigParts = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Server {
    pub(super) async fn start(play: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(rustls::ALL_VERSIONS, play).await
    }

    pub(super) async fn start_with(
        versions: &[&'static SupportedProtocolVersion],
        play: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ((certificate, private_key), key) = certificates(&folder);
        let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], private_key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (play, requests): (Arc<Play>, _) = (Arc::new(play), Arc::clone(&log));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, Arc::clone(&play), Arc::clone(&requests)));
            }
        });
        Self { folder, address, key, log }
    }

    pub(super) fn settings(&self) -> UpstreamSettings {
        UpstreamSettings {
            url: Url::parse(&format!("https://{HOST}:22623")).unwrap(),
            pool: None,
            ca: self.folder.path().join("ca.crt"),
            keys_sha256: Vec::new(),
            address: Some(self.address),
            revalidate_seconds: 300,
            include: Include::default(),
        }
    }

    /// Returns the requests since the last call.
    pub(super) fn asked(&self) -> String {
        std::mem::take(&mut *self.log.lock().unwrap()).join(" ")
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, play: Arc<Play>, log: Arc<Mutex<Vec<String>>>) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let accept = header("accept: ").unwrap();
        let version = accept.strip_prefix("application/vnd.coreos.ignition+json;version=").unwrap();
        let version = version.strip_suffix(", */*;q=0.1").unwrap().to_owned();
        let etag = header("if-none-match: ");
        let before = {
            let mut log = log.lock().unwrap();
            log.push(format!("{version}{}", if etag.is_some() { "!" } else { "" }));
            log.len() - 1
        };
        let asked = Asked {
            head,
            version,
            etag,
            before,
        };
        match play(&asked) {
            Reply::Bytes(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
            Reply::Cut(bytes) => {
                stream.write_all(bytes.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
                return;
            }
            Reply::Silence => std::future::pending().await,
        }
    }
}
