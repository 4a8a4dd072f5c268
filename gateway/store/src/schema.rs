//! The tables, their version, and what the store says of itself: who it is, and how far it has come.

use std::path::Path;

use attest_system::newer_format::NewerFormat;
use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use rusqlite::{Connection, OptionalExtension, params};

use super::expected_store::StoreFile;
use super::moved::Moved;
use super::sqlite::{Explain, SqliteTransaction, page};
use super::{StoreError, StoreMark, keys, store_time, uses};

/// Schema of a store, the same for all engines. SQLite has its number as `PRAGMA user_version`; 0 is a file without tables. A release works
/// on a store of any schema that it knows, and writes only what that schema has. No release raises it by itself: older programs that use the
/// store would stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSchema {
    pub number: i64,
    /// First release that knows it. Each store names it, so that a program that does not know the schema can.
    pub release: &'static str,
}

/// Schemas that this release knows, the oldest first.
const SCHEMAS: [StoreSchema; 1] = [StoreSchema {
    number: VERSION,
    release: "0.1.0",
}];
/// Newest schema that this release knows.
pub const VERSION: i64 = 1;
/// Schema of a later release, for tests of upgrades.
const NEXT: StoreSchema = StoreSchema {
    number: VERSION + 1,
    release: "0.2.0",
};
/// Variable that makes a debug build know [`NEXT`]. Release builds do not look at it.
const KNOW_NEXT: &str = "ATTEST_TEST_NEXT_SCHEMA";

impl StoreSchema {
    /// Returns the newest schema that this release knows.
    #[must_use]
    pub fn newest() -> Self {
        match cfg!(debug_assertions) && std::env::var_os(KNOW_NEXT).is_some() {
            true => NEXT,
            false => SCHEMAS.last().copied().unwrap_or(NEXT),
        }
    }

    /// Returns the schema with this number, if this release knows it.
    pub(super) fn find(number: i64) -> Option<Self> {
        let known = SCHEMAS.into_iter().chain([Self::newest()]);
        { known }.find(|schema| schema.number == number)
    }
}

/// `PRAGMA application_id` of a store's file: "AtGw".
const APPLICATION_ID: i64 = 0x4174_4777;
/// Number of values that are read at once.
const PAGE: usize = 1000;
/// Bytes of a store's id: it cannot be guessed, and no two are the same.
const ID_BYTES: usize = 16;

const PAIRS: &str = "CREATE TABLE pairs (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID";
/// Its column `release` stays in each later schema.
const STORE: &str =
    "CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, mark INTEGER NOT NULL, release TEXT NOT NULL)";
/// New place of a store that was moved, and its former id; it has another id then.
const MOVED: &str =
    "CREATE TABLE moved (one INTEGER PRIMARY KEY CHECK (one = 1), was TEXT NOT NULL, id TEXT NOT NULL, place TEXT NOT NULL)";

/// Text of a schema, as etcd has it: number and release. Each later schema has it so.
#[cfg(feature = "etcd")]
pub(super) fn text(schema: StoreSchema) -> String {
    format!("{} {}", schema.number, schema.release)
}

/// Returns the number and the release in a [`text`].
#[cfg(feature = "etcd")]
pub(super) fn parse(text: &str) -> Option<(i64, &str)> {
    let (number, release) = text.split_once(' ')?;
    Some((number.parse().ok()?, release))
}

/// Returns the content of a file, before anything is written to it.
pub(super) fn inspect(file: &Path, connection: &Connection) -> Result<StoreFile, StoreError> {
    let foreign = |missing: String| StoreError::Foreign {
        path: file.to_owned(),
        missing,
    };
    // Counted first: tables and version are committed together by a process that may do so meanwhile.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .at(file)?;
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).at(file)?;
    match version(connection).at(file)? {
        0 if tables == 0 => Ok(StoreFile::Nothing),
        _ if application != APPLICATION_ID => Err(foreign(format!(
            "its application id is {application:#x}, that of a store is {APPLICATION_ID:#x}"
        ))),
        found if StoreSchema::find(found).is_some() => {
            if let Err(missing) = connection.prepare("SELECT key, value FROM pairs") {
                return Err(foreign(missing.to_string()));
            }
            Ok(match (read_mark(connection).at(file)?, moved(connection).at(file)?) {
                (standing, None) => StoreFile::Store(standing),
                (standing, Some((id, moved))) => StoreFile::Moved(StoreMark { id, ..standing }, moved),
            })
        }
        found if is_newer(found) => Err(StoreError::Schema {
            path: file.to_owned(),
            newer: newer(found, release(connection)),
        }),
        found => Err(foreign(format!("this release does not know its schema, {found}"))),
    }
}

/// Returns whether only newer releases know a schema.
pub(super) fn is_newer(number: i64) -> bool {
    number > StoreSchema::newest().number
}

/// Returns what to say of a schema of a newer release.
pub(super) fn newer(found: i64, release: Option<String>) -> NewerFormat {
    NewerFormat {
        format: "store schema",
        found,
        known: StoreSchema::newest().number,
        release,
    }
}

/// Checks that the schema of the open store is known: a newer release may have raised it.
pub(super) fn check_version(file: &Path, connection: &Connection) -> Result<(), StoreError> {
    match version(connection).at(file)? {
        found if StoreSchema::find(found).is_some() => Ok(()),
        found if is_newer(found) => Err(StoreError::Schema {
            path: file.to_owned(),
            newer: newer(found, release(connection)),
        }),
        _ => Err(StoreError::Replaced(file.to_owned())),
    }
}

/// Returns the first release that reads the store, in a schema that may be unknown.
fn release(connection: &Connection) -> Option<String> {
    connection.query_row("SELECT release FROM store", [], |row| row.get(0)).ok()
}

fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

/// Returns the schema of a store that was inspected.
pub(super) fn current(connection: &Connection) -> Result<StoreSchema, StoreError> {
    let number = version(connection).explain(connection)?;
    StoreSchema::find(number).ok_or(StoreError::Closed)
}

/// Gives the store this schema, in the transaction of the caller.
pub(super) fn set(connection: &Connection, schema: StoreSchema) -> Result<(), rusqlite::Error> {
    connection.execute("UPDATE store SET release = ?1", [schema.release])?;
    connection.pragma_update(None, "user_version", schema.number)
}

/// Creates the tables in an empty file, in one transaction.
pub(super) fn create(connection: &Connection) -> Result<(), StoreError> {
    if version(connection).explain(connection)? != 0 {
        return Ok(());
    }
    let id = new_id()?;
    connection.execute_batch("BEGIN IMMEDIATE").explain(connection)?;
    let made = make(connection, &id);
    let ended = connection.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" });
    made.and(ended.explain(connection))
}

pub(super) fn new_id() -> Result<String, StoreError> {
    let mut id = [0; ID_BYTES];
    rand::fill(&mut id).map_err(|_| StoreError::Random)?;
    Ok(HEXLOWER.encode(&id))
}

/// Returns whether this could be an id from [`new_id`].
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
pub(super) fn is_id(text: &str) -> bool {
    HEXLOWER.decode(text.as_bytes()).is_ok_and(|id| id.len() == ID_BYTES)
}

fn make(connection: &Connection, id: &str) -> Result<(), StoreError> {
    // Another process may have been faster.
    if version(connection).explain(connection)? != 0 {
        return Ok(());
    }
    connection.execute_batch(PAIRS).explain(connection)?;
    connection.execute_batch(STORE).explain(connection)?;
    connection
        .execute(
            "INSERT INTO store (one, id, mark, release) VALUES (1, ?1, 1, ?2)",
            [id, StoreSchema::newest().release],
        )
        .explain(connection)?;
    connection
        .pragma_update(None, "application_id", APPLICATION_ID)
        .explain(connection)?;
    set(connection, StoreSchema::newest()).explain(connection)
}

/// Returns the store's id and mark.
pub(super) fn read_mark(connection: &Connection) -> Result<StoreMark, rusqlite::Error> {
    mark_of(connection, "SELECT id, mark FROM store WHERE one = 1")
}

/// Counts a transaction that has written something; returns the store's new mark.
pub(super) fn advance(connection: &Connection) -> Result<StoreMark, rusqlite::Error> {
    mark_of(connection, "UPDATE store SET mark = mark + 1 RETURNING id, mark")
}

fn mark_of(connection: &Connection, sql: &str) -> Result<StoreMark, rusqlite::Error> {
    connection.prepare_cached(sql)?.query_row([], |row| {
        Ok(StoreMark {
            id: row.get(0)?,
            // Counted from 1 upwards.
            mark: row.get::<_, i64>(1)?.unsigned_abs(),
            wrote: None,
        })
    })
}

/// Returns the former id and the new place of a store that was moved.
pub(super) fn moved(connection: &Connection) -> Result<Option<(String, Moved)>, rusqlite::Error> {
    let is_there: bool = connection
        .prepare_cached("SELECT count(*) > 0 FROM sqlite_master WHERE name = 'moved'")?
        .query_row([], |row| row.get(0))?;
    if !is_there {
        return Ok(None);
    }
    let row = |row: &rusqlite::Row<'_>| {
        let (id, to) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, Moved { id, to }))
    };
    connection.query_row("SELECT was, id, place FROM moved", [], row).optional()
}

/// Records the new place, and the store's new id.
pub(super) fn move_to(connection: &Connection, Moved { id, to }: &Moved) -> Result<(), StoreError> {
    let another = new_id()?;
    connection.execute_batch(MOVED).explain(connection)?;
    connection
        .execute(
            "INSERT INTO moved (one, was, id, place) SELECT 1, store.id, ?1, ?2 FROM store",
            [id, to],
        )
        .and_then(|_| connection.execute("UPDATE store SET id = ?1", [another]))
        .explain(connection)?;
    Ok(())
}

/// Restores the id of a store that was moved.
pub(super) fn undo_move(connection: &Connection) -> Result<(), StoreError> {
    let taken_back = "UPDATE store SET id = (SELECT was FROM moved); DROP TABLE moved";
    connection.execute_batch(taken_back).explain(connection)
}

/// Makes it the store with this id and the same content, with a mark that is at least `mark`.
pub(super) fn name(connection: &Connection, id: &str, mark: u64) -> Result<StoreMark, StoreError> {
    let mark = i64::try_from(mark).unwrap_or(i64::MAX);
    connection.execute_batch("DROP TABLE IF EXISTS moved").explain(connection)?;
    let renamed = connection.execute("UPDATE store SET id = ?1, mark = max(mark, ?2) + 1", params![id, mark]);
    renamed.and_then(|_| read_mark(connection)).explain(connection)
}

/// Adopts the pending decisions of a store that replaces the known one. Their uses stay used: another gateway's log has the outcome. Does
/// nothing if it is the known store in an earlier state.
pub(super) fn take_decisions(connection: &Connection, known: Option<&StoreMark>, found: Option<&StoreMark>) -> Result<(), StoreError> {
    let id = |mark: Option<&StoreMark>| mark.map(|mark| mark.id.clone());
    if found.is_some() && id(found) == id(known) {
        return Ok(());
    }
    let mut range = keys::pendings();
    loop {
        let pairs = page(connection, &range, PAGE).explain(connection)?;
        let Some(last) = pairs.last() else { return Ok(()) };
        range = keys::after(&last.key, &range);
        for pair in &pairs {
            let mut part = SqliteTransaction::new(connection);
            let done = uses::adopt(&mut part, &pair.key);
            part.end(done)?;
        }
    }
}

/// Makes it another store, with at least `mark` as its mark, and resets the store time.
pub(super) fn reinitialize(connection: &Connection, mark: u64) -> Result<StoreMark, StoreError> {
    let mut part = SqliteTransaction::new(connection);
    let anew = store_time::reset(&mut part);
    part.end(anew)?;
    name(connection, &new_id()?, mark)
}
