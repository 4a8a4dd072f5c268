//! Kubelets of a cluster, and their connections.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_store::{Embedded, Store};
use attest_system::clock::Clock;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SignatureAlgorithm,
};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::crypto::aws_lc_rs;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Answer, Gateway, POOL, SPEC, accept};

pub const PATH: &str = "/config/worker";
pub const CLIENT_CA: &str = "[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"\n";
pub const BOTH_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// CA that signs the client certificates of a cluster's kubelets.
pub struct Cluster {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

/// Certificate and its key.
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Cluster {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "kube-csr-signer");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { params, key, pem }
    }

    /// Puts this CA where the gateway's settings name it.
    pub fn install(&self, gateway: &Gateway) {
        fs::write(gateway.path("tls/kubelet-client-ca.crt"), &self.pem).unwrap();
    }

    /// Returns the CA's certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn kubelet(&self, name: &str) -> Identity {
        self.sign(&PKCS_ECDSA_P256_SHA256, &format!("system:node:{name}"), |_| ())
    }

    /// Returns the certificate of a kubelet, which is not that of a CA.
    pub fn kubelet_pem(&self) -> String {
        let der = data_encoding::BASE64.encode(&self.kubelet("worker-1").chain[0]);
        format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
    }

    pub fn sign(&self, algorithm: &'static SignatureAlgorithm, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.is_ca = IsCa::ExplicitNoCa;
        change(&mut params);
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        Identity {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }
}

/// Creates a gateway whose pool `worker` gives its full config to kubelets of this cluster's `worker-*`.
pub fn init(cluster: &Cluster) -> Gateway {
    let gateway = Gateway::init();
    cluster.install(&gateway);
    gateway.settings(CLIENT_CA);
    for (pool, names) in [(POOL, "worker-*"), ("infra", "infra-*")] {
        gateway.edit_pool(pool, "\nkubelet = \"refuse\"", "\nkubelet = \"full\"");
        gateway.edit_pool(pool, "names = []", &format!("names = [\"{names}\"]"));
    }
    gateway
}

pub fn start(cluster: &Cluster) -> Gateway {
    let mut gateway = init(cluster);
    gateway.run();
    gateway
}

/// Returns a client configuration that trusts the gateway's CA, and presents `identity` if the server asks.
pub fn client(gateway: &Gateway, versions: &[&'static SupportedProtocolVersion], identity: Option<&Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(gateway.path("tls/mcs-ca.crt")).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    }
}

/// TLS connection that stays open between requests.
pub struct Connection(pub TlsStream<TcpStream>);

impl Connection {
    pub async fn open(gateway: &Gateway, identity: Option<&Identity>) -> Self {
        Self::by(gateway, Arc::new(client(gateway, BOTH_VERSIONS, identity))).await.unwrap()
    }

    pub async fn by(gateway: &Gateway, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        let stream = TcpStream::connect(gateway.address()).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        Ok(Self(TlsConnector::from(config).connect(name, stream).await?))
    }

    pub async fn get(&mut self, path: &str, headers: &[&str]) -> Answer {
        self.try_get(path, headers).await.unwrap()
    }

    pub async fn try_get(&mut self, path: &str, headers: &[&str]) -> std::io::Result<Answer> {
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n", accept(SPEC));
        for header in headers {
            request.push_str(&format!("{header}\r\n"));
        }
        request.push_str("\r\n");
        self.0.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        let length = headers
            .get("content-length")
            .map_or(0, |length| length.to_str().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        Ok(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body,
        })
    }
}

/// Sends a request over a connection of its own.
pub async fn get(gateway: &Gateway, identity: &Identity, path: &str) -> Answer {
    Connection::open(gateway, Some(identity)).await.get(path, &[]).await
}

pub fn last(gateway: &Gateway) -> Value {
    gateway.records().pop().unwrap()
}

/// Returns the number of blobs.
pub fn blobs(gateway: &Gateway) -> usize {
    fs::read_dir(gateway.path("state/evidence")).unwrap().count()
}

/// Starts a gateway in this process, which the test can tell to read its certificates again.
pub async fn in_process(gateway: &Gateway, store: Arc<dyn Store>) -> Arc<attest_gateway::api::Gateway> {
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    // A new seal is rotated when the gateway begins to serve: not while a test seals by it.
    if settings.store_key_file.is_none() && gateway.path("state/gateway.db").exists() {
        let seal = gateway.path("state/seal.key");
        SealKeyRing::open(&seal).unwrap();
        SealKeyRing::rotate(&seal, super::now(), Duration::from_secs(86_400)).unwrap();
    }
    let server = Server::bind_with(settings, Clock::System, store).await.unwrap();
    let inner = Arc::clone(server.gateway());
    tokio::spawn(server.serve(std::future::pending::<()>()));
    inner
}

pub fn embedded(gateway: &Gateway) -> Embedded {
    attest_system::files::make_private_folder(&gateway.path("state")).unwrap();
    Embedded::open(&gateway.path("state/gateway.db")).unwrap()
}
