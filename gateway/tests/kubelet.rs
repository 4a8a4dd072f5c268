//! A kubelet's client certificate at the gateway: the real program, asked over connections of the test's own.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use attest_gateway::clock::Clock;
use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_gateway::store::{Embedded, Entry, Kind, Spend, Spendable, Store, StoreError};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use support::{Answer, Gateway, POOL, SPEC, accept, bearer, tpm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PATH: &str = "/config/worker";
const CLIENT_CA: &str = "[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"\n";
const BOTH_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The CA that signs the client certificates of a cluster's kubelets.
struct Cluster {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

/// A certificate and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Cluster {
    fn new() -> Self {
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
    fn install(&self, gateway: &Gateway) {
        fs::write(gateway.path("tls/kubelet-client-ca.crt"), &self.pem).unwrap();
    }

    fn kubelet(&self, name: &str) -> Identity {
        self.sign(&PKCS_ECDSA_P256_SHA256, &format!("system:node:{name}"), |_| ())
    }

    fn sign(&self, algorithm: &'static SignatureAlgorithm, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
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

/// A gateway whose pool `worker` gives its full config to kubelets of this cluster's `worker-*`.
fn init(cluster: &Cluster) -> Gateway {
    let gateway = Gateway::init();
    cluster.install(&gateway);
    gateway.settings(CLIENT_CA);
    for (pool, names) in [(POOL, "worker-*"), ("infra", "infra-*")] {
        gateway.edit_pool(pool, "\nkubelet = \"refuse\"", "\nkubelet = \"full\"");
        gateway.edit_pool(pool, "names = []", &format!("names = [\"{names}\"]"));
    }
    gateway
}

fn start(cluster: &Cluster) -> Gateway {
    let mut gateway = init(cluster);
    gateway.run();
    gateway
}

/// A client of the gateway's CA, which shows `identity` if it is asked.
fn client(gateway: &Gateway, versions: &[&'static SupportedProtocolVersion], identity: Option<&Identity>) -> ClientConfig {
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

/// One connection, kept open between requests.
struct Connection(TlsStream<TcpStream>);

impl Connection {
    async fn open(gateway: &Gateway, identity: Option<&Identity>) -> Self {
        Self::by(gateway, Arc::new(client(gateway, BOTH_VERSIONS, identity))).await.unwrap()
    }

    async fn by(gateway: &Gateway, config: Arc<ClientConfig>) -> std::io::Result<Self> {
        let stream = TcpStream::connect(gateway.address()).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        Ok(Self(TlsConnector::from(config).connect(name, stream).await?))
    }

    async fn get(&mut self, path: &str, headers: &[&str]) -> Answer {
        self.try_get(path, headers).await.unwrap()
    }

    async fn try_get(&mut self, path: &str, headers: &[&str]) -> std::io::Result<Answer> {
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

/// Asks once, over a connection of its own.
async fn get(gateway: &Gateway, identity: &Identity, path: &str) -> Answer {
    Connection::open(gateway, Some(identity)).await.get(path, &[]).await
}

fn last(gateway: &Gateway) -> Value {
    gateway.records().pop().unwrap()
}

/// How many blobs there are.
fn blobs(gateway: &Gateway) -> usize {
    fs::read_dir(gateway.path("state/evidence")).unwrap().count()
}

#[tokio::test]
async fn a_kubelet_gets_the_full_config_of_its_pool() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    for versions in [&[&TLS13][..], &[&TLS12]] {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
            let kubelet = cluster.sign(algorithm, "system:node:worker-1", |_| ());
            let config = Arc::new(client(&gateway, versions, Some(&kubelet)));
            let mut connection = Connection::by(&gateway, config).await.unwrap();
            connection.get(PATH, &[]).await.is_config(&full);
            connection.get("/config/worker/", &[]).await.is_config(&full);
        }
    }
    let record = last(&gateway);
    for (field, value) in [
        ("decision", "config"),
        ("verdict", "served"),
        ("shown", "kubelet"),
        ("identity", "kubelet:worker-1"),
        ("name", "worker-1"),
        ("grant", "full"),
        ("pool", POOL),
    ] {
        assert_eq!(record[field], value, "{record}");
    }
    let reason = record["reason"].as_str().unwrap();
    for part in [
        "subject O=system:nodes, CN=system:node:worker-1",
        "issuer CN=kube-csr-signer",
        "serial ",
        "valid until ",
    ] {
        assert!(reason.contains(part), "{part:?} is not in {reason:?}");
    }
    assert_eq!(record["basis"]["client_chain"].as_array().unwrap().len(), 1);
    assert_eq!(record["basis"]["client_chain"][0], record["basis"]["client_certificate_sha256"]);
    gateway.line(|line| line.contains("SERVED full config") && line.contains("client certificate of kubelet:worker-1"));
    let table = gateway.command(&["audit"]);
    assert_eq!(table.matches(" same").count(), 8, "{table}");
    let check = gateway.command(&["check"]);
    assert!(check.contains("a kubelet Full"), "{check}");
}

#[tokio::test]
async fn who_shows_no_certificate_notices_nothing() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    Connection::open(&gateway, None).await.get(PATH, &[]).await.is_config(&pre_approved);
    gateway.config(PATH, &[]).await.is_config(&pre_approved);
    assert_eq!(last(&gateway)["shown"], "nothing");
    let ticket = gateway.ticket().await;
    gateway
        .config(PATH, &[&bearer(&ticket)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    // Elsewhere a certificate is of no interest, whatever it is worth.
    let mut connection = Connection::open(&gateway, Some(&Cluster::new().kubelet("worker-1"))).await;
    for path in ["/healthz", "/readyz", "/v1/attest"] {
        assert_eq!(connection.get(path, &[]).await.status, StatusCode::OK, "{path}");
    }
    connection.get("/config/none", &[]).await.refused(404, "pool-unknown");
}

#[tokio::test]
async fn a_gateway_without_a_client_ca_asks_for_no_certificate() {
    let cluster = Cluster::new();
    let mut gateway = init(&cluster);
    gateway.settings("");
    gateway.run();
    gateway.line(|line| line.contains("pool worker: grants.kubelet gives nothing without tls.client_ca"));
    let answer = get(&gateway, &cluster.kubelet("worker-1"), PATH).await;
    answer.is_config(&gateway.rendered(POOL, "pre-approved"));
    assert_eq!(last(&gateway)["shown"], "nothing");
}

#[tokio::test]
async fn attack_09_a_certificate_that_does_not_hold_is_refused_and_never_nothing() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let past = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let node = "system:node:worker-1";
    let algorithm = &PKCS_ECDSA_P256_SHA256;
    let before = blobs(&gateway);
    for (identity, code) in [
        (Cluster::new().kubelet("worker-1"), "kubelet-certificate-invalid"),
        (
            cluster.sign(algorithm, node, |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]
            }),
            "kubelet-certificate-invalid",
        ),
        (cluster.sign(algorithm, node, past), "kubelet-certificate-expired"),
    ] {
        get(&gateway, &identity, PATH).await.refused(403, code);
        let record = last(&gateway);
        assert_eq!(
            (&record["verdict"], &record["shown"], &record["code"]),
            (&"refused".into(), &"kubelet".into(), &code.into())
        );
        assert_eq!((record.get("identity"), record.get("name")), (None, None), "{record}");
        assert!(record["basis"]["client_certificate_sha256"].is_string());
        assert_eq!(record["basis"].get("client_chain"), None);
    }
    assert_eq!(blobs(&gateway), before, "what a stranger shows is not kept");
    for common_name in ["worker-1", "system:node:", "system:node:Worker-1", "system:admin"] {
        let identity = cluster.sign(algorithm, common_name, |_| ());
        get(&gateway, &identity, PATH).await.refused(403, "kubelet-certificate-not-a-node");
        assert_eq!(last(&gateway)["basis"]["client_chain"].as_array().unwrap().len(), 1);
    }
    assert!(blobs(&gateway) > before, "what the cluster's CA has signed is");
    let table = gateway.command(&["audit"]);
    assert_eq!(
        (table.matches(" unread ").count(), table.matches(" same").count()),
        (3, 7),
        "{table}"
    );
}

#[tokio::test]
async fn strangers_certificates_do_not_fill_the_log() {
    /// More than a source may be wrong at once.
    const ATTEMPTS: usize = 40;
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let mut stranger = Connection::open(&gateway, Some(&Cluster::new().kubelet("worker-1"))).await;
    let mut refused = 0;
    for _ in 0..ATTEMPTS {
        let answer = stranger.get(PATH, &[]).await;
        if answer.status == StatusCode::FORBIDDEN {
            answer.refused(403, "kubelet-certificate-invalid");
            refused += 1;
        } else {
            answer.try_again();
        }
    }
    assert!(refused < ATTEMPTS, "it was listened to each time");
    assert_eq!(gateway.records().len(), refused);
}

#[tokio::test]
async fn attack_09_a_certificate_without_its_key_opens_no_connection() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let (theirs, ours) = (cluster.kubelet("worker-1"), cluster.kubelet("worker-2"));
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let mut config = client(&gateway, versions, None);
        let key = aws_lc_rs::sign::any_supported_type(&ours.key).unwrap();
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(CertifiedKey::new(theirs.chain.clone(), key)));
        // In TLS 1.3 the client is done before the server has looked.
        if let Ok(mut connection) = Connection::by(&gateway, Arc::new(config)).await {
            assert!(connection.try_get(PATH, &[]).await.is_err());
        }
    }
    assert!(gateway.records().is_empty());
}

#[tokio::test]
async fn one_credential_is_shown_or_none_is_taken() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let ticket = bearer(&gateway.ticket().await);
    let before = gateway.records().len();
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    for (path, headers) in [
        (PATH, vec![format!("Authorization: {ticket}")]),
        (PATH, vec!["Authorization: Bearer abc".to_owned()]),
        ("/config/worker?token=abc", vec![]),
    ] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        connection.get(path, &headers).await.refused(403, "credential-ambiguous");
    }
    assert_eq!(gateway.records().len(), before + 3);
    assert_eq!(last(&gateway)["shown"], "unreadable");
    gateway.config(PATH, &[&ticket]).await.is_config(&gateway.rendered(POOL, "full"));
    assert_eq!(last(&gateway)["use_number"], 1, "no use was taken");
}

#[tokio::test]
async fn attack_21_a_node_of_one_pool_gets_nothing_of_another() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let mut worker = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    worker.get("/config/infra", &[]).await.refused(403, "kubelet-wrong-pool");
    let record = last(&gateway);
    assert_eq!(
        (&record["identity"], &record["verdict"]),
        (&"kubelet:worker-1".into(), &"refused".into())
    );
    let told = worker.get("/config/infra", &[]).await.problem();
    assert!(!format!("{told:?}").contains("infra-*"), "{told:?}");
    get(&gateway, &cluster.kubelet("infra-1"), "/config/infra")
        .await
        .is_config(&gateway.rendered("infra", "full"));
    get(&gateway, &cluster.kubelet("infra-1"), PATH)
        .await
        .refused(403, "kubelet-wrong-pool");
    let table = gateway.command(&["audit"]);
    assert_eq!(
        (table.matches(" kubelet-wrong-pool ").count(), table.matches(" same").count()),
        (6, 4),
        "{table}"
    );
}

#[tokio::test]
async fn a_pool_gives_what_it_says_and_by_default_nothing() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let (on, off) = ("\nkubelet = \"full\"", "\nkubelet = \"refuse\"");
    gateway.edit_pool(POOL, on, "");
    gateway.edit_pool(POOL, "[kubelet]\n", "");
    gateway.edit_pool(POOL, "names = [\"worker-*\"]\n", "");
    gateway.edit_pool("infra", on, "\nkubelet = \"pre-approved\"");
    let mut gateway = gateway;
    gateway.run();
    get(&gateway, &cluster.kubelet("worker-1"), PATH)
        .await
        .refused(403, "kubelet-not-accepted");
    let answer = get(&gateway, &cluster.kubelet("infra-1"), "/config/infra").await;
    answer.is_config(&gateway.rendered("infra", "pre-approved"));
    gateway.kill();
    gateway.edit_pool("infra", "\nkubelet = \"pre-approved\"", off);
    gateway.run();
    get(&gateway, &cluster.kubelet("infra-1"), "/config/infra")
        .await
        .refused(403, "kubelet-not-accepted");
    get(&gateway, &cluster.kubelet("other-1"), "/config/infra")
        .await
        .refused(403, "kubelet-wrong-pool");
}

#[test]
fn a_pool_must_say_which_nodes_are_its_own() {
    let gateway = init(&Cluster::new());
    let refused = |said: &str| {
        let check = gateway.try_command(&["check"]);
        let text = String::from_utf8(check.stdout).unwrap();
        assert!(!check.status.success() && text.contains(said), "{said:?} is not in {text}");
    };
    gateway.edit_pool(POOL, "names = [\"worker-*\"]", "names = []");
    refused("[kubelet]: grants.kubelet gives something, so names must say which nodes are this pool's");
    gateway.edit_pool(POOL, "names = []", "names = [\"worker-?\"]");
    refused("\"worker-?\" is no pattern of node names");
}

#[test]
fn a_bundle_that_is_none_is_refused_at_the_start() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let file = gateway.path("tls/kubelet-client-ca.crt");
    let refused = |said: &str| {
        let serve = gateway.try_command(&["serve"]);
        let text = String::from_utf8(serve.stderr).unwrap();
        assert!(
            !serve.status.success() && text.contains("tls.client_ca: ") && text.contains(said),
            "{said:?} is not in {text}"
        );
    };
    fs::write(&file, "").unwrap();
    refused("no certificate");
    fs::copy(gateway.path("tls/mcs.crt"), &file).unwrap();
    refused("is not the certificate of a CA");
    fs::remove_file(&file).unwrap();
    refused("kubelet-client-ca.crt");
}

#[tokio::test]
async fn attack_20_a_client_that_would_resume_makes_a_full_handshake_each_time() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    for version in [&TLS13, &TLS12] {
        let mut config = client(&gateway, &[version], Some(&cluster.kubelet("worker-1")));
        config.resumption = Resumption::in_memory_sessions(16).tls12_resumption(Tls12Resumption::SessionIdOrTickets);
        let config = Arc::new(config);
        for _ in 0..3 {
            let mut connection = Connection::by(&gateway, Arc::clone(&config)).await.unwrap();
            connection.get(PATH, &[]).await.is_config(&full);
            let kind = connection.0.get_ref().1.handshake_kind().unwrap();
            assert!(
                matches!(kind, HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest),
                "{version:?}: {kind:?}"
            );
            let tickets = connection.0.get_ref().1.tls13_tickets_received();
            assert_eq!(tickets, 0, "{version:?}");
        }
    }
}

#[tokio::test]
async fn attack_20_a_node_that_is_revoked_is_refused_on_its_open_connection() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    let mut other = Connection::open(&gateway, Some(&cluster.kubelet("worker-2"))).await;
    connection.get(PATH, &[]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1", "--reason", "disk sold"]);
    let answer = connection.get(PATH, &[]).await;
    answer.refused(403, "node-revoked");
    assert!(
        !String::from_utf8(answer.body).unwrap().contains("disk sold"),
        "why is for the administrator"
    );
    let record = last(&gateway);
    assert!(record["reason"].as_str().unwrap().contains(": disk sold; next: "), "{record}");
    assert_eq!(
        (&record["identity"], &record["name"]),
        (&"kubelet:worker-1".into(), &"worker-1".into())
    );
    other.get(PATH, &[]).await.is_config(&full);
    get(&gateway, &cluster.kubelet("worker-1"), PATH).await.refused(403, "node-revoked");
    gateway.command(&["node", "restore", "worker-1"]);
    connection.get(PATH, &[]).await.is_config(&full);
    let table = gateway.command(&["audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

/// A gateway in this process, which the test can tell to read its certificates again.
async fn in_process(gateway: &Gateway, store: Arc<dyn Store>) -> Arc<attest_gateway::api::Gateway> {
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    let server = Server::bind_with(settings, Clock::System, store).await.unwrap();
    let inner = Arc::clone(server.gateway());
    tokio::spawn(server.serve(std::future::pending::<()>()));
    inner
}

fn embedded(gateway: &Gateway) -> Embedded {
    attest_gateway::store::make_private_folder(&gateway.path("state")).unwrap();
    Embedded::open(&gateway.path("state/gateway.db")).unwrap()
}

#[tokio::test]
async fn attack_20_a_client_ca_that_is_replaced_counts_on_an_open_connection() {
    let (before, after) = (Cluster::new(), Cluster::new());
    let gateway = init(&before);
    let inner = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let full = gateway.rendered(POOL, "full");
    let (old, new) = (before.kubelet("worker-1"), after.kubelet("worker-1"));
    let mut old_connection = Connection::open(&gateway, Some(&old)).await;
    let mut new_connection = Connection::open(&gateway, Some(&new)).await;
    old_connection.get(PATH, &[]).await.is_config(&full);
    // The CA's name is the same, so what is wrong is the signature.
    new_connection.get(PATH, &[]).await.refused(403, "kubelet-certificate-invalid");
    after.install(&gateway);
    inner.tls.reload().unwrap();
    old_connection.get(PATH, &[]).await.refused(403, "kubelet-certificate-invalid");
    new_connection.get(PATH, &[]).await.is_config(&full);
    // A broken bundle leaves everything as it is.
    fs::write(gateway.path("tls/kubelet-client-ca.crt"), "").unwrap();
    assert!(inner.tls.reload().is_err());
    new_connection.get(PATH, &[]).await.is_config(&full);
    get(&gateway, &old, PATH).await.refused(403, "kubelet-certificate-invalid");
}

/// A store that does not know, while it is told not to, who is revoked.
#[derive(Debug)]
struct Failing {
    store: Embedded,
    fails: AtomicBool,
}

#[async_trait]
impl Store for Failing {
    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, StoreError> {
        if kind == Kind::Revoked && self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        self.store.get(kind, id).await
    }

    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        self.store.spend(thing).await
    }

    async fn insert(&self, kind: Kind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.store.insert(kind, entry).await
    }

    async fn put(&self, kind: Kind, entry: Entry) -> Result<(), StoreError> {
        self.store.put(kind, entry).await
    }

    async fn remove(&self, kind: Kind, id: &str) -> Result<bool, StoreError> {
        self.store.remove(kind, id).await
    }

    async fn change(&self, kind: Kind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.store.change(kind, expected, write).await
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Entry>, StoreError> {
        self.store.list(kind).await
    }

    async fn forget_expired(&self, now: u64) -> Result<(), StoreError> {
        self.store.forget_expired(now).await
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_taken_for_trust() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let store = Arc::new(Failing {
        store: embedded(&gateway),
        fails: AtomicBool::new(true),
    });
    in_process(&gateway, Arc::<Failing>::clone(&store)).await;
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    connection.get(PATH, &[]).await.try_again();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let attest = || gateway.attest(support::next_boot(&case), Some("worker-1"));
    assert_eq!(attest().await.status, StatusCode::SERVICE_UNAVAILABLE);
    store.fails.store(false, Ordering::Relaxed);
    let ticket = bearer(&attest().await.ticket());
    store.fails.store(true, Ordering::Relaxed);
    gateway.config(PATH, &[&ticket]).await.try_again();
    store.fails.store(false, Ordering::Relaxed);
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    connection.get(PATH, &[]).await.is_config(&full);
}

#[tokio::test]
async fn a_revoked_name_gets_nothing_by_attestation_or_ticket() {
    let gateway = start(&Cluster::new());
    let (named, other) = (tpm(), tpm());
    gateway.endorse(&named, &[]);
    gateway.endorse(&other, &["--name", "worker-9"]);
    let ticket = bearer(&gateway.attest(support::next_boot(&named), Some("worker-1")).await.ticket());
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.config(PATH, &[&ticket]).await.refused(403, "node-revoked");
    gateway
        .attest(support::next_boot(&named), Some("worker-1"))
        .await
        .refused(403, "node-revoked");
    // A machine is known by its name, also if it does not say it.
    gateway.attest(support::next_boot(&named), None).await.refused(403, "node-revoked");
    gateway.attest(support::next_boot(&other), None).await.ticket();
    gateway.command(&["node", "revoke", "worker-9"]);
    gateway.attest(support::next_boot(&other), None).await.refused(403, "node-revoked");
    let table = gateway.command(&["audit"]);
    assert!(table.contains(" node-revoked ") && !table.contains("DIFFERENT"), "{table}");
    gateway.command(&["node", "restore", "worker-1"]);
    gateway.attest(support::next_boot(&named), None).await.ticket();
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
}

#[tokio::test]
async fn revocations_are_listed() {
    let gateway = start(&Cluster::new());
    let case = tpm();
    let digest = gateway.endorse(&case, &["--name", "worker-1"]);
    gateway.command(&["node", "revoke", "worker-7", "--reason", "disk sold"]);
    let rows = |table: String| -> Vec<String> {
        table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    let table = rows(gateway.command(&["node", "list"]));
    assert_eq!(
        table[..2],
        ["NODE IDENTITY STATE".to_owned(), format!("worker-1 tpm:{digest} known")]
    );
    assert!(
        table[2].starts_with("worker-7 - revoked 20") && table[2].ends_with("Z: disk sold"),
        "{table:?}"
    );
    gateway.command(&["node", "revoke", "worker-1"]);
    let table = rows(gateway.command(&["node", "list"]));
    assert!(table[1].starts_with(&format!("worker-1 tpm:{digest} revoked 20")), "{table:?}");
    gateway.command(&["node", "restore", "worker-7"]);
    assert_eq!(gateway.command(&["node", "list"]).lines().count(), 2);
    for wrong in [
        &["node", "restore", "worker-7"][..],
        &["node", "revoke", "system:node:worker-1"],
        &["node", "revoke", ""],
        &["node", "revoke", "worker-1", "--reason", &"x".repeat(201)],
    ] {
        assert!(!gateway.try_command(wrong).status.success(), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_auditor_sees_what_was_altered() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    get(&gateway, &cluster.kubelet("worker-1"), PATH)
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    let record = last(&gateway);
    let log = gateway.path("altered.jsonl");
    let line = record.to_string();
    let audit = |line: &str| {
        fs::write(&log, format!("{line}\n")).unwrap();
        let output = gateway.try_command(&["audit", "--log", log.to_str().unwrap()]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (same, table) = audit(&line);
    assert!(same && table.contains(" same"), "{table}");
    let sha256 = record["basis"]["client_chain"][0].as_str().unwrap();
    let at = record["at"].as_u64().unwrap();
    for (from, to) in [
        ("kubelet:worker-1", "kubelet:worker-2".to_owned()),
        ("\"served\"", "\"refused\",\"code\":\"kubelet-certificate-invalid\"".to_owned()),
        ("worker-*", "worker-x*".to_owned()),
        (&format!("\"at\":{at}"), format!("\"at\":{}", 1)),
        (&format!("[\"{sha256}\"]"), "[]".to_owned()),
        (&format!("[\"{sha256}\"]"), format!("[\"{}\"]", "0".repeat(64))),
    ] {
        assert!(line.contains(from), "{from:?} is not in {line}");
        let (same, table) = audit(&line.replace(from, &to));
        assert!(!same && table.contains("DIFFERENT"), "{from:?}: {table}");
    }
    // One byte of the chain that is kept.
    let blob = gateway.path("state/evidence").join(format!("{sha256}.gz"));
    let mut bytes = fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let (same, table) = audit(&line);
    assert!(!same && table.contains("DIFFERENT"), "{table}");
}
