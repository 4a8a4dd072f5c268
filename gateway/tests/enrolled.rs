//! Enrolment of machines under names: wherever it is interrupted, all of a machine is there, or nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attest::EkDigest;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::import::{ImportRow, apply, plan, transaction_count};
use attest_store::engine::{Engine, Work};
use attest_store::engine_layer::EngineLayer;
use attest_store::{Embedded, EntryKind, Store, StoreEntry, StoreError};

fn record(name: Option<&str>) -> EkRecord {
    EkRecord {
        name: name.map(str::to_owned),
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    }
}

/// Engine that fails before one of its transactions.
#[derive(Debug)]
struct Mortal {
    engine: Embedded,
    left: AtomicUsize,
}

#[async_trait]
impl EngineLayer for Mortal {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        let one_less = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(StoreError::Closed);
        }
        self.engine.transact(work).await
    }
}

/// Engine like [`Mortal`] that takes few writes at once.
#[derive(Debug)]
struct Narrow(Mortal);

#[async_trait]
impl EngineLayer for Narrow {
    fn engine(&self) -> &dyn Engine {
        &self.0.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        EngineLayer::transact(&self.0, work).await
    }

    async fn read(&self, work: Work) -> Result<(), StoreError> {
        self.0.engine.read(work).await
    }

    fn atomic_writes_limit(&self) -> Option<usize> {
        Some(8)
    }
}

/// Returns the assignment of names, in both directions, and the EK allowlist.
async fn content(store: &dyn Store) -> Vec<Vec<StoreEntry>> {
    let mut all = Vec::new();
    for kind in [EntryKind::Name, EntryKind::NameOf, EntryKind::Ek] {
        all.push(store.list(kind).await.unwrap());
    }
    all
}

#[tokio::test]
async fn enrolment_by_name_is_atomic() {
    let ek = |byte: &str| byte.repeat(32).parse::<EkDigest>().unwrap();
    for replace in [true, false] {
        let (mut done, mut broken_off) = (false, 0);
        while !done {
            let folder = tempfile::tempdir().unwrap();
            let engine = Embedded::open(&folder.path().join("gateway.db")).unwrap();
            if replace {
                // The name is another's, and the machine has another name.
                enrolment::allow(&engine, ek("ab"), record(Some("a")), false).await.unwrap();
                enrolment::allow(&engine, ek("cd"), record(Some("b")), false).await.unwrap();
            }
            let before = content(&engine).await;
            let store = Mortal {
                engine,
                left: AtomicUsize::new(broken_off),
            };
            let allowed = enrolment::allow(&store, ek("cd"), record(Some("a")), replace).await;
            done = allowed.is_ok();
            let after = content(&store.engine).await;
            if done {
                let [names, names_of, list] = after.as_slice() else {
                    panic!("{after:?}")
                };
                assert_eq!((names.len(), names_of.len(), list.len()), (1, 1, 1 + usize::from(replace)));
                assert_eq!(names[0].value, names_of[0].id);
            } else {
                assert_eq!(after, before, "broken off after {broken_off} transactions");
            }
            broken_off += 1;
        }
    }
}

#[tokio::test]
async fn interrupted_import_leaves_whole_rows_and_is_finished_by_the_next() {
    let row = |number: u8| ImportRow {
        line: u64::from(number) + 1,
        identity: format!("tpm:{}", format!("{number:02x}").repeat(32)),
        name: Some(format!("worker-{number}")),
        pools: None,
        note: None,
    };
    let rows: Vec<ImportRow> = (1..=7).map(row).collect();
    let folder = tempfile::tempdir().unwrap();
    let whole = {
        let store = Embedded::open(&folder.path().join("whole.db")).unwrap();
        let planned = plan(&store, rows.clone(), 10).await.unwrap();
        assert_eq!(transaction_count(&store, planned.changes.len()), 1);
        apply(&store, &store, &planned.changes).await.unwrap();
        content(&store).await
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Narrow(Mortal {
        engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        left: AtomicUsize::new(2),
    });
    let planned = plan(&store, rows.clone(), 10).await.unwrap();
    // Two rows of three entries fit beside the record.
    assert_eq!(transaction_count(&store, planned.changes.len()), 4);
    let error = apply(&store, &store, &planned.changes).await.unwrap_err();
    assert_eq!((error.done, error.all), (4, 7));
    let counts: Vec<usize> = content(&store).await.iter().map(Vec::len).collect();
    assert_eq!(counts, [4, 4, 4]);
    store.0.left.store(usize::MAX, Ordering::Relaxed);
    let planned = plan(&store, rows, 10).await.unwrap();
    assert_eq!((planned.new_count(), planned.unchanged), (3, 4));
    apply(&store, &store, &planned.changes).await.unwrap();
    assert_eq!(content(&store).await, whole);
}
