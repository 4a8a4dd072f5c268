//! Load generator, a process of its own: all nodes of a run.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use attest::protocol::{CHALLENGE_PATH, EvidenceResponse, HexDigest};
use attest::{HashAlg, SpkiSha256};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64URL_NOPAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::attest_node::AttestNode;
use super::fleet::{self, Fleet};
use super::http::{Lost, Server, source};
use super::ignition;
use super::tally::{FULL, Noted, Told};
use crate::firmware::Firmware;
use crate::support::node::Node;
use crate::support::soft_tpm::maker::Maker;
use crate::{floor, process};

/// Environment variable that makes this program the generator: the file of its plan.
pub const PLAN: &str = "STORM_PLAN";
/// Address of the attacker, with no honest node behind it.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);
/// Timeout of the attacker's requests, which is as long as `attest-node` waits. A longer one would not hold more of the gateway.
const STRANGER_LIMIT: Duration = Duration::from_secs(15);

/// Instructions for the generator's process.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    /// Folder of the gateway, and the address at which it listens.
    pub gateway: PathBuf,
    pub address: SocketAddr,
    /// File with the config that each node has to get.
    pub config: PathBuf,
    pub nodes: usize,
    /// Seconds in which the nodes begin, evenly.
    pub over: f64,
    /// Provisioning token that the nodes present in place of a TPM's evidence.
    pub token: Option<String>,
    /// Connections of the attacker per second.
    pub stranger: Option<u32>,
    /// Time after which an unfinished node counts as failed, in seconds.
    pub limit: f64,
}

/// Data that all nodes know.
struct Site {
    plan: Plan,
    server: Server,
    key: SpkiSha256,
    config: Vec<u8>,
    /// The config's SHA-256, and as a gateway compresses it.
    sha256: HexDigest,
    compressed: Vec<u8>,
    firmware: Firmware,
}

/// Prepares the nodes, reports that, waits for a line, runs them, and prints the results.
pub fn run(file: &Path) {
    let plan: Plan = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let certificates = floor::certificates(&plan.gateway.join("tls/mcs.crt"));
    let config = fs::read(&plan.config).unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&config).unwrap();
    let site = Site {
        server: Server::new(plan.address, &plan.gateway.join("tls/mcs-ca.crt")),
        key: SpkiSha256::from_certificate(&certificates[0]).unwrap(),
        sha256: HexDigest::new(digest(&SHA256, &config).as_ref()).unwrap(),
        compressed: encoder.finish().unwrap(),
        config,
        firmware: Firmware::new(),
        plan,
    };
    let fleet = Fleet::load_or_create(&fleet::file(), site.plan.nodes);
    let nodes = if site.plan.token.is_none() {
        fleet.nodes(site.plan.nodes)
    } else {
        Vec::new()
    };
    drop(fleet);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let told = Runtime::new().unwrap().block_on(storm(Arc::new(site), nodes));
    println!("{}", serde_json::to_string(&told).unwrap());
}

async fn storm(site: Arc<Site>, nodes: Vec<Node>) -> Told {
    let (begun, spent) = (Instant::now(), process::spent(std::process::id()));
    let stranger = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let strangers = site
        .plan
        .stranger
        .map(|rate| tokio::spawn(knock(Arc::clone(&site), rate, Arc::clone(&stranger))));
    let mut booting = JoinSet::new();
    let mut nodes = nodes.into_iter();
    for number in 0..site.plan.nodes {
        let (site, node) = (Arc::clone(&site), nodes.next());
        booting.spawn(async move { site.boot(number, node, begun).await });
    }
    let nodes = booting.join_all().await;
    let lasted = begun.elapsed().as_secs_f64();
    strangers.inspect(|strangers| strangers.abort());
    Told {
        nodes,
        lasted,
        spent: (process::spent(std::process::id()) - spent).as_secs_f64(),
        stranger: [0, 1].map(|place| stranger[place].load(Ordering::Relaxed)),
    }
}

impl Site {
    /// Boots a node; without `node`, it uses a token.
    async fn boot(&self, number: usize, node: Option<Node>, run: Instant) -> Noted {
        let part = f64::from(u32::try_from(number).unwrap()) / f64::from(u32::try_from(self.plan.nodes).unwrap());
        sleep(Duration::from_secs_f64(self.plan.over * part)).await;
        let begun = Instant::now();
        let mut noted = Noted {
            begun: run.elapsed().as_secs_f64(),
            ..Noted::default()
        };
        let limit = Duration::from_secs_f64(self.plan.limit);
        let ended = timeout(limit, self.come_through(source(number), node, &mut noted)).await;
        noted.took = begun.elapsed().as_secs_f64();
        noted.ended = match ended {
            Ok(Ok(())) => FULL.to_owned(),
            Ok(Err(code)) => code,
            Err(_) => "still waiting".to_owned(),
        };
        noted
    }

    async fn come_through(&self, source: Ipv4Addr, node: Option<Node>, noted: &mut Noted) -> Result<(), String> {
        let mut program = AttestNode::new(&self.server, source, noted);
        program.discover().await?;
        let Some(mut node) = node else {
            drop(program);
            let token = self.plan.token.as_ref().unwrap();
            // Each node's own.
            let claimant = BASE64URL_NOPAD.encode(&[[0; 28].as_slice(), &source.octets()].concat());
            return ignition::fetch(&self.server, source, token, Some(&claimant), &self.config, noted).await;
        };
        node.takes_compressed_configs();
        let log = self.firmware.event_log(node.ek().as_bytes(), 0);
        node.has_booted(log.build(), &log.pcrs(HashAlg::Sha256));
        drop(log);
        let EvidenceResponse { ticket, config: form, .. } = program.attest(&mut node, &self.key).await?;
        if form.and_then(|form| form.sha256).as_ref() != Some(&self.sha256) {
            return Err("the hash of another config".to_owned());
        }
        // It ends, and its connection with it.
        drop((program, node));
        ignition::fetch(&self.server, source, &ticket, None, &self.compressed, noted).await
    }
}

/// Simulates the attacker: handshakes, and challenge requests for a TPM of an unknown manufacturer.
async fn knock(site: Arc<Site>, rate: u32, counts: Arc<[AtomicU64; 2]>) {
    let node = Node::made_by(&Maker::new("Nobody"));
    let body = serde_json::to_vec(&node.challenge_request()).unwrap();
    let request: Arc<[u8]> = site.server.request(&format!("POST {CHALLENGE_PATH}"), &[], &body).into();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut knocking = JoinSet::new();
    loop {
        ticks.tick().await;
        while knocking.try_join_next().is_some() {}
        let (site, request, counts) = (Arc::clone(&site), Arc::clone(&request), Arc::clone(&counts));
        knocking.spawn(async move {
            counts[0].fetch_add(1, Ordering::Relaxed);
            let answered = timeout(STRANGER_LIMIT, knock_once(&site.server, &request)).await;
            counts[1].fetch_add(u64::from(!matches!(answered, Ok(Ok(_)))), Ordering::Relaxed);
        });
    }
}

async fn knock_once(server: &Server, request: &[u8]) -> Result<u16, Lost> {
    let mut connection = server.connect(STRANGER, STRANGER_LIMIT, STRANGER_LIMIT).await?;
    connection.send(request).await?;
    Ok(connection.head().await?.status)
}
