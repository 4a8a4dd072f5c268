//! Duration of `policy simulate` for a fleet: for each machine, it verifies the last boot in the log again and appraises it by another
//! policy.
//!
//! Run with `cargo bench -p attest-gateway --bench simulation`. It fails if that takes more than [`LIMIT_RATIO`] times as long as a bare
//! parse of the same lines in the same run. The log has boots that a gateway has recorded, each for many machines. Their certificates are
//! of one manufacturer. Their event logs of 34 KB are similar, like those of one model.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod firmware;
#[path = "../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod results;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use attest::{HashAlg, SpkiSha256};
use attest_audit::replay::simulation::{Simulation, SimulationRequest, simulate};
use attest_log::Blobs;
use attest_log::reading::log_files;
use attest_system::clock::Clock;
use firmware::Firmware;
use results::{Bound, Figure};
use serde_json::Value;
use support::node::Node;
use support::soft_tpm::maker::Maker;
use support::{Answer, Gateway, POOL};

/// Number of machines in the log; that of a goal is larger.
const MACHINES: usize = 20_000;
const GOAL_MACHINES: f64 = 100_000.0;
const GOAL_SECONDS: f64 = 60.0;
/// Number of machines that really boot.
const BOOTS: usize = 20;
const ROUNDS: usize = 3;

/// Maximum ratio: a little above the value that was measured when it was set.
const LIMIT_RATIO: f64 = 40.0;

/// Returns lines of boots, as a gateway has recorded them.
async fn boots(gateway: &mut Gateway) -> Vec<Value> {
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    gateway.run();
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let (client, url, firmware) = (gateway.client.clone(), gateway.url(""), Firmware::new());
    for number in 0..BOOTS {
        let mut node = Node::made_by(&maker);
        let log = firmware.event_log(&number.to_be_bytes(), 0);
        node.has_booted(log.build(), &log.pcrs(HashAlg::Sha256));
        let challenged = Answer::send(node.challenge(&client, &url)).await;
        let evidence = node.evidence(&challenged, &key);
        assert_eq!(Answer::send(Node::send(&client, &url, &evidence)).await.status, 200);
    }
    let lines = gateway.records().into_iter();
    let lines: Vec<Value> = lines.filter(|line| line["decision"] == "evidence").collect();
    assert_eq!(lines.len(), BOOTS);
    gateway.terminate();
    assert!(gateway.wait().success());
    lines
}

/// Writes a log of this number of machines.
fn write_log(log: &Path, boots: &[Value], machines: usize) {
    let mut file = BufWriter::new(File::create(log).unwrap());
    for number in 0..machines {
        let mut line = boots[number % boots.len()].clone();
        line["identity"] = format!("tpm:{number:064x}").into();
        serde_json::to_writer(&mut file, &line).unwrap();
        file.write_all(b"\n").unwrap();
    }
    file.flush().unwrap();
}

#[tokio::main]
async fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let (machines, rounds) = if measuring { (MACHINES, ROUNDS) } else { (BOOTS * 2, 1) };
    let mut gateway = Gateway::init();
    let boots = boots(&mut gateway).await;
    let log = gateway.path("state/attestation.jsonl");
    write_log(&log, &boots, machines);
    let folder = gateway.path("pools").join(POOL);
    let policy = attest_pool::policy(&folder, &folder.join("pool.toml"), &[]).unwrap();
    let asked = SimulationRequest {
        pool: POOL,
        since: 0,
        policy: &policy,
        now: Clock::System.now(),
    };
    let files = log_files(&log).unwrap().files;
    let (mut parsed, mut simulated) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let began = Instant::now();
        for file in &files {
            file.each_line(|line| assert!(serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok()))
                .unwrap();
        }
        parsed.push(began.elapsed());
        let began = Instant::now();
        let found = simulate(&files, &Blobs::at(&gateway.path("state/evidence")).remembering(), &asked, |_, _| ()).unwrap();
        simulated.push(began.elapsed());
        let all = Simulation {
            accepted: machines,
            ..Simulation::default()
        };
        assert_eq!(found, all);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    let (floor, took) = (median(&mut parsed), median(&mut simulated));
    let (ratio, of_goal) = (took / floor, took / f64::from(u32::try_from(machines).unwrap()) * GOAL_MACHINES);
    println!(
        "{machines} machines, {} bytes: {took:.2} s, a bare parse {floor:.2} s: {ratio:.1}, of {LIMIT_RATIO} at most; 100,000 machines: {of_goal:.1} s",
        fs::metadata(&log).unwrap().len()
    );
    // The log was made by hand: its chain is none.
    fs::remove_file(&log).unwrap();
    if measuring {
        results::report([
            Figure::from_runs("simulation against a bare parse", "", &[ratio]).limit(Bound::AtMost(LIMIT_RATIO)),
            Figure::from_runs("100,000 machines", "s", &[of_goal]).goal(Bound::AtMost(GOAL_SECONDS)),
        ]);
        assert!(ratio <= LIMIT_RATIO, "a simulation takes {ratio:.1} times a bare parse");
    }
}
