//! Kills of the gateway at random moments while nodes attest: everything that it has answered is recorded, and the log is whole.
//!
//! A moment is a random byte between the nodes and the gateway. `ATTEST_KILLS` sets the number of kills; 1,000 take half an hour.
//! `ATTEST_SEED` repeats the random numbers of a run that failed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::killed_while_removing::lines;
use crate::support::node::Node;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Answer, Gateway, POOL};
use attest::{HashAlg, SpkiSha256};
use aws_lc_rs::rand;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const KILLS: usize = 15;
/// Number of concurrent nodes.
const AT_ONCE: usize = 6;
/// Maximum number of bytes between a start and the kill: some boots of all nodes.
const BYTES: u64 = 400_000;
/// Size of a read that is forwarded at once.
const PIECE_BYTES: usize = 512;
/// Number of kills between two checks of the records.
const JUDGED_EVERY: usize = 100;

/// Proxy between the nodes and the gateway that counts the bytes of both directions.
pub struct Between {
    gateway: SocketAddr,
    passed: watch::Sender<u64>,
}

impl Between {
    /// Starts the proxy and returns its address. Connections while the gateway is away are closed.
    pub async fn start(gateway: SocketAddr) -> (SocketAddr, watch::Receiver<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (passed, counted) = watch::channel(0);
        let between = Arc::new(Self { gateway, passed });
        tokio::spawn(async move {
            while let Ok((node, _)) = listener.accept().await {
                let between = Arc::clone(&between);
                tokio::spawn(async move { between.connect(node).await });
            }
        });
        (address, counted)
    }

    async fn connect(&self, mut node: TcpStream) -> io::Result<()> {
        let mut gateway = TcpStream::connect(self.gateway).await?;
        let ((from_node, to_node), (from_gateway, to_gateway)) = (node.split(), gateway.split());
        // Who has lost one end has lost the other.
        tokio::select! {
            ended = self.pass(from_node, to_gateway) => ended,
            ended = self.pass(from_gateway, to_node) => ended,
        }
    }

    async fn pass(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        let mut piece = [0; PIECE_BYTES];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                return Ok(());
            }
            to.write_all(&piece[..length]).await?;
            self.passed.send_modify(|passed| *passed += u64::try_from(length).unwrap());
        }
    }
}

/// Random numbers that are the same for the same seed.
pub struct Chance {
    seed: u64,
    asked: u64,
}

impl Chance {
    pub fn new() -> Self {
        let seed = std::env::var("ATTEST_SEED").map_or_else(|_| random(), |seed| seed.parse().unwrap());
        eprintln!("ATTEST_SEED={seed}");
        Self { seed, asked: 0 }
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.asked += 1;
        let digest = HashAlg::Sha256.digest(&[&self.seed.to_be_bytes(), &self.asked.to_be_bytes()]);
        u64::from_be_bytes(*digest.as_ref().first_chunk().unwrap()) % limit
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    rand::fill(&mut bytes).unwrap();
    u64::from_be_bytes(bytes)
}

/// Returns the number of kills: `ATTEST_KILLS`, or this default.
pub fn kills(unless: usize) -> usize {
    std::env::var("ATTEST_KILLS").map_or(unless, |kills| kills.parse().unwrap())
}

/// Answers that the nodes received, counted by the harness itself.
#[derive(Default)]
pub struct Told {
    tickets: Mutex<BTreeSet<String>>,
    configs: Mutex<BTreeSet<String>>,
}

/// Data that nodes need to attest.
#[derive(Clone)]
pub struct Site {
    client: reqwest::Client,
    url: String,
    key: SpkiSha256,
    maker: Arc<Maker>,
    told: Arc<Told>,
    /// Set if each node has an event log of its own.
    pub event_logs: bool,
}

impl Site {
    /// Describes this gateway at this address, for nodes with TPMs of this manufacturer.
    pub fn new(gateway: &Gateway, address: SocketAddr, maker: Maker) -> Self {
        Self {
            client: gateway.client.clone(),
            url: format!("https://{address}"),
            key: SpkiSha256::from_certificate(&gateway.certificate()).unwrap(),
            maker: Arc::new(maker),
            told: Arc::default(),
            event_logs: false,
        }
    }

    /// Boots nodes one after the other until the gateway does not answer.
    pub async fn boot(self) {
        while let Ok(()) = self.try_boot().await {}
    }

    async fn try_boot(&self) -> reqwest::Result<()> {
        let mut node = Node::made_by(&self.maker);
        let identity = format!("tpm:{}", node.ek());
        if self.event_logs {
            node = node.with_event_log(identity.clone().into_bytes());
        }
        let challenged = Answer::try_send(node.challenge(&self.client, &self.url)).await?;
        let evidence = node.evidence(&challenged, &self.key);
        let ticket = Answer::try_send(Node::send(&self.client, &self.url, &evidence)).await?.ticket();
        self.told.tickets.lock().unwrap().insert(identity.clone());
        let config = Answer::try_send(Node::config(&self.client, &self.url, &ticket)).await?;
        assert_eq!(config.status, 200);
        self.told.configs.lock().unwrap().insert(identity);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_recorded_despite_repeated_kills() {
    let kills = kills(KILLS);
    let mut gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    gateway.run();
    let (address, mut passed) = Between::start(gateway.address()).await;
    let site = Site::new(&gateway, address, maker);
    let mut chance = Chance::new();
    for kill in 1..=kills {
        let moment = *passed.borrow() + chance.below(BYTES);
        let mut nodes = JoinSet::new();
        (0..AT_ONCE).for_each(|_| drop(nodes.spawn(site.clone().boot())));
        passed.wait_for(|passed| *passed >= moment).await.unwrap();
        gateway.kill();
        nodes.join_all().await;
        gateway.run();
        if kill == kills || kill % JUDGED_EVERY == 0 {
            gateway.terminate();
            assert!(gateway.wait().success());
            judge(&gateway, &site.told, kill);
            gateway.run();
        }
    }
    let attestations = site.told.tickets.lock().unwrap().len();
    assert!(attestations > kills, "{attestations} attestations beside {kills} kills");
}

/// Verifies that each answer is recorded, and that the log is whole over all its segments.
fn judge(gateway: &Gateway, told: &Told, kills: usize) {
    let lines = lines(&gateway.path("state/attestation.jsonl"));
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recorded = |decision: &str, verdict: &str| -> BTreeSet<&str> {
        let wanted = |record: &&Value| record["decision"] == decision && record["verdict"] == verdict;
        records
            .iter()
            .filter(wanted)
            .map(|record| record["identity"].as_str().unwrap())
            .collect()
    };
    let (trusted, served) = (recorded("evidence", "trusted"), recorded("config", "served"));
    let (tickets, configs) = (told.tickets.lock().unwrap(), told.configs.lock().unwrap());
    let lost = |told: &BTreeSet<String>, recorded: &BTreeSet<&str>| told.iter().filter(|told| !recorded.contains(told.as_str())).count();
    let (tickets_lost, configs_lost) = (lost(&tickets, &trusted), lost(&configs, &served));
    let audit = gateway.try_command(&["log", "audit"]);
    eprintln!(
        "{kills} kills: {} tickets told, {tickets_lost} lost; {} configs told, {configs_lost} lost; audit: {}",
        tickets.len(),
        configs.len(),
        audit.status
    );
    assert_eq!((tickets_lost, configs_lost), (0, 0));
    let said = String::from_utf8_lossy(&audit.stdout);
    assert!(audit.status.success(), "{}", said.lines().rev().take(5).collect::<String>());
}
