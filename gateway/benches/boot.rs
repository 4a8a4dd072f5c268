//! Processor time of the gateway for an attested boot, from the node's first byte to the last of its config. It is a ratio to the floor,
//! which is measured in the same run. The floor is a server on the same TLS and the same two connections that decides nothing, records
//! nothing and writes the same bytes. The raw operations that prove the node are added to it, each once.
//!
//! Gateway and floor are processes of their own. A node makes the requests of a real one: a challenge and evidence on one connection, like
//! `attest-node`, and its config on another, like Ignition. Its EK certificate is of ECDSA P-256, its event log of 34 KB its own. `cargo
//! bench -p attest-gateway --bench boot`; it fails if a boot costs more than [`LIMIT_RATIO`] times the floor.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod firmware;
mod floor;
#[path = "../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod process;
mod results;
#[path = "../tests/support/mod.rs"]
mod support;
mod worker;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::protocol::DISCOVERY_PATH;
use attest::{HashAlg, SpkiSha256};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey};
use aws_lc_rs::{agreement, rand};
use firmware::Firmware;
use results::{Bound, Figure};
use support::node::Node;
use support::soft_tpm::maker::Maker;
use support::{Answer, Gateway, POOL};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Maximum ratio of a boot's cost to the floor: a little above the value that was measured when it was set.
const LIMIT_RATIO: f64 = 3.5;
/// Goal for the ratio.
const GOAL_RATIO: f64 = 1.5;
/// Number of rounds: both servers are measured by turns, so that other load on the machine affects both.
const ROUNDS: usize = 5;
const BOOTS_PER_ROUND: usize = 100;
/// Number of concurrent nodes.
const TOGETHER: usize = 16;
/// Numbers of concurrent nodes whose boots are measured, too.
const COMPANIES: [usize; 3] = [1, 4, 32];
/// Number of repetitions of a cheap request.
const OFTEN: u32 = 20;
/// Environment variable that makes this program the floor: the folder of its answers, certificate and key.
const FLOOR: &str = "BOOT_FLOOR";
/// Names of the answers, in the order in which a boot gets them.
const ANSWERS: [&str; 3] = ["challenge", "evidence", "config"];

/// Machine, and its requests in each of its boots.
struct Machine {
    node: Node,
    /// Evidence of the machine's last boot.
    sent: Option<attest::protocol::EvidenceRequest>,
}

/// Last step of a boot whose steps are measured: discovery, many of them, a challenge, evidence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Discovery,
    Often,
    Challenge,
    Evidence,
}

/// Server for the nodes, with the key by which they know it.
struct Site {
    /// Creates the client of one node, which keeps its connection.
    client: Box<dyn Fn() -> reqwest::Client + Send + Sync>,
    url: String,
    key: SpkiSha256,
    firmware: Firmware,
}

impl Site {
    /// Boots a machine, and returns the answers.
    async fn boot(&self, machine: &mut Machine, round: usize) -> [Answer; 3] {
        let client = (self.client)();
        machine.node.takes_compressed_configs();
        let log = self.firmware.event_log(machine.node.ek().as_bytes(), round);
        machine.node.has_booted(log.build(), &log.pcrs(HashAlg::Sha256));
        let challenged = Answer::send(machine.node.challenge(&client, &self.url)).await;
        let evidence = machine.node.evidence(&challenged, &self.key);
        let attested = Answer::send(Node::send(&client, &self.url, &evidence)).await;
        machine.sent = Some(evidence);
        let config = Answer::send(Node::config(&(self.client)(), &self.url, &attested.ticket())).await;
        assert_eq!(config.status, 200);
        [challenged, attested, config]
    }

    /// Runs the first steps of a boot, on one connection.
    async fn begin(&self, machine: &mut Machine, step: Step) {
        let client = (self.client)();
        for _ in 0..if step == Step::Often { OFTEN } else { 1 } {
            let discovered = client
                .get(format!("{}{DISCOVERY_PATH}?pool={POOL}", self.url))
                .send()
                .await
                .unwrap();
            assert_eq!(discovered.status(), 200);
            discovered.bytes().await.unwrap();
        }
        if matches!(step, Step::Challenge | Step::Evidence) {
            let challenged = Answer::send(machine.node.challenge(&client, &self.url)).await;
            if step == Step::Evidence {
                let evidence = machine.node.evidence(&challenged, &self.key);
                Answer::send(Node::send(&client, &self.url, &evidence)).await.ticket();
            }
        }
    }

    /// Makes the same connections, requests and answers as a boot, with invalid contents.
    async fn act(&self, machine: &Machine, ticket: &str) {
        let client = (self.client)();
        Answer::send(machine.node.challenge(&client, &self.url)).await;
        Answer::send(Node::send(&client, &self.url, machine.sent.as_ref().unwrap())).await;
        let config = Answer::send(Node::config(&(self.client)(), &self.url, ticket)).await;
        assert_eq!(config.status, 200);
    }
}

fn main() {
    if let Some(folder) = std::env::var_os(FLOOR) {
        return serve_floor(Path::new(&folder));
    }
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (rounds, boots) = if measuring { (ROUNDS, BOOTS_PER_ROUND) } else { (1, 4) };
    let mut gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    for configs in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.path("pools").join(POOL).join(configs)).unwrap();
    }
    worker::write(
        &gateway.path("pools").join(POOL).join("machine-configs"),
        &worker::machine_configs(true),
    )
    .unwrap();
    gateway.run();
    let runtime = Runtime::new().unwrap();
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let machine = || Machine {
        node: Node::made_by(&maker),
        sent: None,
    };
    let gateway = Arc::new(gateway);
    let site = |url: String| {
        let gateway = Arc::clone(&gateway);
        Arc::new(Site {
            client: Box::new(move || gateway.client_from([127, 0, 0, 1])),
            url,
            key,
            firmware: Firmware::new(),
        })
    };
    let real = site(gateway.url(""));
    let mut machines: Vec<Machine> = std::iter::repeat_with(machine).take(boots).collect();
    // What is rendered once, and what the floor answers.
    let answers = runtime.block_on(real.boot(&mut machines[0], usize::MAX));
    let floor = Floor::start(&gateway, &answers);
    let acted = site(format!("https://{}", floor.address));
    let (ticket, bytes) = (answers[1].ticket(), answers[2].body.len());
    println!("{bytes} bytes of config, {TOGETHER} nodes together; {rounds} rounds of {boots} boots");

    let mut costs = [Vec::new(), Vec::new()];
    let mut by_company = COMPANIES.map(|_| Vec::new());
    let written = || process::written(gateway.process_id());
    let before = written();
    let mut booting = Duration::ZERO;
    for round in 0..rounds {
        let begun = (Instant::now(), process::spent(gateway.process_id()));
        machines = runtime.block_on(together(machines, TOGETHER, |machine| boot(&real, machine, round)));
        booting += begun.0.elapsed();
        costs[0].push((process::spent(gateway.process_id()) - begun.1) / u32::try_from(boots).unwrap());
        for (company, costs) in COMPANIES.into_iter().zip(&mut by_company) {
            let begun = process::spent(gateway.process_id());
            machines = runtime.block_on(together(machines, company, |machine| boot(&real, machine, round)));
            costs.push((process::spent(gateway.process_id()) - begun) / u32::try_from(boots).unwrap());
        }
        let begun = process::spent(floor.process.id());
        machines = runtime.block_on(together(machines, TOGETHER, |machine| {
            let (site, ticket) = (Arc::clone(&acted), ticket.clone());
            async move {
                site.act(&machine, &ticket).await;
                machine
            }
        }));
        costs[1].push((process::spent(floor.process.id()) - begun) / u32::try_from(boots).unwrap());
    }
    let steps = [Step::Discovery, Step::Often, Step::Challenge, Step::Evidence].map(|step| {
        let begun = process::spent(gateway.process_id());
        for _ in 0..rounds {
            let begin = |mut machine: Machine| {
                let site = Arc::clone(&real);
                async move {
                    site.begin(&mut machine, step).await;
                    machine
                }
            };
            machines = runtime.block_on(together(std::mem::take(&mut machines), TOGETHER, begin));
        }
        (process::spent(gateway.process_id()) - begun).as_secs_f64() * 1e3 / f64::from(u32::try_from(rounds * boots).unwrap())
    });
    let all = u32::try_from(rounds * boots).unwrap();
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    let proof = proof();
    println!(
        "\n{:<46} {:>10} {:>10} {:>10}",
        "processor time of one boot", "median", "least", "most"
    );
    let [gateway_median, static_median] =
        [("the gateway", 0), ("static TLS server, the same connections", 1)].map(|(name, place)| report(name, &mut costs[place]));
    for (company, costs) in COMPANIES.into_iter().zip(&mut by_company) {
        report(&format!("the gateway, {company} at a time"), costs);
    }
    println!(
        "{:<46} {:>7.2} ms",
        "raw operations: two signatures, one agreement",
        proof.as_secs_f64() * 1e3
    );
    let ratio = gateway_median.as_secs_f64() / (static_median + proof).as_secs_f64();
    println!(
        "\n{:.0} boots/s, nodes on the same machine; {} KiB written a boot",
        f64::from(all) / booting.as_secs_f64(),
        (written() - before) / (u64::from(all) * u64::try_from(1 + COMPANIES.len()).unwrap()) / 1024
    );
    println!("an attested boot costs {ratio:.2}x the floor; {LIMIT_RATIO}x is allowed");
    let [of_gateway, of_floor] = costs.map(|costs| costs.iter().map(|cost| cost.as_secs_f64() * 1e3).collect::<Vec<_>>());
    let [discovered, often, challenged, attested] = steps;
    let mut whole = of_gateway.clone();
    whole.sort_by(f64::total_cmp);
    let discovery = (often - discovered) / f64::from(OFTEN - 1);
    let handshake = discovered - discovery;
    let each = [
        ("a handshake", handshake),
        ("discovery", discovery),
        ("a challenge", challenged - discovered),
        ("evidence", attested - challenged),
        ("the config", results::median(&whole) - (attested - discovery) - handshake),
    ];
    results::report(each.map(|(step, took)| Figure::from_runs(format!("gateway's processor time of {step}"), "ms", &[took])));
    for (step, took) in each {
        println!("{:<46} {took:>7.2} ms", format!("of it, {step}"));
    }
    for (company, costs) in COMPANIES.into_iter().zip(&by_company) {
        let runs: Vec<f64> = costs.iter().map(|cost| cost.as_secs_f64() * 1e3).collect();
        let name = format!("gateway's processor time of an attested boot, {company} at a time");
        results::report([Figure::from_runs(name, "ms", &runs)]);
    }
    results::report([
        Figure::from_runs("an attested boot, as a ratio to its floor", "x", &[ratio])
            .limit(Bound::AtMost(LIMIT_RATIO))
            .goal(Bound::AtMost(GOAL_RATIO)),
        Figure::from_runs("gateway's processor time of an attested boot", "ms", &of_gateway),
        Figure::from_runs("of a static TLS server, the same connections", "ms", &of_floor),
        Figure::from_runs("of the raw operations that prove a node", "ms", &[proof.as_secs_f64() * 1e3]),
    ]);
    if ratio > LIMIT_RATIO {
        // Their processes end with these.
        drop((real, acted, gateway, floor));
        std::process::exit(1);
    }
}

fn boot(site: &Arc<Site>, mut machine: Machine, round: usize) -> impl Future<Output = Machine> + Send + 'static {
    let site = Arc::clone(site);
    async move {
        site.boot(&mut machine, round).await;
        machine
    }
}

/// Runs a limited number at a time, until all are done; returns the machines.
async fn together<F: Future<Output = Machine> + Send + 'static>(
    machines: Vec<Machine>,
    company: usize,
    each: impl Fn(Machine) -> F,
) -> Vec<Machine> {
    let (mut under_way, mut done) = (JoinSet::new(), Vec::new());
    for machine in machines {
        if under_way.len() == company {
            done.push(under_way.join_next().await.unwrap().unwrap());
        }
        under_way.spawn(each(machine));
    }
    done.extend(under_way.join_all().await);
    done
}

/// Prints a line of the table. Returns the median.
fn report(name: &str, costs: &mut [Duration]) -> Duration {
    costs.sort_unstable();
    let millis = |place: usize| costs[place].as_secs_f64() * 1e3;
    let (least, median, most) = (millis(0), millis(costs.len() / 2), millis(costs.len() - 1));
    println!("{name:<46} {median:>7.2} ms {least:>7.2} ms {most:>7.2} ms");
    costs[costs.len() / 2]
}

/// Returns the processor time to verify an EK on P-256 by its certificate, to make a credential for it, and to verify a quote.
fn proof() -> Duration {
    const TIMES: u32 = 500;
    let rng = rand::SystemRandom::new();
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let signature = pair.sign(&rng, &[7; 200]).unwrap();
    let ek = agreement::PrivateKey::generate(&agreement::ECDH_P256)
        .unwrap()
        .compute_public_key()
        .unwrap();
    let begun = Instant::now();
    for _ in 0..TIMES {
        for _ in 0..2 {
            let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref());
            key.verify(&[7; 200], signature.as_ref()).unwrap();
        }
        let ephemeral = agreement::PrivateKey::generate(&agreement::ECDH_P256).unwrap();
        let peer = agreement::UnparsedPublicKey::new(&agreement::ECDH_P256, ek.as_ref());
        agreement::agree(&ephemeral, peer, (), |secret| {
            std::hint::black_box(secret);
            Ok(())
        })
        .unwrap();
    }
    begun.elapsed() / TIMES
}

/// Server that the gateway is measured against.
struct Floor {
    process: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Floor {
    fn start(gateway: &Gateway, answers: &[Answer; 3]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, answer) in ANSWERS.iter().zip(answers) {
            let mut whole = format!("HTTP/1.1 {} OK\r\n", answer.status.as_u16()).into_bytes();
            for (header, value) in &answer.headers {
                whole.extend([header.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
            }
            whole.extend([b"\r\n", answer.body.as_slice()].concat());
            fs::write(folder.path().join(name), whole).unwrap();
        }
        for name in ["mcs.crt", "mcs.key"] {
            fs::copy(gateway.path("tls").join(name), folder.path().join(name)).unwrap();
        }
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(FLOOR, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self {
            address: line.trim().parse().unwrap(),
            process,
            _folder: folder,
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs the floor's process: it answers each request with the bytes that it was given, on the gateway's TLS.
fn serve_floor(folder: &Path) {
    let tls = floor::tls(&folder.join("mcs.crt"), &folder.join("mcs.key"));
    let answers: [Arc<[u8]>; 3] = ANSWERS.map(|name| fs::read(folder.join(name)).unwrap().into());
    Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Whoever hangs up has had enough.
            tokio::spawn(answer_all(stream, tls.clone(), answers.clone()));
        }
    });
}

async fn answer_all(stream: TcpStream, tls: TlsAcceptor, answers: [Arc<[u8]>; 3]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = tls.accept(stream).await?;
    let mut asked = Vec::with_capacity(8192);
    while stream.read_buf(&mut asked).await? > 0 {
        let Some(head) = asked.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let text = String::from_utf8_lossy(&asked[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        if asked.len() < head + 4 + length.map_or(0, |length| length.trim().parse().unwrap()) {
            continue;
        }
        let answer = ANSWERS.iter().position(|name| text.lines().next().unwrap().contains(name));
        stream.write_all(&answers[answer.unwrap()]).await?;
        stream.flush().await?;
        asked.clear();
    }
    stream.shutdown().await
}
