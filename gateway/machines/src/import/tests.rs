use attest::NodeIdentity;
use attest::protocol::HexDigest;
use attest_store::{Embedded, StoreEntry};

use super::*;
use crate::enrolment::{allow, disallow, forget_name, give_name};

fn identity(number: u8) -> String {
    NodeIdentity::from_ek(HexDigest::from([number; 32]).try_into().unwrap()).to_string()
}

fn row(number: u8, name: Option<&str>) -> ImportRow {
    ImportRow {
        line: u64::from(number) + 1,
        identity: identity(number),
        name: name.map(str::to_owned),
        pools: None,
        note: None,
    }
}

fn store() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

async fn content(store: &dyn Store) -> Vec<Vec<StoreEntry>> {
    let mut all = Vec::new();
    for kind in [EntryKind::Ek, EntryKind::Name, EntryKind::NameOf] {
        all.push(store.list(kind).await.unwrap());
    }
    all
}

#[tokio::test]
async fn plan_tells_new_changed_and_unchanged_rows() {
    let (_folder, store) = store();
    let first = vec![row(1, Some("a")), row(2, None), row(3, Some("c"))];
    let planned = plan(&store, first.clone(), 10).await.unwrap();
    assert_eq!((planned.new_count(), planned.changes.len(), planned.unchanged), (3, 3, 0));
    apply(&store, &store, &planned.changes).await.unwrap();
    let again = plan(&store, first, 20).await.unwrap();
    assert_eq!((again.changes.len(), again.unchanged), (0, 3));
    // What a row does not say stays.
    let changed = ImportRow {
        pools: Some(vec!["worker".to_owned()]),
        note: Some("rack 7".to_owned()),
        ..row(1, None)
    };
    let planned = plan(&store, vec![changed, row(2, Some("b")), row(3, None)], 30).await.unwrap();
    assert_eq!((planned.new_count(), planned.changes.len(), planned.unchanged), (0, 2, 1));
    let after = &planned.changes.first().unwrap().after;
    assert_eq!(
        (after.name.as_deref(), after.added, after.note.as_deref()),
        (Some("a"), 10, Some("rack 7"))
    );
    apply(&store, &store, &planned.changes).await.unwrap();
    assert_eq!(
        store.get(EntryKind::Name, "b").await.unwrap().map(|entry| entry.value),
        Some(identity(2))
    );
}

#[tokio::test]
async fn rows_that_contradict_the_store_are_conflicts() {
    let (_folder, store) = store();
    let ek = |number: u8| HexDigest::from([number; 32]).try_into().unwrap();
    let record = |name: &str| EkRecord {
        name: Some(name.to_owned()),
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    };
    allow(&store, ek(1), record("a"), false).await.unwrap();
    allow(&store, ek(2), record("b"), false).await.unwrap();
    disallow(&store, &identity(2), 2).await.unwrap();
    allow(&store, ek(3), record("freed"), false).await.unwrap();
    forget_name(&store, "freed").await.unwrap();
    give_name(&store, "asked", &NodeIdentity::from_ek(ek(4))).await.unwrap();
    let rows = vec![
        row(9, Some("a")),
        row(2, None),
        row(8, Some("freed")),
        row(4, Some("other")),
        row(7, Some("asked")),
    ];
    let planned = plan(&store, rows, 10).await.unwrap();
    assert_eq!((planned.changes.len(), planned.unchanged), (0, 0), "{planned:?}");
    let conflicts: Vec<(u64, &str)> = planned
        .conflicts
        .iter()
        .map(|conflict| (conflict.line, conflict.reason.as_str()))
        .collect();
    let says = |line: u64, expected: &str| {
        let found = conflicts.iter().find(|(of, _)| *of == line).unwrap();
        assert!(found.1.contains(expected), "{found:?}");
    };
    says(10, "the name a belongs to tpm:01");
    says(3, "was removed from the allowlist");
    says(9, "the name freed belongs to tpm:03");
    says(5, "has the name asked");
    says(8, "the name asked belongs to tpm:04");
}

#[tokio::test]
async fn changes_since_the_plan_stop_the_import() {
    let (_folder, store) = store();
    let rows = vec![row(1, Some("a")), row(2, Some("b"))];
    let planned = plan(&store, rows.clone(), 10).await.unwrap();
    give_name(&store, "b", &NodeIdentity::from_ek(HexDigest::from([9; 32]).try_into().unwrap()))
        .await
        .unwrap();
    let before = content(&store).await;
    let error = apply(&store, &store, &planned.changes).await.unwrap_err();
    assert!(matches!(error.source, RowError::Name { line: 3, .. }) && error.done == 0, "{error}");
    assert_eq!(content(&store).await, before);
    let other = EkRecord {
        pools: vec!["infra".to_owned()],
        ..planned.changes.first().unwrap().after.clone()
    };
    allow(&store, HexDigest::from([1; 32]).try_into().unwrap(), other, false)
        .await
        .unwrap();
    let error = apply(&store, &store, planned.changes.get(..1).unwrap()).await.unwrap_err();
    assert!(matches!(error.source, RowError::Changed { line: 2, .. }), "{error}");
}
