#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use attest_system::newer_format::NewerFormat;
use rusqlite::Connection;

use super::sqlite::Explain;
use super::*;

impl Embedded {
    /// Runs SQL in a transaction of the store.
    pub(super) async fn sql<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.on_connection(move |connection| work(connection).explain(connection)).await
    }
}

/// Inserts uses of that number of challenges; `seconds` gives each one's expiry.
fn fill(connection: &Connection, challenges: u64, seconds: impl Fn(u64) -> u64) -> Result<usize, rusqlite::Error> {
    let mut put = connection.prepare("INSERT INTO pairs (key, value) VALUES (?1, ?2)")?;
    for number in 1..=challenges {
        let (id, until) = (format!("{number:064x}"), seconds(number));
        let used = format!(r#"{{"v":1,"used":{{"highest":1,"remember_until":{until}}}}}"#);
        put.execute([keys::uses("challenge", &id), used])?;
        put.execute([keys::expiry("challenge", until, &id), r#"{"v":1}"#.to_owned()])?;
    }
    Ok(usize::try_from(challenges).unwrap())
}

pub(super) fn open() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

pub(super) fn thing(id: &str, limit: u32, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: id.to_owned(),
        limit,
        remember_until,
    }
}

pub(super) fn entry(id: &str, value: &str) -> StoreEntry {
    StoreEntry {
        id: id.to_owned(),
        value: value.to_owned(),
    }
}

const DAY: u64 = 24 * 3600;

/// Advances time, by the clock's time, and by the gateway's running time in seconds.
async fn tick(store: &Embedded, now: u64, passed: u64) -> u64 {
    let passed = Duration::from_secs(passed);
    store.forget_expired(Tick { now, passed }).await.unwrap()
}

fn challenge(id: &str, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Challenge,
        ..thing(id, 1, remember_until)
    }
}

async fn rows(store: &Embedded) -> u64 {
    let count = "SELECT count(*) FROM pairs WHERE key LIKE 'use/%'";
    let count = store.sql(move |connection| connection.query_row(count, [], |row| row.get::<_, i64>(0)));
    count.await.unwrap().unsigned_abs()
}

#[tokio::test]
async fn attack_41_number_of_stored_challenges_is_limited() {
    const MOST: u64 = 1500;
    let (_folder, store) = open();
    // Its time lags behind, as after a pause.
    tick(&store, 1000, 0).await;
    let now = 10 * DAY;
    store.spend(thing("t", 1, now)).await.unwrap();
    let filled = store.sql(move |connection| fill(connection, 4 * MOST, |number| now + number));
    filled.await.unwrap();
    store_time::forget(&store, 1000, 4 * MOST).await.unwrap();
    assert_eq!(rows(&store).await, 4 * MOST + 1, "there is room");
    store_time::forget(&store, 1000, MOST).await.unwrap();
    assert_eq!(rows(&store).await, MOST + 1, "and the ticket, whoever asks for challenges");
    // The oldest of them are gone, and not good again.
    let last = now + 3 * MOST;
    let refused = store.spend(challenge("gone", last)).await;
    assert!(
        matches!(refused, Err(StoreError::Forgotten { until, .. }) if until == last),
        "{refused:?}"
    );
    let granted = store.spend(challenge("new", last + 1)).await.unwrap();
    assert_eq!(granted, Spend::Granted { use_number: 1 });
}

#[tokio::test]
async fn deletes_expired_challenges_in_batches_between_decisions() {
    const ROWS: u64 = 20_000;
    let (_folder, store) = open();
    tick(&store, 1000, 0).await;
    let filled = store.sql(move |connection| fill(connection, ROWS, |number| 1000 + number % 7));
    filled.await.unwrap();
    let old = async || {
        let count = "SELECT count(*) FROM pairs WHERE key LIKE 'expiry/challenge/0000000000000000100_/%'";
        let count = store.sql(move |connection| connection.query_row(count, [], |row| row.get::<_, i64>(0)));
        count.await.unwrap()
    };
    assert_eq!(old().await.unsigned_abs(), ROWS);
    let forgets = {
        let store = store.clone();
        tokio::spawn(async move { tick(&store, 2 * DAY, 2 * DAY).await })
    };
    let mut seen = std::collections::BTreeSet::new();
    while !forgets.is_finished() {
        let spent = store.spend(challenge(&format!("new-{}", seen.len()), 2 * DAY + 120));
        assert!(matches!(spent.await.unwrap(), Spend::Granted { .. } | Spend::Exhausted));
        seen.insert(old().await);
    }
    assert!(seen.len() > 5, "{seen:?}");
    assert_eq!(old().await, 0);
    let refused = store.spend(challenge("old", 1006)).await;
    assert!(matches!(refused, Err(StoreError::Forgotten { until: 1006, .. })), "{refused:?}");
}

#[test]
fn integrity_check_stops_at_its_time_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let store = Embedded::open(&file).unwrap();
    drop(store);
    let (connection, _) = embedded::connect(&file).unwrap();
    connection.execute_batch("BEGIN").unwrap();
    fill(&connection, 50_000, |number| number).unwrap();
    connection.execute_batch("COMMIT").unwrap();
    let looked = |limit| embedded::check_integrity(&file, &connection, limit).unwrap();
    assert!(!looked(Duration::ZERO));
    assert!(looked(Duration::from_secs(600)));
}

#[tokio::test]
async fn a_failed_statement_fails_only_its_own_request() {
    let (folder, store) = open();
    let wrong = store.sql(|connection| connection.execute("INSERT INTO nobodys VALUES (1)", []));
    let (wrong, right) = tokio::join!(wrong, store.put(EntryKind::Name, entry("a", "1")));
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("no such table: nobodys") && wrong.contains("SQLite, "), "{wrong}");
    assert!(wrong.contains(&file(&folder).display().to_string()), "{wrong}");
    right.unwrap();
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), Some(entry("a", "1")));
}

#[test]
fn engine_errors_name_the_file_and_next_step() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        file(&folder),
        "this is no database at all, and long enough to be looked at".repeat(20),
    )
    .unwrap();
    let StoreError::Engine {
        engine: "SQLite",
        place,
        problem,
        advice,
    } = Embedded::open(&file(&folder)).unwrap_err()
    else {
        panic!("another error");
    };
    assert_eq!(Path::new(&place), file(&folder));
    assert!(
        problem.contains("not a database") && advice == "restore a backup: `attest-gateway restore FILE --replace`",
        "{problem}: {advice}"
    );
}

pub(super) fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("gateway.db")
}

/// Returns a backup: the database after its last user has closed it.
fn copy(from: &tempfile::TempDir) -> Vec<u8> {
    fs::read(file(from)).unwrap()
}

/// Puts a database in the place of the one that is there, as a careful administrator does.
fn restore(folder: &tempfile::TempDir, database: &[u8]) {
    for beside in ["gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(folder.path().join(beside)));
    }
    fs::write(file(folder), database).unwrap();
}

fn log(folder: &tempfile::TempDir, lines: &[&str]) {
    fs::write(
        folder.path().join("attestation.jsonl"),
        lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>(),
    )
    .unwrap();
}

#[tokio::test]
async fn only_writes_raise_the_store_mark() {
    let (folder, store) = open();
    let standing = || store.store_mark().unwrap();
    let first = standing();
    store.get(EntryKind::Name, "a").await.unwrap();
    store.remove(EntryKind::Name, "a").await.unwrap();
    assert_eq!(standing(), first);
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    store.spend(thing("a", 1, 10)).await.unwrap();
    assert_eq!(standing().mark, first.mark + 2);
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    assert_eq!(standing().mark, first.mark + 2, "nothing was written");
    // Another process on the same file.
    Embedded::open(&file(&folder))
        .unwrap()
        .put(EntryKind::Name, entry("b", "1"))
        .await
        .unwrap();
    store.get(EntryKind::Name, "a").await.unwrap();
    assert_eq!((standing().mark, standing().id), (first.mark + 3, first.id));
}

#[tokio::test]
async fn attack_42_refuses_a_rolled_back_store() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    store.put(EntryKind::Revoked, entry("a", "{}")).await.unwrap();
    let now = store.store_mark().unwrap();
    let line = serde_json::json!({ "store": now, "v": 1 }).to_string();
    let unsaid = fs::read(folder.path().join("store.mark")).unwrap();
    store.keep_mark().await.unwrap();
    let said = fs::read(folder.path().join("store.mark")).unwrap();
    drop(store);
    restore(&folder, &backup);
    let refused = || match Embedded::open(&file(&folder)) {
        Err(StoreError::Older { found, known, .. }) => (found, known),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(), (now.mark - 1, now.mark), "by store.mark");
    fs::write(folder.path().join("store.mark"), &unsaid).unwrap();
    drop(Embedded::open(&file(&folder)).unwrap());
    log(&folder, &[&line, "{}", "no JSON"]);
    assert_eq!(refused(), (now.mark - 1, now.mark), "by the log");
    fs::remove_file(folder.path().join("store.mark")).unwrap();
    assert_eq!(refused(), (now.mark - 1, now.mark), "by the log alone");
    fs::write(folder.path().join("store.mark"), &said).unwrap();
    log(&folder, &[]);
    assert_eq!(refused(), (now.mark - 1, now.mark));
    fs::write(folder.path().join("store.mark"), "half").unwrap();
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Mark { .. })));
}

/// Lines that were written together are in no order, and there may be older ones about another store.
#[tokio::test]
async fn attack_42_any_last_log_line_reveals_a_rollback() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    for id in ["a", "b"] {
        store.put(EntryKind::Revoked, entry(id, "{}")).await.unwrap();
    }
    let now = store.store_mark().unwrap();
    drop(store);
    restore(&folder, &backup);
    fs::remove_file(folder.path().join("store.mark")).unwrap();
    let line = |id: &str, mark: u64| serde_json::json!({ "store": { "id": id, "mark": mark } }).to_string();
    let (before, then) = (line(&now.id, now.mark - 2), line(&now.id, now.mark));
    let other = line("another", now.mark + 9);
    let long = serde_json::json!({ "event_log": "x".repeat(2 * 1024 * 1024) }).to_string();
    for lines in [
        [&other, &before, &then],
        [&other, &then, &before],
        [&then, &other, &before],
        [&other, &then, &long],
    ] {
        log(&folder, &lines.map(String::as_str));
        match Embedded::open(&file(&folder)) {
            Err(StoreError::Older { found, known, .. }) => assert_eq!((found, known), (now.mark - 2, now.mark)),
            refused => panic!("{:?}: {refused:?}", lines.map(|line| &line[..20])),
        }
    }
    log(&folder, &[&other, &before]);
    Embedded::open(&file(&folder)).unwrap();
}

#[test]
fn attack_42_unreadable_mark_or_log_prevents_a_new_store() {
    for unreadable in ["store.mark", "attestation.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(unreadable, folder.path().join(unreadable)).unwrap();
        assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Io { .. })), "{unreadable}");
        assert!(!file(&folder).exists());
    }
    // An empty file has not been written yet: a gateway that came no further may begin again.
    for empty in ["seal.key", "attestation.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(empty), "").unwrap();
        Embedded::open(&file(&folder)).unwrap();
    }
}

#[test]
fn attack_42_a_late_writer_never_lowers_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let said = |id: &str, mark: u64| {
        let written = StoreMark {
            id: id.to_owned(),
            mark,
            wrote: None,
        };
        super::expected_store::write_mark(&file(&folder), &written).unwrap();
        let text = fs::read_to_string(folder.path().join("store.mark")).unwrap();
        let StoreMark { id, mark, .. } = serde_json::from_str(&text).unwrap();
        (id, mark)
    };
    let is = |id: &str, mark: u64| (id.to_owned(), mark);
    assert_eq!(said("a", 5), is("a", 5));
    assert_eq!(said("a", 4), is("a", 5));
    assert_eq!(said("a", 6), is("a", 6));
    assert_eq!(said("b", 3), is("b", 3), "another store");
}

#[test]
fn attack_42_a_replicas_commit_count_never_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let said = |mark: u64, wrote: Option<(&str, u64)>| {
        let wrote = wrote.map(|(replica, commits)| Wrote {
            replica: replica.to_owned(),
            commits,
        });
        let id = "a".to_owned();
        super::expected_store::write_mark(&file(&folder), &StoreMark { id, mark, wrote }).unwrap();
        let text = fs::read_to_string(folder.path().join("store.mark")).unwrap();
        let StoreMark { mark, wrote, .. } = serde_json::from_str(&text).unwrap();
        (
            mark,
            wrote
                .map(|Wrote { replica, commits }| format!("{replica} {commits}"))
                .unwrap_or_default(),
        )
    };
    let is = |mark: u64, wrote: &str| (mark, wrote.to_owned());
    assert_eq!(said(5, None), is(5, ""));
    assert_eq!(said(5, Some(("one", 0))), is(5, "one 0"), "as high, and it says more");
    assert_eq!(said(7, Some(("one", 3))), is(7, "one 3"));
    assert_eq!(said(6, Some(("one", 2))), is(7, "one 3"));
    assert_eq!(said(7, None), is(7, "one 3"));
    // A gateway that was given another id; the mark stays what it was.
    assert_eq!(said(6, Some(("two", 1))), is(7, "two 1"));
    assert_eq!(said(8, Some(("two", 1))), is(8, "two 1"));
}

#[tokio::test]
async fn attack_42_refuses_a_lost_or_replaced_store_until_accepted() {
    let (folder, store) = open();
    store.put(EntryKind::Revoked, entry("a", "{}")).await.unwrap();
    store.keep_mark().await.unwrap();
    let known = store.store_mark().unwrap();
    drop(store);
    let other = {
        let (other, store) = open();
        drop(store);
        copy(&other)
    };
    let lost = || assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Lost { .. })));
    fs::remove_file(file(&folder)).unwrap();
    lost();
    assert!(!file(&folder).exists(), "nothing takes its place");
    restore(&folder, b"");
    lost();
    restore(&folder, &other);
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Other { known: by, .. }) if *by == known));
    let accepts = |folder: &tempfile::TempDir| accept::<StoreError>(&file(folder), |_| Ok(()));
    let accepted = accepts(&folder).unwrap();
    assert_eq!(accepted.replacement.known, Some(known.clone()));
    assert!(
        accepted.now.id != known.id
            && accepted.now.mark > known.mark
            && Some(&accepted.now.id) != accepted.replacement.found.map(|found| found.id).as_ref()
    );
    let store = Embedded::open(&file(&folder)).unwrap();
    assert_eq!(store.store_mark(), Some(accepted.now));
    drop(store);
    assert!(matches!(accepts(&folder), Err(StoreError::Known(_))), "there is nothing to accept");
    // What is accepted is not what was there before either.
    restore(&folder, &other);
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Other { .. })));
    // The log's last lines are about the store of before: store.mark is newer.
    accepts(&folder).unwrap();
    log(&folder, &[&serde_json::json!({ "store": known }).to_string()]);
    Embedded::open(&file(&folder)).unwrap();
    for trace in ["seal.key", "attestation.jsonl"] {
        let (folder, store) = open();
        drop(store);
        fs::remove_file(file(&folder)).unwrap();
        fs::remove_file(folder.path().join("store.mark")).unwrap();
        fs::write(folder.path().join(trace), "x").unwrap();
        assert!(
            matches!(Embedded::open(&file(&folder)), Err(StoreError::Lost { .. })),
            "{trace} says that there was one"
        );
        accepts(&folder).unwrap();
        Embedded::open(&file(&folder)).unwrap();
    }
}

#[tokio::test]
async fn attack_42_a_replaced_or_rolled_back_open_store_fails() {
    let (folder, store) = open();
    let away = folder.path().join("away");
    let answers = async || store.get(EntryKind::Revoked, "a").await;
    fs::rename(file(&folder), &away).unwrap();
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "deleted");
    fs::copy(&away, file(&folder)).unwrap();
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "a copy is another file");
    fs::rename(&away, file(&folder)).unwrap();
    answers().await.unwrap();
    let set = |sql: &'static str| {
        let other = rusqlite::Connection::open(file(&folder)).unwrap();
        other.execute_batch(sql).unwrap();
    };
    set("UPDATE store SET mark = mark - 1");
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "set back");
    set("UPDATE store SET mark = mark + 1");
    answers().await.unwrap();
    set("UPDATE store SET id = 'other'");
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "another");
}

#[test]
fn refuses_tables_of_another_schema_version() {
    let (folder, store) = open();
    drop(store);
    let with_version = |version: i64| {
        let connection = rusqlite::Connection::open(file(&folder)).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
        drop(connection);
        Embedded::open(&file(&folder)).unwrap_err()
    };
    let newer = with_version(7);
    assert!(matches!(
        newer,
        StoreError::Schema {
            newer: NewerFormat {
                found: 7,
                known: schema::VERSION,
                ..
            },
            ..
        }
    ));
    assert!(
        newer.to_string().contains("schema 7") && newer.to_string().contains("reads 1: run release 0.1.0 or"),
        "{newer}"
    );
    for older in 0..schema::VERSION {
        assert!(matches!(with_version(older), StoreError::Foreign { .. }), "{older}");
    }
    with_version(7);
    let alter = |pragma: &str, value: i64| {
        let connection = rusqlite::Connection::open(file(&folder)).unwrap();
        connection.pragma_update(None, pragma, value).unwrap();
    };
    alter("user_version", schema::VERSION);
    drop(Embedded::open(&file(&folder)).unwrap());
    // A file of another application, with the same numbers.
    let application = rusqlite::Connection::open(file(&folder))
        .unwrap()
        .pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0))
        .unwrap();
    for other in [0, 1, application + 1] {
        alter("application_id", other);
        let refused = Embedded::open(&file(&folder)).unwrap_err();
        assert!(matches!(&refused, StoreError::Foreign { .. }), "{refused}");
    }
    alter("application_id", application);
    Embedded::open(&file(&folder)).unwrap();
}

#[tokio::test]
async fn never_mixes_a_foreign_write_ahead_log() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    for number in 0..200 {
        store.put(EntryKind::Name, entry(&format!("{number:0>1000}"), "1")).await.unwrap();
    }
    store.sql(|connection| connection.execute_batch("SELECT 1")).await.unwrap();
    // What a crash leaves: the log of transactions is there still.
    let left = fs::read(folder.path().join("gateway.db-wal")).unwrap();
    drop(store);
    restore(&folder, &backup);
    fs::write(folder.path().join("gateway.db-wal"), &left).unwrap();
    // Either SQLite finds that they fit, and all of it is there, or it is refused: never a half of each.
    match Embedded::open(&file(&folder)) {
        Ok(store) => assert_eq!(store.list(EntryKind::Name).await.unwrap().len(), 200),
        Err(error) => assert!(
            matches!(
                error,
                StoreError::Damaged { .. } | StoreError::Older { .. } | StoreError::Engine { .. }
            ),
            "{error}"
        ),
    }
}
