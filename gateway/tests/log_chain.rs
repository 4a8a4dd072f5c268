//! Chain of the attestation log: each line names the one before it, despite failures of files and processes.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use attest_log::{Blobs, CheckpointSigner, Decision, Journal, JournalError, LineHash, Link, LogKey, Record, SegmentLimits, Why, link_of};
use futures_util::future::join_all;

use crate::support::killed_child::killed_after;

/// Default number of kills of the journal's process.
const KILLS: usize = 50;
/// Environment variable with another number of kills.
const KILLS_VARIABLE: &str = "ATTEST_JOURNAL_KILLS";
/// Environment variable with the folder in which a child writes.
const CHILD_VARIABLE: &str = "ATTEST_JOURNAL_CHILD";
const LOG: &str = "attestation.jsonl";

fn open(folder: &Path) -> Result<Journal, JournalError> {
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    let signer = CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000);
    Ok(Journal::open(&folder.join(LOG), signer, SegmentLimits::NEVER, blobs, Arc::new(()))?.0)
}

/// Opens the log once the writer of a dropped journal has released it.
fn reopen(folder: &Path) -> Journal {
    loop {
        match open(folder) {
            Err(JournalError::InUse(_)) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

fn record(id: &str) -> Record {
    Record::new(id.to_owned(), Decision::Config, 0, "peer".to_owned(), "worker".to_owned())
}

async fn write(journal: &Journal, id: &str) {
    journal.record(&record(id), Vec::new(), ()).await.unwrap().into_inner();
}

fn lines(file: &Path) -> Vec<Vec<u8>> {
    let text = fs::read(file).unwrap();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn link(line: &[u8]) -> Link {
    link_of(line).unwrap().unwrap()
}

/// Verifies that these lines are one chain from `first` on, and returns its id.
fn assert_chained(lines: &[Vec<u8>], first: u64) -> String {
    let links: Vec<Link> = lines.iter().map(|line| link(line)).collect();
    for (number, link) in (first..).zip(&links) {
        assert_eq!((&link.id, link.number), (&links[0].id, number));
        assert_eq!(link.begins.is_some(), number == 1);
    }
    for (before, link) in lines.iter().zip(&links[1..]) {
        assert_eq!(link.previous, LineHash::of(before), "line {}", link.number);
    }
    links[0].id.clone()
}

#[tokio::test]
async fn concurrent_records_are_chained_in_file_order() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).unwrap();
    let ids: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    join_all(ids.iter().map(|id| write(&journal, id))).await;
    let lines = lines(&folder.path().join(LOG));
    assert_eq!(lines.len(), 500);
    assert_chained(&lines, 1);
    assert_eq!(link(&lines[0]).previous, LineHash::NONE);
    assert_eq!(link(&lines[0]).begins.unwrap().why, Why::New);
}

#[tokio::test]
async fn the_chain_continues_across_restarts_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let (log, moved) = (folder.path().join(LOG), folder.path().join("attestation.jsonl.1"));
    let journal = open(folder.path()).unwrap();
    write(&journal, "a").await;
    drop(journal);
    let journal = reopen(folder.path());
    write(&journal, "b").await;
    fs::rename(&log, &moved).unwrap();
    write(&journal, "c").await;
    assert!(journal.reopen(1).await.unwrap());
    write(&journal, "d").await;
    let first = lines(&log);
    assert_chained(&[lines(&moved), first.clone()].concat(), 1);
    // As `copytruncate` empties it, and then deleted.
    fs::write(&log, "").unwrap();
    write(&journal, "e").await;
    let second = lines(&log);
    fs::remove_file(&log).unwrap();
    write(&journal, "f").await;
    let third = lines(&log);
    // One file ends with a checkpoint, and the next begins with one.
    assert_eq!((first.len(), second.len(), third.len()), (2, 1, 1));
    assert_chained(&[first, second, third.clone()].concat(), 5);
    // A torn line was never acknowledged.
    drop(journal);
    OpenOptions::new()
        .append(true)
        .open(&log)
        .unwrap()
        .write_all(&third[0][..30])
        .unwrap();
    let journal = reopen(folder.path());
    write(&journal, "g").await;
    let fourth = lines(&log);
    assert_eq!(fourth.len(), 2);
    let chain = assert_chained(&fourth, 8);
    // After a start without the log, and without what was rotated, another chain begins.
    drop(journal);
    fs::remove_file(&log).unwrap();
    fs::remove_file(&moved).unwrap();
    let journal = reopen(folder.path());
    write(&journal, "h").await;
    assert_ne!(assert_chained(&lines(&log), 1), chain);
}

#[tokio::test]
async fn failed_writes_do_not_enter_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path()).unwrap();
    write(&journal, "a").await;
    // Where the large parts belong there is something else.
    fs::remove_dir(folder.path().join("evidence")).unwrap();
    fs::write(folder.path().join("evidence"), "").unwrap();
    let blob = (Blobs::name(b"x"), b"x".as_slice().into());
    journal.record(&record("b"), vec![blob], ()).await.unwrap_err();
    write(&journal, "c").await;
    let lines = lines(&folder.path().join(LOG));
    assert_eq!(lines.len(), 2);
    assert_chained(&lines, 1);
}

#[tokio::test]
async fn the_chain_continues_an_unchained_legacy_log() {
    for older in [
        "{\"v\":1,\"id\":\"a\"}\n{\"v\":1,\"id\":\"b\"}\n",
        "no record\n",
        "{\"chain\":{\"id\":7}}\n",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG);
        fs::write(&log, older).unwrap();
        let journal = open(folder.path()).unwrap();
        write(&journal, "c").await;
        write(&journal, "d").await;
        let text = fs::read_to_string(&log).unwrap();
        let new = text.strip_prefix(older).unwrap();
        let chained: Vec<Vec<u8>> = new.lines().map(|line| line.as_bytes().to_vec()).collect();
        assert_chained(&chained, 1);
        let begins = link(&chained[0]).begins.unwrap();
        let before = begins.before.unwrap();
        assert_eq!(begins.why, Why::Unchained);
        assert_eq!(usize::try_from(before.bytes).unwrap(), older.len());
        assert_eq!(before.sha256, LineHash::of(older.as_bytes()));
    }
}

/// Process that [`no_acknowledged_record_is_lost_by_kills`] kills, not a test by itself. It prints the acknowledged records.
#[tokio::test]
async fn child_that_writes() {
    let Some(folder) = std::env::var_os(CHILD_VARIABLE) else { return };
    let journal = Arc::new(reopen(Path::new(&folder)));
    let writers = (0..8).map(|writer| {
        let journal = Arc::clone(&journal);
        async move {
            for number in 0_u64.. {
                let id = format!("{}-{writer}-{number}", std::process::id());
                write(&journal, &id).await;
                // One write for each line: a pipe takes it whole or not at all.
                let said = rustix::io::write(std::io::stderr(), format!("acknowledged {id}\n").as_bytes());
                said.unwrap();
            }
        }
    });
    join_all(writers).await;
}

#[test]
fn no_acknowledged_record_is_lost_by_kills() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for kill in 0..kills {
        // So many more or less, that it is killed at every point of a write.
        let before = 1 + kill * 7 % 23;
        acknowledged.extend(killed_after(before, "log_chain::child_that_writes", CHILD_VARIABLE, folder.path()));
    }
    let (torn, text) = {
        let bytes = fs::read(folder.path().join(LOG)).unwrap();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        (bytes.len() - whole, bytes[..whole].to_vec())
    };
    let lines: Vec<Vec<u8>> = text[..text.len() - 1].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    assert_chained(&lines, 1);
    let recorded: std::collections::BTreeSet<String> = lines
        .iter()
        .map(|line| {
            serde_json::from_slice::<serde_json::Value>(line).unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(recorded.len(), lines.len());
    let acknowledged: Vec<&str> = acknowledged.iter().filter_map(|line| line.strip_prefix("acknowledged ")).collect();
    assert!(
        acknowledged.len() >= kills,
        "{} acknowledged, {torn} bytes torn",
        acknowledged.len()
    );
    for id in acknowledged {
        assert!(recorded.contains(id), "{id} was acknowledged, and is lost");
    }
}
