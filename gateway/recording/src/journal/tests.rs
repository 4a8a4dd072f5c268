use std::fs;
use std::path::Path;

use attest_log::{Blobs, CheckpointSigner, Decision, JournalError, LogKey, Record, SegmentLimits};
use attest_store::{Embedded, EntryKind, Spendable};

use super::*;

fn open(folder: &Path) -> (Journal, u64) {
    let signer = CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000);
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    Journal::open(&folder.join("attestation.jsonl"), signer, SegmentLimits::NEVER, blobs, Arc::new(())).unwrap()
}

fn record(id: &str) -> Record {
    Record::new(id.to_owned(), Decision::Config, 0, "peer".to_owned(), "worker".to_owned())
}

async fn spend(store: &dyn Store, id: &str) {
    let thing = Spendable {
        kind: EntryKind::Ticket,
        id: id.to_owned(),
        limit: 1,
        remember_until: 10,
    };
    store.spend(thing).await.unwrap();
}

#[test]
fn journal_does_not_keep_the_store_open() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap());
    let left = Arc::downgrade(&store);
    let _journal = with_store(open(folder.path()).0, &store);
    drop(store);
    assert!(left.upgrade().is_none());
}

#[tokio::test]
async fn writes_no_record_before_its_transaction_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap());
    let (journal, _) = open(folder.path());
    let journal = with_store(journal, &store);
    let lines = || fs::read_to_string(folder.path().join("attestation.jsonl")).unwrap().lines().count();
    spend(&*store, "a").await;
    journal.record(&record("a"), Vec::new(), ()).await.unwrap();
    assert_eq!(lines(), 1);
    assert!(journal.is_writable().await);
    // The store's log of transactions is not there: what is spent from here on cannot be synced.
    fs::rename(folder.path().join("gateway.db-wal"), folder.path().join("away")).unwrap();
    spend(&*store, "b").await;
    let refused = journal.record(&record("b"), Vec::new(), ()).await.map(drop);
    assert!(matches!(refused, Err(JournalError::Failed)), "{refused:?}");
    journal.checkpoint(1).await.unwrap_err();
    assert!(!journal.is_writable().await);
    assert_eq!(lines(), 1);
}
