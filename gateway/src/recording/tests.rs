use std::fs;
use std::path::Path;

use attest_log::{Blobs, Decision, LogKey, SegmentLimits, Signer, Verdict};
use attest_recording::with_store;
use attest_store::{Embedded, EntryKind, Spendable, Store};

use super::*;

fn open(folder: &Path) -> Journal {
    let signer = Signer::new(LogKey::open(&folder.join("log.key")).unwrap(), Some("gw"), 1000);
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    Journal::open(&folder.join("attestation.jsonl"), signer, SegmentLimits::NEVER, blobs, Arc::new(()))
        .unwrap()
        .0
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

#[tokio::test]
async fn what_is_only_counted_is_not_told_either_before_what_it_used_up_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap());
    let journal = open(folder.path());
    let recorder = Recorder::new(Arc::new(with_store(journal, store.clone())), Arc::default());
    // Of more bytes than there are for strangers.
    let counted = async |decision: Decision| {
        let mut record = Record::new("d".to_owned(), decision, 0, "127.0.0.1:1".to_owned(), "worker".to_owned());
        record.verdict = Verdict::Refused;
        let large: Arc<[u8]> = vec![0; usize::try_from(counted::STRANGERS_AT_ONCE_BYTES).unwrap() + 1].into();
        let recorded = recorder.record(&record, vec![("large".to_owned(), large)], ()).await;
        recorded.map(|recorded| assert_eq!(recorded.line(), None))
    };
    // The first has a line that says that they are counted.
    spend(&*store, "a").await;
    counted(Decision::Evidence).await.unwrap();
    spend(&*store, "b").await;
    counted(Decision::Evidence).await.unwrap();
    fs::rename(folder.path().join("gateway.db-wal"), folder.path().join("away")).unwrap();
    spend(&*store, "c").await;
    counted(Decision::Config).await.unwrap();
    let refused = counted(Decision::Evidence).await;
    assert!(matches!(refused, Err(JournalError::Failed)), "{refused:?}");
}
