//! Tests that one of several imports completes, and that no process removes the resulting store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use cloud_fixtures::etcd::EtcdServer;
use tempfile::TempDir;

use super::super::super::schema::StoreSchema;
use super::*;
use crate::remote::set_back::RollbackStatement;

fn settings(etcd: &EtcdServer) -> EtcdSettings {
    EtcdSettings {
        endpoints: vec![etcd.endpoint()],
        prefix: "to".to_owned(),
        ca: None,
        identity: None,
        user: None,
        timeout: std::time::Duration::from_secs(20),
    }
}

fn begin(etcd: &EtcdServer, folder: &TempDir) -> Result<EtcdImport, ExportError> {
    EtcdImport::begin(&settings(etcd), &folder.path().join("gateway.db"))
}

fn mark(id: &str, mark: u64) -> StoreMark {
    StoreMark {
        id: id.to_owned(),
        mark,
        wrote: None,
    }
}

fn pair(key: &str, bytes: usize) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: "x".repeat(bytes),
    }
}

fn all() -> KeyRange {
    KeyRange {
        from: String::new(),
        until: "z".to_owned(),
    }
}

fn below(etcd: &EtcdServer) -> Arc<EtcdPages> {
    Arc::new(EtcdPages::open(&settings(etcd)).unwrap())
}

fn is_replaced<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Replaced(_))), "{result:?}");
}

#[test]
fn a_newer_import_aborts_the_older_one() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    let mut first = begin(&etcd, &folder).unwrap();
    first.put(&pair("a", 1)).unwrap();
    assert_eq!(first.page(&all(), 10).unwrap().len(), 1);
    let mut second = begin(&etcd, &folder).unwrap();
    assert_eq!(second.page(&all(), 10).unwrap(), []);
    first.put(&pair("b", 1)).unwrap();
    is_replaced(first.page(&all(), 10));
    first.finish(&mark("from", 1), StoreSchema::newest(), &"1".repeat(32)).unwrap_err();
    second.put(&pair("c", 1)).unwrap();
    assert_eq!(second.page(&all(), 10).unwrap(), [pair("c", 1)]);
    let now = second.finish(&mark("from", 1), StoreSchema::newest(), &"2".repeat(32)).unwrap();
    // An answer was lost, and it is asked again.
    assert_eq!(
        second.finish(&mark("from", 1), StoreSchema::newest(), &"2".repeat(32)).unwrap(),
        now
    );
    is_replaced(first.finish(&mark("from", 1), StoreSchema::newest(), &"1".repeat(32)));
    assert_eq!(below(&etcd).read_identity().unwrap().0.unwrap().mark, now);
}

#[test]
fn treats_a_request_with_lost_answer_as_done() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    let taking = begin(&etcd, &folder).unwrap();
    let not_again = || Compare::create_revision(taking.below.keys.taking(), CompareOp::Equal, 0);
    taking.must(Txn::new().when([not_again()])).unwrap();
    etcd.ctl(&["put", "to/taking", "another"]);
    is_replaced(taking.must(Txn::new().when([not_again()])));
    etcd.ctl(&["del", "to/taking"]);
    is_replaced(taking.must(Txn::new().when([taking.is_mine()])));
}

#[test]
fn refuses_to_overwrite_or_remove_an_existing_store() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    let mut taking = begin(&etcd, &folder).unwrap();
    taking.put(&pair("a", 1)).unwrap();
    taking.page(&all(), 10).unwrap();
    let session = taking.session.clone();
    taking.finish(&mark("from", 1), StoreSchema::newest(), &"1".repeat(32)).unwrap();
    let holds = || etcd.ctl(&["get", "--prefix", "--keys-only", "to/kv/"]);
    assert!(matches!(begin(&etcd, &folder), Err(ExportError::NotEmpty(4))));
    // Who has seen it before it was one, and stood still meanwhile.
    is_replaced(EtcdImport::remove(&below(&etcd), &session));
    assert!(holds().contains("to/kv/a"));
    // Somebody has put it back from elsewhere.
    etcd.ctl(&["put", "to/taking", "another"]);
    assert!(matches!(begin(&etcd, &folder), Err(ExportError::Store(StoreError::Replaced(_)))));
    assert!(holds().contains("to/kv/a"));
}

#[test]
fn removing_an_import_is_idempotent() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    let mut taking = begin(&etcd, &folder).unwrap();
    taking.put(&pair("a", 1)).unwrap();
    taking.page(&all(), 10).unwrap();
    EtcdImport::remove(&below(&etcd), &taking.session).unwrap();
    assert_eq!(etcd.ctl(&["get", "--prefix", "to/"]), "");
    EtcdImport::remove(&below(&etcd), &taking.session).unwrap();
    EtcdImport::abandon(&settings(&etcd)).unwrap();
    is_replaced(taking.finish(&mark("from", 1), StoreSchema::newest(), &"1".repeat(32)));
    // Somebody else has begun meanwhile.
    drop(begin(&etcd, &folder).unwrap());
    is_replaced(EtcdImport::remove(&below(&etcd), &taking.session));
}

/// Imported keys go to etcd in requests as large as it takes, and no larger.
#[test]
fn fills_each_etcd_request_to_its_limits() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    let half = BATCH_BYTES / 2 - 3;
    let keys = |count: usize, bytes: usize| (0..count).map(|number| pair(&format!("{number:03}"), bytes)).collect::<Vec<_>>();
    for (pairs, requests) in [
        (Vec::new(), 0),
        (keys(MOST_KEYS, 1), 1),
        (keys(MOST_KEYS + 1, 1), 2),
        (keys(2 * MOST_KEYS, 1), 2),
        (keys(2, half), 1),
        (keys(2, half + 1), 2),
        (keys(6, half), 3),
        (keys(1, BATCH_BYTES + 7), 1),
    ] {
        let mut taking = begin(&etcd, &folder).unwrap();
        let revision = |taking: &EtcdImport| {
            let answer = taking.below.send(Txn::new().and_then([get("none")])).unwrap();
            super::super::requests::revision(&answer)
        };
        let before = revision(&taking);
        for pair in &pairs {
            taking.put(pair).unwrap();
        }
        assert_eq!(taking.page(&all(), 1000).unwrap(), pairs);
        assert_eq!(revision(&taking) - before, requests, "{} pairs", pairs.len());
    }
}

#[test]
fn imported_store_mark_exceeds_all_replaced_stores() {
    for (known, from, expected) in [(Some(90), 5, 91), (Some(5), 90, 91), (None, 90, 91)] {
        let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
        let beside = folder.path().join("gateway.db");
        let (was, of) = ("a".repeat(32), "b".repeat(32));
        if let Some(known) = known {
            expected_store::replace_mark(&beside, &mark(&was, known)).unwrap();
        }
        let mut taking = begin(&etcd, &folder).unwrap();
        let now = taking.finish(&mark(&of, from), StoreSchema::newest(), &"1".repeat(32)).unwrap();
        assert_eq!((now.id, now.mark), ("1".repeat(32), expected));
        let found = below(&etcd).read_identity().unwrap().0.unwrap();
        assert_eq!(found.mark.mark, expected);
        assert!(found.is_instead_of(&of));
        assert_eq!(found.is_instead_of(&was), known.is_some());
        assert_eq!(ExpectedStore::load(&beside).unwrap().file.unwrap().mark, expected);
    }
}

#[test]
fn import_replaces_an_unreadable_store_mark() {
    let (etcd, folder) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("store.mark"), "x").unwrap();
    let now = begin(&etcd, &folder)
        .unwrap()
        .finish(&mark(&"b".repeat(32), 5), StoreSchema::newest(), &"1".repeat(32))
        .unwrap();
    assert_eq!(ExpectedStore::load(&folder.path().join("gateway.db")).unwrap().file, Some(now));
}
