//! Checkpoints of the attestation log: signed periodically, stored in the store, and reported if they are missing.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use attest_log::{
    Blobs, CheckpointLine, CheckpointSigner, Decision, Journal, JournalError, LineHash, LogKey, LogPublicKey, Record, SegmentLimits,
    link_of,
};
use attest_recording::{CheckpointUpdate, keep_checkpoint, last_checkpoints};
use attest_store::{Embedded, EntryKind, Store};
use serde_json::Value;

use crate::support::kubelet::{embedded, in_process};
use crate::support::{Gateway, LIMIT, POOL};
use crate::uncertain_commit::Doubting;

const LOG: &str = "state/attestation.jsonl";

/// Returns the checkpoints of a gateway's log, after a check of each against the gateway's key and its position.
fn checkpoints(gateway: &Gateway) -> Vec<CheckpointLine> {
    let pem = gateway.command(&["log", "show-key"]);
    let key = LogPublicKey::all_of_pem(pem.as_bytes()).unwrap()[0];
    let text = fs::read_to_string(gateway.path(LOG)).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<CheckpointLine>(line).ok());
    let lines: Vec<CheckpointLine> = lines.collect();
    for CheckpointLine { at, chain, checkpoint } in &lines {
        assert!(checkpoint.is_signed(&chain.id, *at));
        assert_eq!((checkpoint.key, checkpoint.count + 1), (key, chain.number));
        assert_eq!(checkpoint.head, chain.previous);
    }
    lines
}

/// Waits until a condition holds.
async fn until(so: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !so().await {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

async fn fetch(gateway: &Gateway) {
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
}

fn counts(gateway: &Gateway) -> Vec<u64> {
    checkpoints(gateway).iter().map(|line| line.checkpoint.count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_at_start_end_and_every_n_records() {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nname = \"gw-7\"\ncheckpoint_records = 3\ncheckpoint_seconds = 3600");
    gateway.run();
    assert_eq!(counts(&gateway).first(), Some(&0));
    // What it goes by is the first of three records.
    gateway.wait_for_acts(1, "gateway.start");
    for _ in 0..2 {
        fetch(&gateway).await;
    }
    let store = embedded(&gateway);
    let of_store = async || last_checkpoints(&store).await.unwrap().pop().unwrap().line.checkpoint.count;
    until(async || of_store().await == 4).await;
    assert_eq!(counts(&gateway), [0, 4]);
    fetch(&gateway).await;
    gateway.terminate();
    assert!(gateway.wait().success());
    let all = checkpoints(&gateway);
    assert_eq!(all.iter().map(|line| line.checkpoint.count).collect::<Vec<_>>(), [0, 4, 6]);
    assert!(all.iter().all(|line| line.checkpoint.replica == "gw-7"));
    assert_eq!(of_store().await, 6);
    // What was signed at the end is not signed again at the start; what was not, because it was killed, is.
    gateway.run();
    assert_eq!(counts(&gateway), [0, 4, 6]);
    fetch(&gateway).await;
    gateway.kill();
    gateway.run();
    assert_eq!(counts(&gateway), [0, 4, 6, 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn periodic_checkpoints_need_new_records() {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\ncheckpoint_seconds = 1");
    gateway.run();
    // What it goes by is new.
    let store = embedded(&gateway);
    until(async || last_checkpoints(&store).await.unwrap()[0].line.checkpoint.count == 2).await;
    fetch(&gateway).await;
    until(async || counts(&gateway).len() == 3).await;
    assert_eq!(counts(&gateway), [0, 2, 4]);
}

/// Change of a log's text between two starts; `None` removes the log.
type Alteration = dyn Fn(&str) -> Option<String>;

/// Changes a log between two starts. Returns the gateway, and the log's lines after the second one.
async fn restarted(alter: &Alteration) -> (Gateway, Vec<Value>) {
    let mut gateway = Gateway::start();
    for _ in 0..3 {
        fetch(&gateway).await;
    }
    gateway.terminate();
    gateway.wait();
    let log = gateway.path(LOG);
    let whole = fs::read_to_string(&log).unwrap();
    match alter(&whole) {
        Some(text) => fs::write(&log, text).unwrap(),
        None => fs::remove_file(&log).unwrap(),
    }
    gateway.run();
    fetch(&gateway).await;
    let lines = gateway.log_lines();
    (gateway, lines)
}

fn first(text: &str, count: usize) -> String {
    text.lines().take(count).flat_map(|line| [line, "\n"]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_signed_lines_missing_at_start_once() {
    let cases: [&Alteration; 5] = [
        &|_| None,
        &|_| Some(String::new()),
        &|text| Some(first(text, 2)),
        &|text| Some(first(text, 4)),
        &|text| Some(text.replace("the log's chain had 5 lines", "the log's chain had 6 lines")),
    ];
    for alter in cases {
        let (mut gateway, lines) = restarted(alter).await;
        gateway.line(|line| line.contains("ERROR") && line.contains("lacks line 6 of chain"));
        let begins = lines.iter().rev().find_map(|line| line["chain"].get("begins")).unwrap();
        assert_eq!(begins["why"], "incomplete");
        assert_eq!(begins["after"][0]["number"], 6);
        // It is said once; the new chain goes on.
        let chain = lines.last().unwrap()["chain"]["id"].clone();
        assert_ne!(chain, begins["after"][0]["chain"]);
        gateway.kill();
        gateway.run();
        fetch(&gateway).await;
        assert!(!gateway.output().contains("lacks line"));
        assert_eq!(gateway.log_lines().pop().unwrap()["chain"]["id"], chain);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn continues_a_complete_log() {
    for alter in [
        &(|text: &str| Some(text.to_owned())) as &Alteration,
        // What an older release has written since.
        &|text| Some(format!("{text}{{\"filler\":\"\"}}\n")),
        // Rotated: the file begins with what was signed last.
        &|text| Some(format!("{}\n", text.lines().last().unwrap())),
    ] {
        let (gateway, _) = restarted(alter).await;
        assert!(!gateway.output().contains("lacks line"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_ends_with_a_checkpoint_and_the_next_begins_with_one() {
    let gateway = Gateway::start();
    gateway.wait_for_acts(1, "gateway.start");
    fetch(&gateway).await;
    let old = gateway.path("state/attestation.jsonl.1");
    fs::rename(gateway.path(LOG), &old).unwrap();
    gateway.hang_up();
    gateway.line(|line| line.contains("the attestation log was moved; started a new file"));
    let old = fs::read_to_string(old).unwrap();
    let last: CheckpointLine = serde_json::from_str(old.lines().last().unwrap()).unwrap();
    let new = checkpoints(&gateway);
    assert_eq!((last.checkpoint.count, new[0].checkpoint.count), (3, 4));
    assert_eq!(new[0].checkpoint.head, LineHash::of(old.lines().last().unwrap().as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn detects_a_copied_state_by_its_checkpoints() {
    let gateway = Gateway::init();
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    let running = in_process(&gateway, Arc::clone(&store)).await;
    let metrics = || running.metrics.text().unwrap();
    assert!(metrics().contains("attest_gateway_log_incomplete 0\n"));
    // As if another gateway had gone on with the same chain.
    let mut entry = store.list(EntryKind::Checkpoint).await.unwrap().pop().unwrap();
    entry.value = entry.value.replace(r#"\"number\":1,"#, r#"\"number\":9,"#);
    store.put(EntryKind::Checkpoint, entry).await.unwrap();
    fetch_in_process(&running).await;
    running.journal.checkpoint(running.clock.now().as_secs()).await.unwrap();
    until(async || metrics().contains("attest_gateway_log_incomplete 1\n")).await;
}

/// Records a new decision.
async fn fetch_in_process(running: &attest_gateway::api::Gateway) {
    let record = Record::new("0".repeat(32), Decision::Config, 1, "peer".to_owned(), POOL.to_owned());
    running.journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
}

#[tokio::test]
async fn retries_storing_a_checkpoint_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("gateway.db");
    let store = |lost| Doubting {
        engine: Embedded::open(&database).unwrap(),
        lost: AtomicBool::new(lost),
    };
    let kept = async |store: &Doubting| last_checkpoints(store).await.unwrap().pop().map(|kept| kept.line.checkpoint.count);
    let journal = journal(folder.path());
    assert_eq!(
        keep_checkpoint(&journal, &store(true)).await.unwrap(),
        CheckpointUpdate::Kept,
        "there is none"
    );
    journal.checkpoint(1).await.unwrap();
    let doubting = store(true);
    keep_checkpoint(&journal, &doubting).await.unwrap_err();
    assert_eq!(keep_checkpoint(&journal, &doubting).await.unwrap(), CheckpointUpdate::Kept);
    // What the store has need not be said again.
    doubting.lost.store(true, Ordering::Relaxed);
    assert_eq!(keep_checkpoint(&journal, &doubting).await.unwrap(), CheckpointUpdate::Kept);
    assert_eq!(kept(&store(false)).await, Some(0));
    // It never got the last one of a gateway that was stopped.
    let record = Record::new("0".repeat(32), Decision::Config, 1, "peer".to_owned(), POOL.to_owned());
    journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
    journal.checkpoint(2).await.unwrap();
    drop(journal);
    let journal = self::journal(folder.path());
    assert_eq!(keep_checkpoint(&journal, &store(false)).await.unwrap(), CheckpointUpdate::Kept);
    assert_eq!(kept(&store(false)).await, Some(2));
}

fn journal(folder: &Path) -> Journal {
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    let signer = || CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000);
    loop {
        match Journal::open(&folder.join("log"), signer(), SegmentLimits::NEVER, blobs.clone(), Arc::new(())) {
            Err(JournalError::InUse(_)) => std::thread::yield_now(),
            opened => return opened.unwrap().0,
        }
    }
}

/// Returns a record after the last line of a log, as a forger without the key can write it.
fn invented(last: &str, record: &str) -> String {
    let link = link_of(last.as_bytes()).unwrap().unwrap();
    let own = link_of(record.as_bytes()).unwrap().unwrap();
    record
        .replace(&format!("\"number\":{}", own.number), &format!("\"number\":{}", link.number + 1))
        .replace(&own.previous.to_string(), &LineHash::of(last.as_bytes()).to_string())
        .replace("\"peer\":\"127", "\"peer\":\"128")
}

#[tokio::test(flavor = "multi_thread")]
async fn names_unsigned_lines_found_at_start() {
    let mut gateway = Gateway::start();
    fetch(&gateway).await;
    gateway.terminate();
    gateway.wait();
    let found = |gateway: &Gateway| checkpoints(gateway).pop().unwrap().checkpoint.found;
    assert_eq!(found(&gateway), None, "it has signed its end");
    let log = gateway.path(LOG);
    let text = fs::read_to_string(&log).unwrap();
    let last = text.lines().last().unwrap();
    let link = link_of(last.as_bytes()).unwrap().unwrap();
    let invented = invented(last, &gateway.record_lines()[0]);
    fs::write(&log, format!("{text}{invented}\n")).unwrap();
    gateway.run();
    let number = link.number + 1;
    gateway.line(|line| {
        line.contains("WARN")
            && line.contains(&format!(
                "lines {number} to {number} of the attestation log had no checkpoint at the start"
            ))
    });
    let first = checkpoints(&gateway)
        .into_iter()
        .filter_map(|line| line.checkpoint.found)
        .next()
        .unwrap();
    assert_eq!((first.first, first.last), (number, number));
    let said = String::from_utf8(gateway.try_command(&["log", "audit"]).stdout).unwrap();
    assert!(said.contains(&format!("line {number} stood there unsigned")), "{said}");
    // So is what it has written itself before it was killed, and nothing after a start that found nothing.
    fetch(&gateway).await;
    gateway.kill();
    gateway.run();
    let named = |gateway: &Gateway| checkpoints(gateway).iter().filter(|line| line.checkpoint.found.is_some()).count();
    assert_eq!(named(&gateway), 2);
    gateway.terminate();
    gateway.wait();
    gateway.run();
    assert_eq!(named(&gateway), 2);
}

/// Change of a log's lines, and of files next to it, between two starts.
type Forgery = dyn Fn(&[&str], &str) -> Vec<(&'static str, Vec<String>)>;

/// Starts a gateway again after a forger has put invented lines into its log and moved them aside.
async fn forged(forge: &Forgery) -> Gateway {
    let mut gateway = Gateway::start();
    gateway.wait_for_acts(1, "gateway.start");
    fetch(&gateway).await;
    gateway.terminate();
    gateway.wait();
    let text = fs::read_to_string(gateway.path(LOG)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    fs::remove_file(gateway.path(LOG)).unwrap();
    for (name, lines) in forge(&lines, lines[2]) {
        let bytes = lines.iter().flat_map(|line| [line, "\n"]).collect::<String>().into_bytes();
        let bytes = if name.ends_with(".gz") { zipped(&bytes) } else { bytes };
        fs::write(gateway.path(&format!("{LOG}{name}")), bytes).unwrap();
    }
    gateway.run();
    gateway
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Returns the log's lines, and this number of invented ones after them.
fn with_invented(lines: &[&str], record: &str, count: usize) -> Vec<String> {
    let mut lines = owned(lines);
    for _ in 0..count {
        lines.push(invented(lines.last().unwrap(), record));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn names_unsigned_lines_in_rotated_files_at_start() {
    let cases: [&Forgery; 9] = [
        &|lines, record| vec![(".1", with_invented(lines, record, 2))],
        &|lines, record| vec![("", Vec::new()), (".1.gz", with_invented(lines, record, 2))],
        &|lines, record| {
            let all = with_invented(lines, record, 2);
            vec![(".1", all[..5].to_vec()), ("", all[5..].to_vec())]
        },
        &|lines, record| {
            let all = with_invented(lines, record, 2);
            vec![(".2", all[..4].to_vec()), (".1.gz", all[4..5].to_vec()), ("", all[5..].to_vec())]
        },
        // What nobody can read hides none of them; nor does a checkpoint that is not the gateway's.
        &|lines, record| {
            let mut all = with_invented(lines, record, 2);
            all.insert(5, "what is this".to_owned());
            vec![(".1", all)]
        },
        &|lines, record| {
            let mut all = with_invented(lines, record, 1);
            let checkpoint = lines[3].replace("\"number\":4", "\"number\":6");
            let previous = link_of(lines[3].as_bytes()).unwrap().unwrap().previous.to_string();
            all.push(checkpoint.replace(&previous, &LineHash::of(all[4].as_bytes()).to_string()));
            vec![("", all)]
        },
        // Nor one that is, and stands elsewhere.
        &|lines, record| {
            let all = with_invented(lines, record, 2);
            vec![(".1", all[..5].to_vec()), (".2", owned(&lines[..1])), ("", all[5..].to_vec())]
        },
        &|lines, record| {
            let mut all = with_invented(lines, record, 2);
            all.insert(5, lines[3].to_owned());
            vec![("", all)]
        },
        &|lines, record| {
            let mut all = with_invented(lines, record, 2);
            all.insert(5, lines[3].to_owned());
            vec![("", Vec::new()), (".1", all)]
        },
    ];
    for forge in cases {
        let gateway = forged(forge).await;
        gateway.line(|line| line.contains("WARN") && line.contains("lines 5 to 6 of the attestation log had no checkpoint at the start"));
        let said = String::from_utf8(gateway.try_command(&["log", "audit"]).stdout).unwrap();
        assert!(said.contains("lines 5 to 6 stood there unsigned"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_a_gap_before_unsigned_lines() {
    // The one that the last line follows is put back later; it may follow the line that was signed, or another one in its place.
    let gateway = forged(&|lines, record| {
        let all = with_invented(lines, record, 2);
        vec![(".1", owned(lines)), ("", all[5..].to_vec())]
    })
    .await;
    gateway
        .line(|line| line.contains("WARN") && line.contains("line 5 of chain") && line.contains("is in neither the attestation log nor"));
    gateway.line(|line| line.contains("WARN") && line.contains("lines 1 to 6 of the attestation log had no checkpoint at the start"));
}

/// Returns a record in the form of a release without a chain.
fn unchained(record: &str) -> String {
    record[..record.find(",\"chain\":").unwrap()].to_owned() + "}"
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_unchained_lines_after_a_chain() {
    let cases: [(&Forgery, &str); 4] = [
        (
            &|lines, record| {
                let mut all = with_invented(lines, record, 1);
                all.push(unchained(record));
                vec![("", all)]
            },
            "line 5 (lines 5 to 5 without a checkpoint)",
        ),
        (
            &|lines, record| vec![(".1", with_invented(lines, record, 1)), ("", vec![unchained(record)])],
            "line 5 (lines 5 to 5 without a checkpoint)",
        ),
        (
            &|lines, record| {
                let mut all = with_invented(lines, record, 1);
                all.push(unchained(record));
                vec![(".1", all)]
            },
            "line 5 (lines 5 to 5 without a checkpoint)",
        ),
        (
            &|lines, record| vec![("", [owned(lines), vec![unchained(record)]].concat())],
            "line 4: an older release or another program wrote them",
        ),
    ];
    for (forge, expected) in cases {
        let gateway = forged(forge).await;
        gateway.line(|line| line.contains("WARN") && line.contains("ends with lines outside any chain") && line.contains(expected));
        // And by whoever audits it, who says so if it is known that an older release has written them.
        let audit = gateway.try_command(&["log", "audit"]);
        let said = String::from_utf8(audit.stdout).unwrap();
        assert!(
            !audit.status.success() && said.contains("put in, or altered: 1 line(s) of no chain"),
            "{said}"
        );
        assert_eq!(
            said.contains("line 5 stood there unsigned"),
            expected.contains("lines 5 to 5"),
            "{said}"
        );
        let audit = gateway.try_command(&["log", "audit", "--unchained"]);
        let said = String::from_utf8(audit.stdout).unwrap();
        // In a file of its own it is before no chain.
        assert_ne!(said.contains("put in, or altered"), said.contains("unchained up to line"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_detects_an_altered_final_checkpoint() {
    let mut gateway = Gateway::start();
    fetch(&gateway).await;
    gateway.terminate();
    gateway.wait();
    let text = fs::read_to_string(gateway.path(LOG)).unwrap();
    let (before, last) = text.trim_end().rsplit_once('\n').unwrap();
    let altered = gateway.path("altered.jsonl");
    let audit = |last: &str| {
        fs::write(&altered, format!("{before}\n{last}\n")).unwrap();
        let output = gateway.try_command(&["log", "audit", "--without-checkpoints", "--log", altered.to_str().unwrap()]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (sound, said) = audit(last);
    assert!(sound && said.contains("whole"), "{said}");
    let more = |member: &str| format!(",{member},\"chain\":");
    for (from, to, expected) in [
        ("the log's chain", "The log's chain", "reason is"),
        ("\"count\":3", "\"count\":4", "false"),
        (",\"chain\":", &more("\"peer\":\"x\""), "peer does not belong there"),
        (",\"chain\":", &more("\"pool\":\"worker\""), "pool does not belong there"),
        (
            ",\"chain\":",
            &more("\"decided_by\":\"policy\""),
            "decided_by does not belong there",
        ),
        (",\"chain\":", &more("\"verdict\":\"trusted\""), "verdict does not belong there"),
        (",\"chain\":", &more("\"name\":\"worker-1\""), "name does not belong there"),
        (",\"chain\":", &more("\"alerts\":[\"x\"]"), "alerts does not belong there"),
        (",\"chain\":", &more("\"user_agent\":\"x\""), "user_agent does not belong there"),
        (",\"chain\":", &more("\"counted\":7"), "counted does not belong there"),
        ("\"decision\":\"checkpoint\"", "\"decision\":\"config\"", "1 unreadable lines"),
    ] {
        let edited = last.replacen(from, to, 1);
        assert_ne!(edited, last, "{from}");
        let (sound, said) = audit(&edited);
        assert!(!sound && said.contains(expected), "{expected}: {said}");
    }
}
