//! Processor time of the gateway to serve a real worker's config, as a ratio to the floor that is measured in the same run. The floor is a
//! server on the same TLS that decides nothing, records nothing, and writes the same bytes.
//!
//! Concurrent nodes share the fsyncs of the attestation log, like when a rack boots; the limit is about them. For one node after the other,
//! a second floor makes a line durable too. The cost of an fsync depends on the disk and its driver, and the gateway cannot reduce it.
//!
//! `cargo bench -p attest-gateway --bench serve`; it fails if the gateway costs more than [`LIMIT_RATIO`].

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod floor;
mod results;
mod worker;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use attest_gateway::pki::{self, GatewayNames};
use attest_gateway::server::Server;
use attest_gateway::settings::{Settings, TlsSettings};
use attest_system::clock::Clock;
use results::{Bound, Figure};
use rustix::time::{ClockId, clock_gettime};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tracing_subscriber::EnvFilter;

/// Maximum ratio of the gateway's processor time for a request to that of the floor, with concurrent nodes.
const LIMIT_RATIO: f64 = 1.3;
/// Number of rounds: all servers are measured by turns, so that other load on the machine affects each of them.
const ROUNDS: usize = 20;
const REQUESTS_PER_ROUND: usize = 64;
/// Number of concurrent nodes.
const TOGETHER: usize = 32;
/// Size of a real worker's config as it is served, in bytes.
const SERVED_BYTES: std::ops::RangeInclusive<usize> = 700_000..=900_000;
/// Request of an Ignition version that knows spec 3.4.
const REQUEST: &str = "GET /config/worker HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Ignition/2.15.0\r\n\
    Accept: application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1\r\nAccept-Encoding: identity\r\n\r\n";

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (rounds, requests) = if measuring { (ROUNDS, REQUESTS_PER_ROUND) } else { (1, TOGETHER) };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path());
    // The console's line for each request is part of the cost; showing it is not.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&settings.log_filter))
        .with_writer(std::io::sink)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = Client::new(&settings.tls);

    let server = runtime.block_on(Server::bind(settings.clone(), Clock::System)).unwrap();
    let gateway = server.local_addr().unwrap();
    runtime.spawn(server.serve(std::future::pending()));
    // The first answer is rendered; what comes is what the floor is to send too.
    let answer = client.get(gateway);
    let body = answer.len() - head_length(&answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 ") && SERVED_BYTES.contains(&body), "{body} bytes");
    let log = fs::read_to_string(settings.attestation_log()).unwrap();
    let recorder = recorder(folder.path().join("lines"), format!("{}\n", log.lines().next().unwrap()));
    let tls = floor::tls(&settings.tls.certificate, &settings.tls.key);
    let mut all = Vec::new();
    for (name, recorder) in [("tokio-rustls alone", None), ("tokio-rustls, a line made durable", Some(recorder))] {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        all.push((name, listener.local_addr().unwrap()));
        runtime.spawn(serve_floor(listener, tls.clone(), answer.clone().into(), recorder));
    }
    all.push(("the gateway", gateway));
    assert!(all.iter().all(|(_, address)| client.get(*address).len() == answer.len()));

    println!("{body} bytes, a full TLS 1.3 handshake for each request; {ROUNDS} rounds of {REQUESTS_PER_ROUND} requests");
    let measure = |nodes: usize, servers: &[usize]| {
        let mut costs = vec![Vec::new(); servers.len()];
        for _ in 0..rounds {
            for (costs, (_, address)) in costs.iter_mut().zip(servers.iter().map(|server| &all[*server])) {
                costs.push(client.cost(*address, nodes, requests / nodes, answer.len()));
            }
        }
        let names = servers.iter().map(|server| all[*server].0);
        measuring.then(|| report(nodes, names.zip(costs).collect()))
    };
    measure(1, &[0, 1, 2]);
    let Some(ratio) = measure(TOGETHER, &[0, 2]) else {
        return println!("no figures: this was no measuring run");
    };
    println!("\nserving {TOGETHER} nodes together: {ratio:.2}x the floor, at most {LIMIT_RATIO}x is allowed");
    let name = format!("serving {TOGETHER} nodes together, as a ratio to tokio-rustls alone");
    results::report([Figure::from_runs(name, "x", &[ratio]).limit(Bound::AtMost(LIMIT_RATIO))]);
    if ratio > LIMIT_RATIO {
        std::process::exit(1);
    }
}

/// Prints a table. Returns the last server's ratio to the first.
fn report(nodes: usize, servers: Vec<(&str, Vec<Duration>)>) -> f64 {
    println!(
        "\n{:<34} {:>12} {:>12} {:>12} {:>8}",
        format!("processor time, nodes together: {nodes}"),
        "median",
        "least",
        "most",
        "ratio"
    );
    let (mut floor, mut last) = (None, 0.0);
    for (name, mut costs) in servers {
        costs.sort_unstable();
        let micros = |place: usize| costs[place].as_secs_f64() * 1e6;
        let median = f64::midpoint(micros(costs.len() / 2), micros((costs.len() - 1) / 2));
        last = median / *floor.get_or_insert(median);
        let (least, most) = (micros(0), micros(costs.len() - 1));
        println!("{name:<34} {median:>9.1} µs {least:>9.1} µs {most:>9.1} µs {last:>7.2}x");
        let all: Vec<f64> = (0..costs.len()).map(micros).collect();
        results::report([Figure::from_runs(format!("{name}, nodes together: {nodes}"), "µs", &all)]);
    }
    last
}

/// Creates a gateway's folder whose pool gives the worker's full config to unauthenticated clients.
fn settings(folder: &Path) -> Settings {
    let mut settings = Settings::defaults(folder).unwrap();
    settings.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let names = GatewayNames {
        hosts: Vec::new(),
        addresses: vec![settings.listen.ip()],
    };
    pki::create(&settings.tls, &names, Clock::System.now()).unwrap();
    fs::create_dir_all(&settings.ek_roots).unwrap();
    let pool = settings.pools.join("worker");
    worker::write(&pool.join("machine-configs"), &worker::machine_configs(true)).unwrap();
    let to_anybody = attest_pool::SAMPLE.replace("nothing = \"pre-approved\"", "nothing = \"full\"");
    fs::write(pool.join("pool.toml"), to_anybody).unwrap();
    settings
}

/// Channel of requests to make a line durable.
type Recorder = mpsc::Sender<oneshot::Sender<()>>;

/// Appends the same line each time, durably, on a thread of its own.
fn recorder(path: PathBuf, line: String) -> Recorder {
    let (sender, receiver) = mpsc::channel::<oneshot::Sender<()>>();
    std::thread::spawn(move || {
        let mut file = fs::File::create(path).unwrap();
        while let Ok(done) = receiver.recv() {
            file.write_all(line.as_bytes()).unwrap();
            file.sync_data().unwrap();
            let _ = done.send(());
        }
    });
    sender
}

/// Answers every request with the same bytes.
async fn serve_floor(listener: TcpListener, tls: TlsAcceptor, answer: Arc<[u8]>, recorder: Option<Recorder>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, answer, recorder) = (tls.clone(), Arc::clone(&answer), recorder.clone());
        tokio::spawn(async move {
            stream.set_nodelay(true).unwrap();
            let mut stream = tls.accept(stream).await.unwrap();
            let mut request = Vec::with_capacity(8192);
            // Until the client has nothing more to ask, and closes.
            while let Ok(read) = stream.read_buf(&mut request).await
                && read > 0
            {
                if head_length(&request).is_some() {
                    if let Some(recorder) = &recorder {
                        let (done, written) = oneshot::channel();
                        recorder.send(done).unwrap();
                        written.await.unwrap();
                    }
                    stream.write_all(&answer).await.unwrap();
                    stream.flush().await.unwrap();
                    request.clear();
                }
            }
            drop(stream.shutdown().await);
        });
    }
}

/// Returns the length of a request's or answer's head, with the empty line.
fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|start| start + 4)
}

/// Client of a node. It blocks its thread, whose processor time can be separated from the servers'.
struct Client(Arc<ClientConfig>);

impl Client {
    fn new(settings: &TlsSettings) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in floor::certificates(&settings.ca) {
            roots.add(certificate).unwrap();
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }

    /// Sends a request on a connection of its own, and returns the whole answer.
    fn get(&self, address: SocketAddr) -> Vec<u8> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let connection = ClientConnection::new(Arc::clone(&self.0), ServerName::from(address.ip())).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(REQUEST.as_bytes()).unwrap();
        let mut answer = Vec::with_capacity(1024 * 1024);
        let mut chunk = [0; 16 * 1024];
        let whole = loop {
            if let Some(head) = head_length(&answer) {
                break head + content_length(&answer[..head]);
            }
            let read = stream.read(&mut chunk).unwrap();
            answer.extend_from_slice(&chunk[..read]);
        };
        while answer.len() < whole {
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the answer ended early");
            answer.extend_from_slice(&chunk[..read]);
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        answer
    }

    /// Returns the server's processor time for each request of concurrent nodes: all except the nodes' threads.
    fn cost(&self, address: SocketAddr, nodes: usize, requests: usize, length: usize) -> Duration {
        let before = time(ClockId::ProcessCPUTime);
        let own: Duration = std::thread::scope(|scope| {
            let node = || {
                for _ in 0..requests {
                    assert_eq!(self.get(address).len(), length);
                }
                time(ClockId::ThreadCPUTime)
            };
            let nodes: Vec<_> = (0..nodes).map(|_| scope.spawn(node)).collect();
            nodes.into_iter().map(|node| node.join().unwrap()).sum()
        });
        (time(ClockId::ProcessCPUTime) - before - own) / u32::try_from(nodes * requests).unwrap()
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = std::str::from_utf8(head).unwrap().to_ascii_lowercase();
    let line = head.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    line.trim().parse().unwrap()
}

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap()
}
