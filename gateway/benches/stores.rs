//! Attested boots on the embedded store, on etcd and on objects of a cluster's API, compared in the same run. Figures are the boots per
//! second, and the processor time of a boot for the gateway and for etcd. Others are etcd's writes by its own count, the requests to the
//! API, and the refusals of a gateway's commit because another's came first. A boot is a challenge, evidence and the config, each on a
//! connection of its own. The gateway is the real program, etcd Debian's, one member on this machine. Nodes are in software and use the
//! processors, too.
//!
//! `cargo bench -p attest-gateway --bench stores`; it fails if a boot on etcd costs the gateway more than [`LIMIT_RATIO`] times as much as
//! on the embedded store. It also fails if a single boot on objects takes more than [`LIMIT_OF_ROUND_TRIPS`] times as long as its requests
//! to the API.
//!
//! The API is the stand-in of the tests. Its writes take as long as those of its etcd's disk may: [`WRITES`].

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a benchmark may panic")]

mod objects;
mod process;
mod results;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::SpkiSha256;
use cloud_fixtures::etcd::EtcdServer;
use results::{Bound, Figure};
use support::node::Node;
use support::soft_tpm::maker::Maker;
use support::{Answer, Gateway, POOL};
use tokio::task::JoinSet;

/// Maximum ratio of the gateway's cost of a boot on etcd to that on the embedded store.
const LIMIT_RATIO: f64 = 2.0;
/// Maximum ratio of a boot's duration on objects to that of its round trips.
const LIMIT_OF_ROUND_TRIPS: f64 = 3.0;
/// Durations of a write to the API: the one that etcd's disk should have under high load, and the slowest that is acceptable. The
/// stand-in's documentation explains them.
const WRITES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(10)];
/// Number of measured boots, and of those before them.
const BOOTS: usize = 400;
const BEFORE: usize = 40;
/// Number of concurrent boots.
const AT_ONCE: usize = 16;
/// Number of boots in progress in a storm, or in a part of it.
const CROWD: usize = 192;
/// Number of boots whose work in etcd is counted, without concurrent ones.
const ALONE: usize = 20;

/// Last step of a boot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Far {
    Challenge,
    Evidence,
    Config,
}

/// Server for the nodes, and the manufacturer of their TPMs.
struct Site {
    client: reqwest::Client,
    url: String,
    key: SpkiSha256,
    maker: Maker,
}

impl Site {
    /// Boots a node up to this step.
    async fn boot(&self, far: Far) {
        let mut node = Node::made_by(&self.maker);
        let challenged = Answer::send(node.challenge(&self.client, &self.url)).await;
        if far == Far::Challenge {
            return;
        }
        let evidence = node.evidence(&challenged, &self.key);
        let ticket = Answer::send(Node::send(&self.client, &self.url, &evidence)).await.ticket();
        if far == Far::Evidence {
            return;
        }
        let config = Answer::send(Node::config(&self.client, &self.url, &ticket)).await;
        assert_eq!(config.status, 200);
    }

    async fn boots(self: Arc<Self>, count: usize, at_once: usize, far: Far) {
        let mut booting = JoinSet::new();
        for _ in 0..count {
            if booting.len() == at_once {
                booting.join_next().await.unwrap().unwrap();
            }
            let site = Arc::clone(&self);
            booting.spawn(async move { site.boot(far).await });
        }
        booting.join_all().await;
    }
}

/// Measurements on one engine.
struct Measured {
    took: Duration,
    gateway: Duration,
    etcd: Duration,
    /// Counters of etcd for a boot.
    counted: [Vec<f64>; HOW.len()],
    /// Processor time of etcd for a boot in a crowd, in milliseconds.
    crowd: f64,
}

/// Kinds of measurement: boots together, in a crowd, and single ones up to each step.
const HOW: [&str; 5] = ["", ", in a crowd", ", alone, the challenge", ", alone, up to evidence", ", alone"];

/// Counters of etcd: the figure's name, and etcd's for it. The last two are its waits for the disk, and their total seconds.
const COUNTED: [(&str, &str); 5] = [
    ("keys put in a boot", "etcd_mvcc_put_total"),
    ("commits of a boot", "etcd_server_proposals_applied_total"),
    ("transactions of a boot, reads included", "etcd_mvcc_txn_total"),
    ("waits for the disk of a boot", "etcd_disk_wal_fsync_duration_seconds_count"),
    ("one wait for the disk", "etcd_disk_wal_fsync_duration_seconds_sum"),
];

/// Returns the current values of etcd's counters.
async fn counts(etcd: Option<&EtcdServer>) -> Vec<f64> {
    let Some(etcd) = etcd else {
        return Vec::new();
    };
    let metrics = reqwest::get(format!("{}/metrics", etcd.endpoint()))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let of = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("etcd does not count {name}")).parse().unwrap()
    };
    COUNTED.iter().map(|(_, name)| of(name)).collect()
}

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let boots = if measuring { BOOTS } else { 4 };
    let etcd = EtcdServer::start();
    let settings = format!(
        "[store]\nengine = \"etcd\"\nendpoints = [{:?}]\nkey_file = \"store.key\"",
        etcd.endpoint()
    );
    let engines = [("embedded", "", None), ("etcd", settings.as_str(), Some(&etcd))];
    println!(
        "{:<10} {:>10} {:>22} {:>22}",
        "store", "boots/s", "gateway, CPU ms/boot", "etcd, CPU ms/boot"
    );
    let (mut costs, mut figures) = (Vec::new(), Vec::new());
    for (name, settings, etcd) in engines {
        let Measured {
            took,
            gateway,
            etcd,
            counted,
            crowd,
        } = measure(settings, etcd, boots);
        let each = |spent: Duration| spent.as_secs_f64() * 1e3 / count(boots);
        println!(
            "{name:<10} {:>10.1} {:>22.2} {:>22.2}",
            count(boots) / took.as_secs_f64(),
            each(gateway),
            each(etcd)
        );
        costs.push(each(gateway));
        figures.extend([
            Figure::from_runs(format!("{name}: boots a second"), "/s", &[count(boots) / took.as_secs_f64()]),
            Figure::from_runs(format!("{name}: gateway's processor time of a boot"), "ms", &[each(gateway)]),
            Figure::from_runs(format!("{name}: etcd's processor time of a boot"), "ms", &[each(etcd)]),
            Figure::from_runs(format!("{name}: etcd's processor time of a boot, in a crowd"), "ms", &[crowd]),
        ]);
        for (counted, how) in counted.iter().zip(HOW) {
            if let [each @ .., waits, seconds] = &counted[..] {
                let named = COUNTED.iter().zip(each.iter().chain([waits]));
                figures.extend(named.map(|((what, _), value)| Figure::from_runs(format!("{name}: {what}{how}"), "", &[*value])));
                figures.push(Figure::from_runs(
                    format!("{name}: one wait for the disk{how}"),
                    "ms",
                    &[seconds * 1e3 / waits],
                ));
            }
        }
    }
    let of_objects = objects::measure(&WRITES, boots);
    figures.extend(of_objects.figures);
    results::print(&figures);
    if !measuring {
        return println!("no figures: this was no measuring run");
    }
    let ratio = costs[1] / costs[0];
    println!("\na boot on etcd costs the gateway {ratio:.2}x, {LIMIT_RATIO}x is allowed");
    figures.push(Figure::from_runs("a boot on etcd, as a ratio to the embedded store", "x", &[ratio]).limit(Bound::AtMost(LIMIT_RATIO)));
    let slowest = of_objects.round_trips;
    println!("a boot on objects takes {slowest:.2}x its round trips to the API, {LIMIT_OF_ROUND_TRIPS}x is allowed");
    figures.push(
        Figure::from_runs("a boot alone on objects, as a ratio to its round trips to the API", "x", &[slowest])
            .limit(Bound::AtMost(LIMIT_OF_ROUND_TRIPS)),
    );
    results::report(figures);
    if ratio > LIMIT_RATIO || slowest > LIMIT_OF_ROUND_TRIPS {
        std::process::exit(1);
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap())
}

/// Creates a gateway with this store, which trusts a manufacturer of TPMs; it does not run yet.
fn gateway(settings: &str, maker: &Maker) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(settings);
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    gateway
}

impl Site {
    fn new(gateway: &Gateway, maker: Maker) -> Self {
        Self {
            client: gateway.client_of_new_connections(),
            url: gateway.url(""),
            key: SpkiSha256::from_certificate(&gateway.certificate()).unwrap(),
            maker,
        }
    }
}

fn measure(settings: &str, etcd: Option<&EtcdServer>, boots: usize) -> Measured {
    let maker = Maker::new("A maker of TPMs");
    let mut gateway = gateway(settings, &maker);
    if etcd.is_some() {
        gateway.command(&["store", "create-key"]);
    }
    gateway.run();
    let site = Arc::new(Site::new(&gateway, maker));
    let nodes = tokio::runtime::Runtime::new().unwrap();
    nodes.block_on(Arc::clone(&site).boots(BEFORE.min(boots), AT_ONCE, Far::Config));
    let spent = || {
        (
            process::spent(gateway.process_id()),
            etcd.map_or(Duration::ZERO, |etcd| process::spent(etcd.process_id())),
        )
    };
    let counted = |boots: usize, at_once: usize, far: Far| {
        let before = nodes.block_on(counts(etcd));
        nodes.block_on(Arc::clone(&site).boots(boots, at_once, far));
        let after = nodes.block_on(counts(etcd));
        after
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) / count(boots))
            .collect()
    };
    let (begun, before) = (Instant::now(), spent());
    let together = counted(boots, AT_ONCE, Far::Config);
    let (took, after) = (begun.elapsed(), spent());
    let (others, crowd) = (spent().1, counted(boots, CROWD, Far::Config));
    let crowds = (spent().1 - others).as_secs_f64() * 1e3 / count(boots);
    let [challenge, evidence, alone] = [Far::Challenge, Far::Evidence, Far::Config].map(|far| counted(ALONE.min(boots), 1, far));
    Measured {
        took,
        gateway: after.0 - before.0,
        etcd: after.1 - before.1,
        counted: [together, crowd, challenge, evidence, alone],
        crowd: crowds,
    }
}
