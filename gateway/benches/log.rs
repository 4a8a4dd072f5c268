//! Processor time of the gateway for chain and checkpoints of the attestation log, in addition to that of a record without them.
//!
//! `cargo bench -p attest-gateway --bench log`; it fails if they cost a boot more than [`LIMIT`]. A boot has two records that hold most of
//! its bytes: its evidence, and its config. A checkpoint is counted for each boot, which is far more often than they are made.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

mod results;

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

use attest_log::{Decision, LineHash, Link, LogKey, Record};
use results::{Bound, Figure};
use rustix::time::{ClockId, clock_gettime};

/// Maximum cost for a boot: one twentieth of a boot's processor time, which is 2 ms at least.
const LIMIT: Duration = Duration::from_micros(100);
/// Size of a record of evidence: more than most have, without the event log, which is stored elsewhere.
const RECORD_BYTES: usize = 16 * 1024;
const ROUNDS: u32 = 2000;
const RECORDS_OF_A_BOOT: u32 = 2;

/// Returns this process's processor time for one round.
fn each(rounds: u32, mut work: impl FnMut()) -> Duration {
    let spent = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
    };
    let before = spent();
    for _ in 0..rounds {
        work();
    }
    (spent() - before) / rounds
}

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let rounds = if measuring { ROUNDS } else { 1 };
    let folder = tempfile::tempdir().unwrap();
    let mut record: Record = Record::new("0".repeat(32), Decision::Evidence, 1, "192.0.2.1:7".to_owned(), "worker".to_owned());
    record.reason = "x".repeat(RECORD_BYTES);
    let serialised = each(rounds, || drop(black_box(serde_json::to_vec(black_box(&record)).unwrap())));
    let line = serde_json::to_vec(&record).unwrap();

    let mut file = File::create(folder.path().join("log")).unwrap();
    let written = each(rounds, || {
        file.write_all(&line).unwrap();
        file.sync_data().unwrap();
    });

    let mut head = LineHash::of(b"");
    let mut number = 0;
    let chained = each(rounds, || {
        number += 1;
        let link = Link {
            id: record.id.clone(),
            number,
            previous: head,
            begins: None,
        };
        let mut chained = line.clone();
        serde_json::to_writer(&mut chained, &link).unwrap();
        head = LineHash::of(black_box(&chained));
    });

    let key = LogKey::open(&folder.path().join("log.key")).unwrap();
    let text = "x".repeat(200);
    let signed = each(rounds, || drop(black_box(key.sign(black_box(text.as_bytes())))));

    let boot = chained * RECORDS_OF_A_BOOT + signed;
    println!("a record of {RECORD_BYTES} bytes: serialised in {serialised:?}, written and synced in {written:?} of the processor's time");
    println!("its place in the chain: {chained:?}; a checkpoint's signature: {signed:?}; both of a boot: {boot:?}, of {LIMIT:?} at most");
    if measuring {
        let figure = |name: &str, took: Duration| Figure::from_runs(name, "µs", &[took.as_secs_f64() * 1e6]);
        results::report([
            figure("a record, serialised", serialised),
            figure("a record, written and synced", written),
            figure("its place in the chain", chained),
            figure("chain and checkpoint of a boot", boot).limit(Bound::AtMost(LIMIT.as_secs_f64() * 1e6)),
        ]);
    }
    assert!(!measuring || boot <= LIMIT, "chain and checkpoint cost a boot {boot:?}");
}
