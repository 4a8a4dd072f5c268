//! Kills of the gateway at random moments during its retention pass, while nodes attest. No other lines are missing, and nothing stays that
//! belongs to removed ones. `ATTEST_KILLS` and `ATTEST_SEED` are those of `killed`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use attest_log::{
    Blobs, CheckpointSigner, Journal, JournalError, LogKey, Retention, RetentionRule, SegmentLimits, closed_segments, kept_file,
};
use attest_recording::PendingIn;
use attest_store::Embedded;
use attest_system::clock::Clock;
use tokio::task::JoinSet;

use crate::killed::{Between, Chance, Site, kills};
use crate::log_retention::text;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Gateway, POOL, now};

const KILLS: usize = 6;
/// Number of concurrent nodes.
const AT_ONCE: usize = 4;
/// Maximum number of bytes between a start and the kill.
const BYTES: u64 = 150_000;
const KEEP_BYTES: u64 = 4096;
const NAME: &str = "gw";

fn log(gateway: &Gateway) -> std::path::PathBuf {
    gateway.path("state/attestation.jsonl")
}

/// Verifies that `audit` finds all sound, with removals by the rule. Returns its output.
fn is_whole(gateway: &Gateway) -> String {
    let audit = gateway.try_command(&["log", "audit"]);
    let said = String::from_utf8([audit.stdout, audit.stderr].concat()).unwrap();
    assert!(audit.status.success(), "{said}");
    said
}

/// Returns the names of the existing blobs.
fn blobs(gateway: &Gateway) -> BTreeSet<String> {
    let entries = fs::read_dir(gateway.path("state/evidence")).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().to_str().unwrap().trim_end_matches(".gz").to_owned();
    entries.map(|entry| name(entry.unwrap())).collect()
}

/// Returns all existing lines of the log.
pub fn lines(log: &Path) -> String {
    let files = closed_segments(log).unwrap().into_iter().chain([log.to_owned()]);
    files.map(|file| text(&file)).collect()
}

/// Makes another retention pass like the gateway.
pub async fn pass(gateway: &Gateway, keep_bytes: u64) {
    let (log, state) = (log(gateway), gateway.path("state"));
    let store = Embedded::open(&state.join("gateway.db")).unwrap();
    let blobs = Blobs::open(&state.join("evidence")).unwrap();
    let limits = SegmentLimits {
        bytes: 4096,
        age: Duration::MAX,
        compress_after: Duration::ZERO,
    };
    let journal = loop {
        let signer = CheckpointSigner::new(LogKey::read(&state.join("log.key")).unwrap(), Some(NAME), 2);
        match Journal::open(&log, signer, limits, blobs.clone(), Arc::new(())) {
            Err(JournalError::InUse(_)) => tokio::task::yield_now().await,
            opened => break opened.unwrap().0,
        }
    };
    journal.compress_closed();
    let rule = RetentionRule {
        age: None,
        bytes: Some(keep_bytes),
    };
    let retention = Retention::new(log, rule, vec![blobs]);
    assert_eq!(
        retention
            .run(&journal, &PendingIn(&store), Clock::Fixed(now()))
            .await
            .into_result()
            .unwrap(),
        None
    );
    journal.checkpoint(now()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_is_complete_despite_repeated_kills() {
    let kills = kills(KILLS);
    let mut gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    let accepts = "endorsement = \"any-tpm-of-a-trusted-maker\"\nevent_log = \"recorded\"";
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", accepts);
    gateway.settings(&format!(
        "[attestation_log]\nname = \"{NAME}\"\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\nkeep_bytes = {KEEP_BYTES}\n"
    ));
    gateway.run();
    let lasting = blobs(&gateway);
    let (address, mut passed) = Between::start(gateway.address()).await;
    let mut site = Site::new(&gateway, address, maker);
    site.event_logs = true;
    let (mut chance, mut named) = (Chance::new(), BTreeSet::new());
    let mut killed = 0;
    // Killed so soon each time that nothing was recorded, it would have been for nothing.
    while killed < kills || (named.is_subset(&lasting) && killed < 10 * kills) {
        killed += 1;
        // While it removes what was left, or later: how many segments are there by then, or how much was sent.
        let moment = *passed.borrow() + chance.below(BYTES);
        let there = closed_segments(&log(&gateway)).unwrap().len();
        let left = usize::try_from(chance.below(2 * u64::try_from(there).unwrap() + 1)).unwrap();
        let mut nodes = JoinSet::new();
        (0..AT_ONCE).for_each(|_| drop(nodes.spawn(site.clone().boot())));
        while *passed.borrow() < moment && closed_segments(&log(&gateway)).unwrap().len() != left {
            passed.changed().await.unwrap();
        }
        gateway.kill();
        nodes.join_all().await;
        // Those of decisions that were not recorded any more are nobody's.
        let lines = lines(&log(&gateway));
        named.extend(blobs(&gateway).into_iter().filter(|name| lines.contains(name.as_str())));
        gateway.run();
        // Whatever it removes meanwhile.
        is_whole(&gateway);
    }
    gateway.terminate();
    assert!(gateway.wait().success());
    is_whole(&gateway);
    // What said that segments go is closed by that, and goes next.
    for _ in 0..2 {
        pass(&gateway, KEEP_BYTES).await;
    }
    let said = is_whole(&gateway);
    assert!(said.contains("removed by rule: lines 1 to "), "{said}");
    let (log, kept) = (log(&gateway), fs::read_to_string(kept_file(&log(&gateway))).unwrap());
    let there: BTreeSet<&str> = kept.lines().collect();
    assert_eq!(there.len(), kept.lines().count(), "each once");
    assert!(!log.with_extension("unnamed").exists());
    let (blobs, lines) = (blobs(&gateway), lines(&log));
    named.retain(|name| !lasting.contains(name));
    assert!(!named.is_empty(), "there were some");
    let stay: Vec<&String> = blobs.intersection(&named).filter(|name| !lines.contains(name.as_str())).collect();
    assert!(stay.is_empty(), "{stay:?}");
    eprintln!("{killed} kills, {} lines are kept, {} blobs were named", there.len(), named.len());
}
