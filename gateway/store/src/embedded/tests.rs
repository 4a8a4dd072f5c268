//! Tests for durability, and for reads in parallel with the writer.

use std::fs;
use std::time::Duration;

use rusqlite::Connection;

use super::super::tests::{entry, file, open, thing};
use super::super::{DecisionRecord, Embedded, EntryKind, Spend, Store, StoreError, Transact, UseOccasion};
use super::CHECKPOINT_PAGES;
use super::file::PAGE_BYTES;

#[tokio::test]
async fn syncs_a_commit_before_answering_except_for_decisions() {
    let (folder, store) = open();
    let pragma = |name: &'static str| store.sql(move |connection| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0)));
    assert_eq!(pragma("journal_mode").await.unwrap(), "wal");
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    // From here on nothing can be synced: there is no log of transactions of that name.
    let log = folder.path().join("gateway.db-wal");
    fs::rename(&log, folder.path().join("away")).unwrap();
    store.sync().unwrap();
    let spent = store.spend(thing("a", 1, 10)).await.unwrap();
    assert_eq!(spent, Spend::Granted { use_number: 1 });
    let decided: Result<(), StoreError> = store
        .decide("d", |transaction| transaction.put(EntryKind::Clock, entry("a", "1")))
        .await;
    decided.unwrap();
    store.sync().unwrap_err();
    // Nor is anything after it, though the file is there again: what was not written then is taken for written.
    fs::rename(folder.path().join("away"), &log).unwrap();
    store.sync().unwrap_err();
    store.put(EntryKind::Name, entry("b", "1")).await.unwrap_err();
    store.keep_mark().await.unwrap_err();
    drop(store);
    let store = Embedded::open(&file(&folder)).unwrap();
    store.sync().unwrap();
    store.put(EntryKind::Name, entry("c", "1")).await.unwrap();
}

#[tokio::test]
async fn writes_the_store_mark_only_after_sync() {
    let (folder, store) = open();
    store.keep_mark().await.unwrap();
    let before = fs::read_to_string(folder.path().join("store.mark")).unwrap();
    store.spend(thing("a", 1, 10)).await.unwrap();
    fs::rename(folder.path().join("gateway.db-wal"), folder.path().join("away")).unwrap();
    store.keep_mark().await.unwrap_err();
    assert_eq!(fs::read_to_string(folder.path().join("store.mark")).unwrap(), before);
}

#[tokio::test]
async fn reads_never_block_and_see_answered_commits() {
    let (folder, store) = open();
    let other = Embedded::open(&file(&folder)).unwrap();
    for (number, by) in [&store, &other, &store].into_iter().enumerate() {
        let value = number.to_string();
        by.put(EntryKind::Name, entry("a", &value)).await.unwrap();
        for by in [&store, &other] {
            assert_eq!(by.get(EntryKind::Name, "a").await.unwrap(), Some(entry("a", &value)));
        }
    }
    // Somebody is in the middle of a transaction, and stays there.
    let (begun, held) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let writing = tokio::spawn(async move {
        let hold = move |_: &Connection| {
            begun.0.send(()).unwrap();
            held.1.recv().unwrap_err();
            Ok(())
        };
        other.sql(hold).await
    });
    tokio::task::spawn_blocking(move || begun.1.recv().unwrap()).await.unwrap();
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), Some(entry("a", "2")));
    let both = store.get_all(vec![(EntryKind::Name, "a".to_owned()), (EntryKind::Name, "b".to_owned())]);
    assert_eq!(both.await.unwrap(), [Some(entry("a", "2")), None]);
    drop(held.0);
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn write_ahead_log_restarts_at_its_limit() {
    const MB: u64 = 1_000_000;
    let (folder, store) = open();
    let log = || fs::metadata(folder.path().join("gateway.db-wal")).unwrap().len();
    let mut longest = 0;
    for number in 0..30 {
        let some = format!("INSERT INTO pairs VALUES ('{number}', zeroblob({}))", 2 * MB);
        store.sql(move |connection| connection.execute_batch(&some)).await.unwrap();
        // Who reads beside it holds nothing that keeps it from beginning anew.
        store.get(EntryKind::Name, "a").await.unwrap();
        longest = longest.max(log());
    }
    let limit = u64::from(CHECKPOINT_PAGES) * u64::from(PAGE_BYTES + 24);
    assert!(longest > limit && longest < limit + 3 * MB, "{longest}");
    // It is as long as it was, and holds what was written since, until nobody writes any more.
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    store.put(EntryKind::Name, entry("b", "1")).await.unwrap();
    assert_eq!(log(), longest);
    let since = std::time::Instant::now();
    while log() > 0 {
        assert!(since.elapsed() < Duration::from_secs(60));
        tokio::task::yield_now().await;
    }
    store.sync().unwrap();
    store.put(EntryKind::Name, entry("a", "2")).await.unwrap();
    for (key, value) in [("a", "2"), ("b", "1")] {
        assert_eq!(store.get(EntryKind::Name, key).await.unwrap(), Some(entry(key, value)));
    }
}

/// The record of an attested boot is some kilobytes.
#[tokio::test]
async fn a_decision_writes_few_pages_besides_its_record() {
    const DECISIONS: u64 = 200;
    const RECORD_BYTES: usize = 4000;
    let (folder, store) = open();
    let written = || fs::metadata(folder.path().join("gateway.db-wal")).unwrap().len();
    let before = written();
    for number in 0..DECISIONS {
        let id = format!("{number:032x}");
        let decided: Result<_, StoreError> = store
            .decide(&id.clone(), move |transaction| {
                transaction.spend(&thing(&id, 1, 10), &UseOccasion::Any, 1)?;
                let (decision, record) = (id.clone(), "r".repeat(RECORD_BYTES));
                transaction.decide(DecisionRecord { decision, at: 1, record })
            })
            .await;
        decided.unwrap();
        store.settle(&format!("{number:032x}"));
    }
    let each = (written() - before) / DECISIONS;
    assert!(each < 18_000, "{each} bytes");
}

#[tokio::test]
async fn closing_the_store_removes_the_sqlite_side_files() {
    let (folder, store) = open();
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    store.get(EntryKind::Name, "a").await.unwrap();
    drop(store);
    assert_eq!(Embedded::sqlite_files(&file(&folder)).map(|beside| beside.exists()), [false; 3]);
}

#[tokio::test]
async fn settles_recorded_decisions_without_further_requests() {
    let (folder, store) = open();
    let decided: Result<_, StoreError> = store
        .decide("d", |transaction| {
            transaction.spend(&thing("a", 1, 10), &UseOccasion::Any, 1)?;
            let [decision, record] = ["d", "{}"].map(str::to_owned);
            transaction.decide(DecisionRecord { decision, at: 1, record })
        })
        .await;
    decided.unwrap();
    store.settle("d");
    let looking = Connection::open(file(&folder)).unwrap();
    let pending = || {
        looking.query_row("SELECT count(*) FROM pairs WHERE key LIKE 'pending/%'", [], |row| {
            row.get::<_, i64>(0)
        })
    };
    let since = std::time::Instant::now();
    while pending().unwrap() > 0 {
        assert!(since.elapsed() < Duration::from_secs(60));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn reads_refuse_a_replaced_or_rolled_back_store() {
    let (folder, store) = open();
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    assert!(store.get(EntryKind::Name, "a").await.unwrap().is_some());
    // Another's; renamed; set back.
    for change in [
        "UPDATE store SET id = 'other'",
        "UPDATE store SET id = (SELECT value FROM pairs WHERE key = 'was'), mark = 1",
    ] {
        let by_hand = Connection::open(file(&folder)).unwrap();
        by_hand
            .execute("INSERT OR IGNORE INTO pairs SELECT 'was', id FROM store", [])
            .unwrap();
        by_hand.execute_batch(change).unwrap();
        let read = store.get(EntryKind::Name, "a").await;
        assert!(matches!(read, Err(StoreError::Replaced(_))), "{change}: {read:?}");
    }
    let (folder, store) = open();
    assert!(store.get(EntryKind::Name, "a").await.unwrap().is_none());
    fs::rename(file(&folder), folder.path().join("away")).unwrap();
    let read = store.get(EntryKind::Name, "a").await;
    assert!(matches!(read, Err(StoreError::Replaced(_))), "{read:?}");
}

#[tokio::test]
async fn refuses_reads_and_writes_after_a_newer_release_raised_the_schema() {
    let (folder, store) = open();
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    let other = Connection::open(file(&folder)).unwrap();
    let raise = |version: i64| other.pragma_update(None, "user_version", version).unwrap();
    other.execute("UPDATE store SET release = '0.2.0'", []).unwrap();
    raise(2);
    for refused in [
        store.put(EntryKind::Name, entry("a", "2")).await.unwrap_err(),
        store.get(EntryKind::Name, "a").await.unwrap_err(),
        store.spend(thing("t", 1, 10)).await.unwrap_err(),
        store.keep_mark().await.unwrap_err(),
    ] {
        let said = refused.to_string();
        assert!(matches!(refused, StoreError::Schema { .. }), "{said}");
        assert!(
            said.contains("store schema 2") && said.ends_with("run release 0.2.0 or a newer one"),
            "{said}"
        );
    }
    raise(0);
    assert!(matches!(store.get(EntryKind::Name, "a").await, Err(StoreError::Replaced(_))));
    // Nothing was written, and the same process goes on with the schema that it knows.
    raise(1);
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), Some(entry("a", "1")));
    store.put(EntryKind::Name, entry("a", "3")).await.unwrap();
}
