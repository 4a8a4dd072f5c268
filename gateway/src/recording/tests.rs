use std::fs;
use std::path::Path;

use attest_log::{Blobs, CheckpointSigner, Decision, LogKey, SegmentLimits, Verdict};
use attest_recording::with_store;
use attest_store::{DecisionRecord, Embedded, EntryKind, Spendable, Store};

use super::*;

fn open(folder: &Path) -> Journal {
    let signer = CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), Some("gw"), 1000);
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
async fn aggregated_decisions_also_wait_for_durable_uses() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap());
    let journal = open(folder.path());
    let recorder = Recorder::new(Arc::new(with_store(journal, &store)), Arc::default());
    // Of more bytes than there are for strangers.
    let counted = async |decision: Decision| {
        let mut record = Record::new("d".to_owned(), decision, 0, "127.0.0.1:1".to_owned(), "worker".to_owned());
        record.verdict = Verdict::Refused;
        let large: Arc<[u8]> = vec![0; usize::try_from(aggregated::STRANGERS_AT_ONCE_BYTES).unwrap() + 1].into();
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

#[tokio::test]
async fn recovery_skips_running_and_unreadable_pending_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(Arc::new(open(folder.path())), Arc::default());
    let mut record = Record::<Value, Value>::new("d".to_owned(), Decision::Evidence, 0, "127.0.0.1:1".to_owned(), "worker".to_owned());
    record.verdict = Verdict::Trusted;
    let kept = |record: String, adopted| Pending {
        decided: DecisionRecord {
            decision: "d".to_owned(),
            at: 0,
            record,
        },
        has_use: false,
        adopted,
    };
    let text = serde_json::to_string(&record).unwrap();
    let pending = kept(text, false);
    assert!(recorder.is_left(&pending), "it is not known whether it was made");
    recorder.begin("d");
    assert!(!recorder.is_left(&pending));
    recorder.note_unwritten("d");
    assert!(recorder.is_left(&pending));
    let unread = Unrecorded {
        pending: kept("{\"id\":\"d\"}".to_owned(), false),
        is_unanswered: true,
    };
    assert_eq!(recorder.record_pending(&unread).await.unwrap(), None);
    assert!(!recorder.is_left(&pending), "its use is not given back");
    recorder.note_unwritten("d");
    let read = Unrecorded {
        pending: pending.clone(),
        is_unanswered: true,
    };
    assert_eq!(recorder.record_pending(&read).await.unwrap(), Some(true));
    assert!(!recorder.is_left(&pending), "once");
    assert_eq!(recorder.recorded(), BTreeSet::from(["d".to_owned()]));
    for number in 0..UNWRITTEN_LIMIT {
        assert!(!recorder.is_behind());
        recorder.note_unwritten(&number.to_string());
    }
    assert!(recorder.is_behind());
}

#[test]
fn counts_the_decisions_that_could_not_be_written() {
    let stages = stages::Stages::default();
    let decisions: Vec<String> = (0..100).map(|number| format!("d{number}")).collect();
    for decision in &decisions {
        stages.begin(decision);
        stages.leave(decision);
        stages.leave(decision);
    }
    assert_eq!(stages.left(), 100);
    decisions.iter().step_by(2).for_each(|decision| stages.record(decision));
    assert_eq!(stages.left(), 50);
    decisions.iter().for_each(|decision| stages.end(decision));
    assert_eq!(stages.left(), 0);
    stages.end("unknown");
    assert_eq!(stages.left(), 0);
}
