//! Duration of an honest attestation during each attack by unauthenticated clients, as a ratio to its duration alone in the same run. It
//! consists of challenge, evidence and the config, each on a connection of its own. The gateway is the real program. Attackers come from
//! another address, with as many connections as the attack needs, and begin again whenever they are cut off.
//!
//! `cargo bench -p attest-gateway --bench beside`; it fails if the median during an attack is more than [`LIMIT_RATIO`] times that alone.
//! It also fails if the attestation log grows beyond the budget for unauthenticated clients, in a whole minute of the attack that fills the
//! log.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod results;
#[path = "../tests/support/mod.rs"]
mod support;
mod worker;

use std::fs;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use attest::protocol::{Blob, ChallengeRequest};
use attest_gateway::recording::{STRANGERS_AT_ONCE_BYTES, STRANGERS_EACH_SECOND_BYTES};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use results::{Bound, Figure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::version::TLS13;
use support::kubelet::{PATH, client};
use support::{Case, Gateway, POOL, SPEC, accept, bearer, challenge_request, tpm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Maximum ratio of an honest attestation's duration during an attack to that alone.
const LIMIT_RATIO: f64 = 3.0;
/// Number of attestations alone and during each attack.
const ATTESTATIONS: usize = 40;
/// Address of the attackers. All addresses in 127.0.0.0/8 belong to this machine.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Maximum wait for the start of an attack: thousands of handshakes take seconds.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Attack that fills the log, and its minimum duration: the initial budget is used up in seconds.
const LOG_FLOOD: &str = "refusals that fill the log";
const LOG_FLOOD_LEAST: Duration = Duration::from_secs(60);
/// Maximum growth of the log in that time.
const LOG_FLOOD_LIMIT_BYTES: u64 = 20_000_000;
/// Growth of the log during an attack by aggregated records and by retries of honest nodes.
const LOG_SLACK_BYTES: u64 = 256 * 1024;

type Attack = fn(Arc<Stranger>) -> Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

/// Attacks, each with the number of concurrent attackers that it needs.
const ATTACKS: [(&str, usize, Attack); 6] = [
    ("600 bodies that do not end", 600, |stranger| Box::pin(unfinished_body(stranger))),
    ("costly challenges", 4, |stranger| Box::pin(costly_challenges(stranger))),
    (LOG_FLOOD, 4, |stranger| Box::pin(large_refusals(stranger))),
    ("4,000 idle connections", 4000, |stranger| Box::pin(idle(stranger))),
    ("300 slow readers of configs", 300, |stranger| Box::pin(slow_reader(stranger))),
    ("wrong tokens", 4, |stranger| Box::pin(invalid_tokens(stranger))),
];

/// Data and connections of an attacker.
struct Stranger {
    gateway: Arc<Gateway>,
    tls: Arc<rustls::ClientConfig>,
    http: reqwest::Client,
    token: String,
    costly: ChallengeRequest,
    large: ChallengeRequest,
    /// Number of connections that are attacking.
    ready: AtomicUsize,
}

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let attestations = if measuring { ATTESTATIONS } else { 1 };
    many_files();
    let gateway = gateway();
    let node = tpm();
    gateway.endorse(&node, &[]);
    let ek = node.ek_area.clone();
    let gateway = Arc::new(gateway);
    let nodes = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let measure = || -> Vec<Duration> {
        let one = || {
            let case = tpm().but(|case| case.ek_area = ek.clone());
            nodes.block_on(attestation(&gateway, case))
        };
        let mut all: Vec<Duration> = (0..attestations).map(|_| one()).collect();
        all.sort_unstable();
        all
    };
    measure();
    println!(
        "{:<30} {:>10} {:>10} {:>10} {:>10} {:>7} {:>12}",
        "beside", "median", "alone", "95 of 100", "alone", "ratio", "log"
    );
    let mut worst = 0.0_f64;
    let (mut floods, mut figures) = (Vec::new(), Vec::new());
    for (name, strangers, attack) in ATTACKS {
        let strangers = if measuring { strangers } else { strangers.min(20) };
        let log_alone = log_bytes(&gateway);
        let alone = measure();
        let log_before = log_bytes(&gateway);
        let log_honest = log_before - log_alone;
        let attackers = Runtime::new().unwrap();
        let stranger = Arc::new(stranger(&gateway));
        for _ in 0..strangers {
            let stranger = Arc::clone(&stranger);
            attackers.spawn(async move {
                loop {
                    // However it ended, it begins again.
                    drop(attack(Arc::clone(&stranger)).await);
                    tokio::task::yield_now().await;
                }
            });
        }
        let begun = Instant::now();
        while stranger.ready.load(Ordering::Relaxed) < strangers * 9 / 10 && begun.elapsed() < READY_LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let beside = measure();
        if name == LOG_FLOOD && measuring {
            std::thread::sleep(LOG_FLOOD_LEAST.saturating_sub(begun.elapsed()));
        }
        let log = log_bytes(&gateway) - log_before;
        let took = begun.elapsed();
        attackers.shutdown_background();
        let allowed = log_allowed_bytes(took) + log_honest;
        if log > allowed {
            floods.push(format!(
                "{name}: the log has grown by {log} bytes in {took:?}, {allowed} are allowed"
            ));
        }
        if name == LOG_FLOOD && measuring {
            let strangers = log.saturating_sub(log_honest);
            println!("the log has grown by {strangers} bytes of strangers' in {took:?}, {LOG_FLOOD_LIMIT_BYTES} are allowed in a minute");
            if took < LOG_FLOOD_LEAST * 2 && strangers > LOG_FLOOD_LIMIT_BYTES {
                floods.push(format!("{name}: {strangers} bytes in {took:?}"));
            }
            if !is_counted(&gateway) {
                floods.push(format!("{name}: so little that nothing was counted, which shows nothing"));
            }
        }
        let millis = |all: &[Duration], hundredth: usize| all[(all.len() - 1) * hundredth / 100].as_secs_f64() * 1e3;
        let ratio = millis(&beside, 50) / millis(&alone, 50);
        println!(
            "{name:<30} {:>7.1} ms {:>7.1} ms {:>7.1} ms {:>7.1} ms {ratio:>6.2}x {:>6} KB/{:.0}s",
            millis(&beside, 50),
            millis(&alone, 50),
            millis(&beside, 95),
            millis(&alone, 95),
            log / 1000,
            took.as_secs_f64(),
        );
        worst = worst.max(ratio);
        figures.push(
            Figure::from_runs(format!("an attestation beside {name}, as a ratio to alone"), "x", &[ratio])
                .limit(Bound::AtMost(LIMIT_RATIO)),
        );
    }
    for flood in &floods {
        println!("{flood}");
    }
    if !measuring {
        assert!(floods.is_empty(), "the log was flooded");
        return println!("no figures: this was no measuring run");
    }
    println!("\nthe gateway's memory was {} MB at most", most_memory_bytes(&gateway) / 1_000_000);
    println!("at most {worst:.2}x, {LIMIT_RATIO}x is allowed");
    results::report(figures);
    if worst > LIMIT_RATIO || !floods.is_empty() {
        std::process::exit(1);
    }
}

/// Raises the limit of open files for thousands of connections, here and in the gateway, which inherits it.
fn many_files() {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Starts a gateway with a real worker's config, for attestations and tokens.
fn gateway() -> Gateway {
    let mut gateway = Gateway::init();
    gateway.machine_configs(POOL, &[]);
    worker::write(
        &gateway.path("pools").join(POOL).join("machine-configs"),
        &worker::machine_configs(true),
    )
    .unwrap();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    gateway
}

fn most_memory_bytes(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.process_id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn log_bytes(gateway: &Gateway) -> u64 {
    fs::metadata(gateway.path("state/attestation.jsonl")).unwrap().len()
}

/// Returns the maximum growth of the log by unauthenticated clients in that time.
fn log_allowed_bytes(took: Duration) -> u64 {
    STRANGERS_AT_ONCE_BYTES + STRANGERS_EACH_SECOND_BYTES * (took.as_secs() + 1) + LOG_SLACK_BYTES
}

/// Returns whether some refusals were recorded in aggregate.
fn is_counted(gateway: &Gateway) -> bool {
    gateway.records().iter().any(|record| record["decision"] == "counted")
}

/// Attests like a node, and returns the duration. A request that is answered by 503 is retried, as nodes do.
async fn attestation(gateway: &Gateway, case: Case) -> Duration {
    let client = http(gateway, Ipv4Addr::LOCALHOST);
    let asked = challenge_request(&case, POOL);
    let challenge = gateway.challenge(&case, None);
    let answer = gateway.answer(case, &challenge);
    let begun = Instant::now();
    let ask = async |request: &dyn Fn() -> reqwest::RequestBuilder| loop {
        if let Ok(response) = request().send().await
            && response.status() != 503
        {
            assert_eq!(response.status(), 200);
            break response.bytes().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    };
    ask(&|| client.post(gateway.url("/v1/attest/challenge")).json(&asked)).await;
    let earned = ask(&|| client.post(gateway.url("/v1/attest/evidence")).json(&answer)).await;
    let ticket = serde_json::from_slice::<attest::protocol::EvidenceResponse>(&earned)
        .unwrap()
        .ticket;
    let config = ask(&|| {
        client
            .get(gateway.url(PATH))
            .header("accept", accept(SPEC))
            .header("authorization", bearer(&ticket))
    })
    .await;
    assert!(config.len() > 100_000);
    begun.elapsed()
}

/// Returns a client from this address with a new connection for each request.
fn http(gateway: &Gateway, address: Ipv4Addr) -> reqwest::Client {
    let ca = reqwest::Certificate::from_pem(&fs::read(gateway.path("tls/mcs-ca.crt")).unwrap()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([ca])
        .no_proxy()
        .local_address(IpAddr::from(address))
        .pool_max_idle_per_host(if address == STRANGER { usize::MAX } else { 0 })
        .build()
        .unwrap()
}

fn stranger(gateway: &Arc<Gateway>) -> Stranger {
    let mut costly = challenge_request(&tpm(), POOL);
    let mut large = challenge_request(&tpm(), POOL);
    let (leaf, intermediates) = chain_of_namesakes();
    let tpm = costly.attester.tpm.as_mut().unwrap();
    tpm.ek_certificate = Some(Blob(leaf));
    tpm.ek_intermediates = intermediates.into_iter().map(Blob).collect();
    large.attester.tpm.as_mut().unwrap().ek_intermediates = (0..7).map(|number| Blob(vec![number; 5600])).collect();
    Stranger {
        gateway: Arc::clone(gateway),
        tls: Arc::new(client(gateway, &[&TLS13], None)),
        http: http(gateway, STRANGER),
        token: gateway.token(&[]),
        costly,
        large,
        ready: AtomicUsize::new(0),
    }
}

/// Creates a certificate, and eight issuers of it with the same name and different keys.
fn chain_of_namesakes() -> (Vec<u8>, Vec<Vec<u8>>) {
    let issuer = || {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "namesake");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        (
            parameters.self_signed(&key).unwrap().der().to_vec(),
            rcgen::Issuer::new(parameters, key),
        )
    };
    let (certificates, mut issuers): (Vec<_>, Vec<_>) = (0..8).map(|_| issuer()).unzip();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::default().signed_by(&key, &issuers.remove(0)).unwrap();
    (leaf.der().to_vec(), certificates)
}

async fn connect(stranger: &Stranger, receive_bytes: Option<u32>) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = receive_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind((STRANGER, 0).into())?;
    let stream = socket.connect(stranger.gateway.address()).await?;
    TlsConnector::from(Arc::clone(&stranger.tls))
        .connect("localhost".try_into().unwrap(), stream)
        .await
}

/// Attacks until the gateway closes the connection.
async fn until_cut(stranger: &Stranger, mut stream: TlsStream<TcpStream>) -> std::io::Result<()> {
    stranger.ready.fetch_add(1, Ordering::Relaxed);
    let ended = stream.read_to_end(&mut Vec::new()).await;
    stranger.ready.fetch_sub(1, Ordering::Relaxed);
    ended.map(drop)
}

async fn unfinished_body(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let mut stream = connect(&stranger, None).await?;
    stream
        .write_all(b"POST /v1/attest/evidence HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n{")
        .await?;
    until_cut(&stranger, stream).await
}

async fn idle(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let stream = connect(&stranger, None).await?;
    until_cut(&stranger, stream).await
}

async fn slow_reader(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let mut stream = connect(&stranger, Some(4096)).await?;
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
        stranger.token
    );
    stream.write_all(request.as_bytes()).await?;
    stranger.ready.fetch_add(1, Ordering::Relaxed);
    // A few bytes a second.
    let mut byte = [0];
    while stream.read(&mut byte).await.is_ok_and(|read| read > 0) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stranger.ready.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

async fn costly_challenges(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let url = stranger.gateway.url("/v1/attest/challenge");
    flood(&stranger, || stranger.http.post(&url).json(&stranger.costly)).await
}

async fn large_refusals(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let url = stranger.gateway.url("/v1/attest/challenge");
    flood(&stranger, || stranger.http.post(&url).json(&stranger.large)).await
}

async fn invalid_tokens(stranger: Arc<Stranger>) -> std::io::Result<()> {
    let url = stranger.gateway.url(PATH);
    flood(&stranger, || stranger.http.get(&url).bearer_auth("A".repeat(43))).await
}

/// Sends one request after the other, for ever.
async fn flood(stranger: &Stranger, request: impl Fn() -> reqwest::RequestBuilder) -> std::io::Result<()> {
    let mut answered = false;
    loop {
        let Ok(response) = request().send().await else { continue };
        drop(response.bytes().await);
        if !answered {
            answered = true;
            stranger.ready.fetch_add(1, Ordering::Relaxed);
        }
    }
}
