//! Kills between two steps: a change and its act are committed together, and an act that is recorded twice counts as one.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use attest_log::{Blobs, CheckpointSigner, Journal, LogKey, SegmentLimits};
use attest_store::engine::{Engine, Work};
use attest_store::engine_layer::EngineLayer;
use attest_store::{Embedded, EntryKind, StoreError};

use super::*;
use crate::support::{POOL, program};

/// Number of commands that are killed.
const KILLS: usize = 25;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_command_changes_and_records_atomically() {
    let gateway = Gateway::init();
    gateway.token(&["--name", "first"]);
    let log = gateway.path("state/gateway.db-wal");
    let (mut done, mut undone) = (0, 0);
    for number in 0..KILLS {
        let before = acts_waiting(&gateway).await.len();
        let _keeps_the_log = embedded(&gateway);
        let length = || fs::metadata(&log).map_or(0, |log| log.len());
        let at_first = length();
        let name = format!("killed-{number}");
        let mut command = program()
            .arg("--config")
            .arg(gateway.path("gateway.toml"))
            .args(["token", "create", "--pool", POOL, "--name", &name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Each a little later: before, while and after something is written. However busy the machine is, the last one ends by itself.
        let looks = if number == KILLS - 1 { usize::MAX } else { number * 10 };
        let mut looked = 0;
        while command.try_wait().unwrap().is_none() && (length() == at_first || looked < looks) {
            looked += usize::from(length() != at_first);
        }
        command.kill().unwrap();
        command.wait().unwrap();
        let acts = acts_waiting(&gateway).await;
        let told = acts.len() - before;
        let there = gateway.command(&["token", "list"]).contains(&format!("{name} "));
        assert_eq!(told, usize::from(there), "{name}: {acts:?}");
        if there { done += 1 } else { undone += 1 }
    }
    println!("{done} were done, {undone} were not");
    assert!(done > 0);
}

/// Engine that fails before it removes recorded entries.
#[derive(Debug)]
struct Dying {
    engine: Embedded,
    dead: AtomicBool,
}

#[async_trait]
impl EngineLayer for Dying {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        self.engine.transact(work).await
    }
}

fn journal(gateway: &Gateway) -> Journal {
    let key = LogKey::open(&gateway.path("state/log.key")).unwrap();
    let blobs = Blobs::open(&gateway.path("state/evidence")).unwrap();
    let log = gateway.path("state/attestation.jsonl");
    Journal::open(
        &log,
        CheckpointSigner::new(key, None, 1000),
        SegmentLimits::NEVER,
        blobs,
        Arc::new(()),
    )
    .unwrap()
    .0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_event_recorded_twice_counts_once() {
    let gateway = Gateway::init();
    gateway.token(&["--name", "rack"]);
    let store = Dying {
        engine: embedded(&gateway),
        dead: AtomicBool::new(true),
    };
    let journal = journal(&gateway);
    journal.checkpoint(1).await.unwrap();
    attest_recording::take(&journal, &store, 10).await.unwrap_err();
    assert_eq!(gateway.acts("token.create").len(), 1, "it is recorded, and waits still");
    store.dead.store(false, Ordering::Relaxed);
    assert_eq!(attest_recording::take(&journal, &store, 20).await.unwrap().recorded, 1);
    assert_eq!(attest_recording::take(&journal, &store, 30).await.unwrap().recorded, 0);
    journal.checkpoint(40).await.unwrap();
    drop((journal, store));
    let recorded = gateway.acts("token.create");
    assert_eq!(recorded[0]["admin"], recorded[1]["admin"]);
    let audit = gateway.command(&["log", "audit", "--without-checkpoints"]);
    assert_eq!(audit.matches("token.create by ").count(), 1, "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_reports_conflicting_events_with_one_id() {
    let gateway = Gateway::init();
    gateway.token(&["--name", "rack"]);
    let store = embedded(&gateway);
    let act = store.outbox(None, 1).await.unwrap().remove(0);
    let journal = journal(&gateway);
    journal.checkpoint(1).await.unwrap();
    attest_recording::take(&journal, &store, 10).await.unwrap();
    // Somebody puts it back, altered.
    let mut other: Value = serde_json::from_str(&act.value).unwrap();
    other["by"]["uid"] = 1234.into();
    let connection = rusqlite::Connection::open(gateway.path("state/gateway.db")).unwrap();
    let put = "INSERT INTO pairs (key, value) VALUES (?1, ?2)";
    connection.execute(put, [format!("outbox/{}", act.id), other.to_string()]).unwrap();
    attest_recording::take(&journal, &store, 20).await.unwrap();
    journal.checkpoint(30).await.unwrap();
    drop((journal, store));
    let audit = gateway.try_command(&["log", "audit", "--without-checkpoints"]);
    let said = String::from_utf8(audit.stdout).unwrap();
    assert!(!audit.status.success() && said.contains("another line with id"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_outbox_entries_stay_and_block_nothing() {
    let gateway = Gateway::init();
    let store = embedded(&gateway);
    for unknown in [
        "{\"v\":2}",
        "no JSON",
        "{\"v\":1,\"verb\":\"moon.paint\",\"at\":1,\"by\":{\"uid\":0,\"host\":\"h\",\"pid\":1}}",
    ] {
        store.append_to_outbox(unknown.to_owned()).await.unwrap();
    }
    gateway.token(&["--name", "rack"]);
    let journal = journal(&gateway);
    assert_eq!(attest_recording::take(&journal, &store, 10).await.unwrap().recorded, 1);
    assert_eq!(gateway.acts("token.create").len(), 1);
    assert_eq!(store.outbox(None, 10).await.unwrap().len(), 3);
    assert!(store.list(EntryKind::Token).await.unwrap().len() == 1);
}

/// Default number of pending acts of commands that ran without a gateway; `ATTEST_WAITING` sets another.
const MANY: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_large_outbox_does_not_delay_the_start() {
    let many = std::env::var("ATTEST_WAITING").map_or(MANY, |many| many.parse().unwrap());
    let mut gateway = Gateway::init();
    // All of them in one file, to be counted there.
    gateway.settings("[attestation_log]\nsegment_bytes = 4294967296");
    gateway.token(&["--name", "rack"]);
    let store = embedded(&gateway);
    let act = store.outbox(None, 1).await.unwrap().remove(0).value;
    let mut telling = tokio::task::JoinSet::new();
    for _ in 1..many {
        let (store, act) = (store.clone(), act.clone());
        telling.spawn(async move { store.append_to_outbox(act).await.unwrap() });
        while telling.len() >= 1000 {
            telling.join_next().await.unwrap().unwrap();
        }
    }
    telling.join_all().await;
    gateway.run();
    let answer = gateway.config(&format!("/config/{POOL}"), &[]).await;
    assert_eq!(answer.status, 200);
    let served = store.outbox(None, 1).await.unwrap();
    assert!(!served.is_empty(), "nobody was served before all was recorded");
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.process_id())).unwrap();
    let peak = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let begun = std::time::Instant::now();
    while !store.outbox(None, 1).await.unwrap().is_empty() {
        assert!(begun.elapsed() < crate::support::LIMIT * 5);
        tokio::task::yield_now().await;
    }
    let after = fs::read_to_string(format!("/proc/{}/status", gateway.process_id())).unwrap();
    println!(
        "{many} were recorded in {:?}; peak of memory {} kB, {} kB when it began to serve",
        begun.elapsed(),
        peak(&after),
        peak(&status)
    );
    assert_eq!(gateway.acts("token.create").len(), many);
    assert!(peak(&after) < peak(&status) + 64 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_records_the_last_acts() {
    let mut gateway = Gateway::start();
    // Between two looks at the outbox, which come each second.
    for number in 1..=3 {
        gateway.token(&["--name", &format!("rack{number}")]);
        gateway.terminate();
        assert!(gateway.wait().success());
        assert_eq!(gateway.acts("token.create").len(), number);
        assert_eq!(waiting(&gateway).await, []);
        gateway.run();
    }
}
