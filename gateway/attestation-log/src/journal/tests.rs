use std::fs;
use std::sync::atomic::AtomicU64;

use super::super::chain::ChainProgress;
use super::super::log_end::CHUNK_BYTES;
use super::super::log_key::LogKey;
use super::*;
use crate::Blobs;

fn open(folder: &Path) -> Result<(Journal, u64), JournalError> {
    open_observed(folder, Arc::new(()))
}

fn open_observed(folder: &Path, observer: Arc<dyn Observer>) -> Result<(Journal, u64), JournalError> {
    Journal::open(
        &folder.join("attestation.jsonl"),
        signer(folder),
        SegmentLimits::NEVER,
        Blobs::open(&folder.join("evidence")).unwrap(),
        observer,
    )
}

/// An observer that counts the fsyncs of the log.
#[derive(Debug, Default)]
struct Fsyncs(AtomicU64);

impl Observer for Fsyncs {
    fn log_state(&self, _: LogState) {}

    fn log_synced(&self, _: Duration) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn signer(folder: &Path) -> CheckpointSigner {
    CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000)
}

fn record(id: &str) -> Record {
    Record::new(id.to_owned(), Decision::Config, 0, "peer".to_owned(), "worker".to_owned())
}

/// Opens the log once the writer of a dropped journal has let go of it.
fn reopen(folder: &Path) -> (Journal, u64) {
    loop {
        match open(folder) {
            Err(JournalError::InUse(_)) => thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

#[tokio::test]
async fn line_is_written_when_record_returns() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, cut) = open(folder.path()).unwrap();
    assert_eq!(cut, 0);
    let log = folder.path().join("attestation.jsonl");
    for count in 1..=20 {
        let outcome = journal.record(&record("d"), Vec::new(), count).await.unwrap().into_inner();
        assert_eq!((outcome, fs::read_to_string(&log).unwrap().lines().count()), (count, count));
    }
}

#[tokio::test]
async fn checkpoint_shares_the_fsync_of_its_records() {
    let (folder, fsyncs) = (tempfile::tempdir().unwrap(), Arc::<Fsyncs>::default());
    let (journal, _) = open_observed(folder.path(), Arc::<Fsyncs>::clone(&fsyncs)).unwrap();
    let (begin, has_begun) = mpsc::channel();
    let (gate, opened) = mpsc::channel::<()>();
    let (opened, syncs) = (Mutex::new(opened), Arc::<AtomicU64>::default());
    let position = {
        let syncs = Arc::clone(&syncs);
        move || {
            let (id, mark) = ("5".repeat(32), syncs.load(Ordering::Relaxed));
            Some(StorePosition { id, mark, wrote: None })
        }
    };
    let sync = move || {
        let _ = begin.send(());
        // Until both others wait.
        let _ = opened.try_lock().unwrap().recv();
        syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let journal = journal.with_store(StoreLink::new(position, sync));
    let [first, mut second] = ["a", "b"].map(record);
    second.at = 7;
    let (first, second, checkpoint, ()) = tokio::join!(
        journal.record(&first, Vec::new(), ()),
        async {
            has_begun.recv().unwrap();
            journal.record(&second, Vec::new(), ()).await
        },
        journal.checkpoint(1),
        async { drop(gate) },
    );
    assert!(first.is_ok() && second.is_ok() && checkpoint.is_ok());
    assert_eq!(fsyncs.0.load(Ordering::Relaxed), 2);
    let log = fs::read_to_string(folder.path().join("attestation.jsonl")).unwrap();
    let marks: Vec<_> = log
        .lines()
        .filter_map(|line| line.split("\"mark\":").nth(1)?.chars().next())
        .collect();
    assert_eq!(
        marks,
        ['0', '0', '1'],
        "a checkpoint has the position of the time when it is signed"
    );
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["checkpoint"]["count"], &last["at"]),
        (&2.into(), &7.into()),
        "it is as late as the records that it signs"
    );
}

#[test]
fn truncates_an_unacknowledged_tail_of_any_length() {
    let chunk = usize::try_from(CHUNK_BYTES).unwrap();
    for (whole, torn) in [
        (0, 1),
        (0, chunk * 2 + 7),
        (3, 0),
        (3, 1),
        (chunk, chunk),
        (chunk - 1, chunk + 1),
        (chunk * 3, chunk * 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let lines = match whole {
            0 => String::new(),
            whole => format!("{}\n", "x".repeat(whole - 1)),
        };
        fs::write(&log, format!("{lines}{}", "y".repeat(torn))).unwrap();
        let (_journal, cut) = open(folder.path()).unwrap();
        assert_eq!(usize::try_from(cut).unwrap(), torn);
        assert!(fs::read_to_string(&log).unwrap() == lines, "{whole} {torn}");
    }
}

#[test]
fn second_journal_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path()).unwrap();
    assert!(matches!(open(folder.path()), Err(JournalError::InUse(_))));
    drop(journal);
    reopen(folder.path());
}

#[tokio::test]
async fn record_fails_if_its_blob_cannot_be_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path()).unwrap();
    // A folder in the blob's place cannot be written to.
    let name = Blobs::name(b"log");
    fs::create_dir(folder.path().join("evidence").join(format!("{name}.gz.new"))).unwrap();
    let refused = journal.record(&record("a"), vec![(name, b"log".as_slice().into())], ()).await;
    assert!(matches!(refused, Err(JournalError::Failed)));
    journal.record(&record("b"), Vec::new(), ()).await.unwrap();
    let log = fs::read_to_string(folder.path().join("attestation.jsonl")).unwrap();
    assert!(log.lines().count() == 1 && log.contains("\"b\""), "{log}");
}

#[tokio::test]
async fn reopen_switches_to_a_new_file_after_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path()).unwrap();
    let (log, moved) = (folder.path().join("attestation.jsonl"), folder.path().join("attestation.jsonl.1"));
    let count = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    journal.record(&record("a"), Vec::new(), ()).await.unwrap();
    assert!(!journal.reopen(1).await.unwrap(), "nobody has moved it");
    fs::rename(&log, &moved).unwrap();
    journal.record(&record("b"), Vec::new(), ()).await.unwrap();
    assert!(journal.is_moved());
    assert!(journal.reopen(1).await.unwrap());
    assert!(!journal.is_moved());
    journal.record(&record("c"), Vec::new(), ()).await.unwrap();
    assert_eq!((count(&moved), count(&log)), (2 + 1, 1 + 1), "each has a checkpoint");
    // The lock is on the new one, and not on the old one any longer.
    assert!(matches!(open(folder.path()), Err(JournalError::InUse(_))));
    fs::File::open(&moved).unwrap().try_lock().unwrap();
    // What cannot be opened is said, and the log goes on where it was.
    fs::rename(&log, folder.path().join("attestation.jsonl.2")).unwrap();
    fs::create_dir(&log).unwrap();
    journal.reopen(1).await.unwrap_err();
    journal.record(&record("d"), Vec::new(), ()).await.unwrap();
    assert_eq!(count(&folder.path().join("attestation.jsonl.2")), 2 + 2);
}

#[test]
fn failed_write_truncates_only_its_own_bytes() {
    for (before, emptied, after) in [("a\n", false, "a\n"), ("a\n", true, ""), ("", false, "")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, _) = LockedLog::open(&path).unwrap();
        log.append(before.as_bytes()).unwrap();
        log.tear(b"half a li");
        if emptied {
            fs::write(&path, "").unwrap();
        }
        log.append(b"b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{after}b\n"));
        assert!(log.is_writable());
    }
}

#[test]
fn rejects_a_line_that_cannot_be_synced() {
    let folder = tempfile::tempdir().unwrap();
    // A device that takes every byte, and cannot be synced: EINVAL of fsync(2).
    let mut writer = JournalWriter {
        observer: Arc::new(()),
        store: None,
        group_commit: None,
        log: LockedLog::on_device(Path::new("/dev/null")),
        chain: ChainProgress::after(
            br#"{"chain":{"id":"a","number":1,"previous":"0000000000000000000000000000000000000000000000000000000000000000"}}"#,
        )
        .unwrap(),
        evidence: Blobs::open(&folder.path().join("evidence")).unwrap(),
        signer: signer(folder.path()),
        unsigned: Arc::default(),
        signed: watch::channel(None).0,
        durable: watch::channel(Durable {
            chain: "a".to_owned(),
            number: 1,
            cuts: 0,
        })
        .0,
        torn: false,
        moved: Arc::default(),
        limits: SegmentLimits::NEVER,
        compression: mpsc::channel().0,
        _lock: Arc::new(WriterLock::take(&folder.path().join("attestation.jsonl")).unwrap()),
    };
    let (done, _written) = oneshot::channel();
    let append = Append {
        at: 1,
        record: b"{\"id\":\"a\"}".to_vec(),
        blobs: Vec::new(),
        done,
    };
    assert!(writer.write(&[append], None).is_err());
}

#[tokio::test]
async fn pause_starts_when_records_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path()).unwrap();
    let looks = Arc::new(AtomicU64::default());
    let journal = journal.with_company({
        let looks = Arc::clone(&looks);
        // Nobody else: there is no pause, but it is looked whether there is one.
        move || {
            looks.fetch_add(1, Ordering::Relaxed);
            0
        }
    });
    journal.record(&record("a"), Vec::new(), ()).await.unwrap();
    let before = looks.load(Ordering::Relaxed);
    assert_eq!(before, 0);
    journal.record(&record("b"), Vec::new(), ()).await.unwrap();
    assert_eq!(looks.load(Ordering::Relaxed), 1);
}
