//! Costs with a long attestation log.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_ignition::SpecVersion;
use attest_log::{
    Blobs, CheckpointSigner, ConfigSet, DecidedBy, Decision, Earns, Grants, Journal, JournalError, LogKey, Record, SegmentLimits,
    ShownEvidence, TicketUse, Verdict, is_written, served_for,
};
use futures_util::future::join_all;
use tokio::runtime::Runtime;

use crate::PARTS;
use crate::cost::{Cost, Growth, Memory};
use crate::support::{Gateway, POOL, now};

/// Limits of segments as the settings have them, but compressed at once: most segments of a long log are.
const LIMITS: SegmentLimits = SegmentLimits {
    bytes: 64 * 1024 * 1024,
    age: Duration::from_secs(604_800),
    compress_after: Duration::ZERO,
};
/// Lines between two checkpoints.
const CHECKPOINT: usize = 1000;
/// Number of machines whose lines these are.
const MACHINES: usize = 10_000;

/// Measures a gateway with a part of these lines in its log, and with all.
pub fn measure(runtime: &Runtime, lines: usize) -> Vec<Growth> {
    // Without optimisation the support of the tests builds it.
    if !cfg!(debug_assertions) {
        build_auditor();
    }
    let mut gateway = Gateway::init();
    // It makes its key.
    gateway.run();
    gateway.terminate();
    gateway.wait();
    let sizes = [lines / PARTS, lines];
    let (mut measured, mut written) = (Vec::new(), 0);
    for lines in sizes {
        let begun = Instant::now();
        runtime.block_on(write(&gateway.path("state"), written, lines));
        println!("{} lines written in {:.1?}", lines - written, begun.elapsed());
        written = lines;
        measured.push(costs(&mut gateway, lines));
    }
    let growth = Growth::all("lines", sizes, measured);
    // An audit compares each line with those before it.
    let is_linear = |growth: &Growth| growth.what().starts_with("log audit");
    growth
        .into_iter()
        .map(|growth| match is_linear(&growth) {
            true => growth.with_memory(Memory::Linear),
            false => growth,
        })
        .collect()
}

fn costs(gateway: &mut Gateway, lines: usize) -> [Cost; 9] {
    let of = format!("{lines} lines");
    let start = Cost::of_start(&of, gateway);
    let file = |name: &str| gateway.path(name).to_str().unwrap().to_owned();
    let (backup, page) = (file("log.backup"), file("report.html"));
    drop(std::fs::remove_file(&backup));
    let run = |arguments: &[&str]| Cost::of_command(&of, gateway, arguments);
    [
        start,
        run(&["log", "show"]),
        run(&["log", "show", "--node", "node-7"]),
        run(&["log", "show", "--node", "node-7", "--all"]),
        run(&["machines", "list", "--limit", "100"]),
        run(&["status"]),
        run(&["report", "--html", &page]),
        run(&["backup", &backup]),
        run(&["log", "audit", "--continued", "--without-checkpoints"]),
    ]
}

/// Writes lines up to this number, and a checkpoint after every thousand.
async fn write(state: &Path, written: usize, lines: usize) {
    let log = state.join("attestation.jsonl");
    let blobs = Blobs::open(&state.join("evidence")).unwrap();
    let key = || LogKey::open(&state.join("log.key")).unwrap();
    let journal = loop {
        let signer = CheckpointSigner::new(key(), None, u64::MAX);
        match Journal::open(&log, signer, LIMITS, blobs.clone(), Arc::new(())) {
            Err(JournalError::InUse(_)) => std::thread::yield_now(),
            opened => break opened.unwrap().0,
        }
    };
    for first in (written..lines).step_by(CHECKPOINT) {
        let at = now();
        let records: Vec<Record> = (first..lines.min(first + CHECKPOINT)).map(|number| record(number, at)).collect();
        let all = records.iter().map(|record| journal.record(record, Vec::new(), ()));
        join_all(all).await.into_iter().for_each(|recorded| recorded.unwrap().into_inner());
        journal.checkpoint(at).await.unwrap();
    }
    drop(journal);
    while is_written(&log) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the record of a config that a machine gets for its ticket.
fn record(number: usize, at: u64) -> Record {
    let machine = number % MACHINES;
    let peer = format!("10.{}.{}.{}:40000", machine >> 16, machine >> 8 & 0xff, machine & 0xff);
    let mut record = Record::new(format!("{number:032x}"), Decision::Config, at, peer, POOL.to_owned());
    record.verdict = Verdict::Served;
    record.shown = ShownEvidence::Ticket;
    record.identity = Some(format!("tpm:{machine:064x}"));
    record.name = Some(format!("node-{machine}"));
    record.decided_by = DecidedBy::Evidence;
    let made = TicketUse {
        number: 1,
        is_repeated: false,
        late_seconds: None,
    };
    record.reason = served_for(ShownEvidence::Ticket, Some(made));
    record.use_number = Some(1);
    record.earned_by = Some(format!("e{number:031x}"));
    record.grant = Some(ConfigSet::Full);
    record.grants = Some(Grants {
        attested: Earns::Full,
        token: Earns::Refuse,
        kubelet: Earns::Refuse,
        nothing: Earns::Refuse,
    });
    record.config_sha256 = Some("0a".repeat(32));
    record.spec_version = Some(SpecVersion::V3_4);
    record.user_agent = Some("Ignition/2.20.0".to_owned());
    record.boot_id = Some(format!("01234567-89ab-cdef-0123-{number:012x}"));
    record
}

/// Builds the auditor's program, with the crates that this benchmark has.
fn build_auditor() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--release",
        "--quiet",
        "--offline",
        "--locked",
        "--package=attest-audit",
        "--package=attest-gateway",
    ]);
    build
        .args(["--bins", "--bench=growth"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    assert!(build.status().unwrap().success(), "attest-audit could not be built");
}
