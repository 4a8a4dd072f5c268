//! The tables, their version, and what the store says of itself: who it is, how far it has come, what time it is by its own account.

use std::path::Path;

use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use rusqlite::{Connection, OptionalExtension, params};

use super::known::StoreFile;
use super::sqlite::Explain;
use super::{StoreError, StoreMark};

/// `PRAGMA user_version` of the tables below. 0 is a file without tables, or one of a release that did not number them; 1 has no
/// `pending_entries`, 2 no `holders`, `pending_repeats` and `late`.
pub(super) const VERSION: i64 = 3;
/// Bytes of a store's identity: nobody guesses another's, and no two are the same.
const ID_BYTES: usize = 16;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS uses (kind TEXT NOT NULL, id TEXT NOT NULL, uses INTEGER NOT NULL, remember_until INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS uses_by_expiry ON uses (remember_until);
    CREATE TABLE IF NOT EXISTS freed_uses (kind TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (kind, id, number)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_uses (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_entries (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, before TEXT, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS holders (kind TEXT NOT NULL, id TEXT NOT NULL, holder TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, repeats INTEGER NOT NULL, PRIMARY KEY (kind, id, holder)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_repeats (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, holder TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS late (kind TEXT NOT NULL, id TEXT NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS entries (kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, mark INTEGER NOT NULL, believed INTEGER, forgotten_until INTEGER NOT NULL);
";

/// What every release's tables have.
const COLUMNS: [(&str, &str); 2] = [("uses", "kind, id, uses, remember_until"), ("entries", "kind, id, value")];

/// What a file holds, before anything is written to it.
pub(super) fn look(file: &Path, connection: &Connection) -> Result<StoreFile, StoreError> {
    let version = version(connection).at(file)?;
    if version > VERSION {
        return Err(StoreError::Schema {
            path: file.to_owned(),
            found: version,
            known: VERSION,
        });
    }
    for (table, columns) in COLUMNS {
        let there: bool = connection
            .query_row("SELECT count(*) > 0 FROM sqlite_master WHERE name = ?1", [table], |row| row.get(0))
            .at(file)?;
        if there && let Err(missing) = connection.prepare(&format!("SELECT {columns} FROM {table}")) {
            return Err(StoreError::Foreign {
                path: file.to_owned(),
                missing: missing.to_string(),
            });
        }
    }
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master WHERE name IN ('uses', 'entries')", [], |row| {
            row.get(0)
        })
        .at(file)?;
    Ok(match (tables, version) {
        (0, _) => StoreFile::Nothing,
        (_, 0) => StoreFile::Unmarked,
        _ => StoreFile::Store(standing(connection).at(file)?),
    })
}

fn version(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Makes the tables, or brings those of an older release up to date, in one transaction.
pub(super) fn migrate(connection: &Connection) -> Result<(), StoreError> {
    if version(connection).of(connection)? == VERSION {
        return Ok(());
    }
    let id = new_id()?;
    connection.execute_batch("BEGIN IMMEDIATE").of(connection)?;
    let migrated = make(connection, &id);
    let ended = connection.execute_batch(if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" });
    ended.and(migrated).of(connection)
}

fn new_id() -> Result<String, StoreError> {
    let mut id = [0; ID_BYTES];
    rand::fill(&mut id).map_err(|_| StoreError::Random)?;
    Ok(HEXLOWER.encode(&id))
}

fn make(connection: &Connection, id: &str) -> Result<(), rusqlite::Error> {
    connection.execute_batch(TABLES)?;
    // Those of tokens that are gone; today they go with them.
    connection.execute_batch("DELETE FROM uses WHERE kind = 'token-use' AND id NOT IN (SELECT id FROM entries WHERE kind = 'token')")?;
    // Another process may have been faster.
    connection.execute(
        "INSERT OR IGNORE INTO store (one, id, mark, forgotten_until) VALUES (1, ?1, 1, 0)",
        [id],
    )?;
    connection.pragma_update(None, "user_version", VERSION)
}

/// Who the store is and how far it has come.
pub(super) fn standing(connection: &Connection) -> Result<StoreMark, rusqlite::Error> {
    let standing = connection
        .prepare_cached("SELECT id, mark FROM store WHERE one = 1")?
        .query_row([], |row| {
            Ok(StoreMark {
                id: row.get(0)?,
                // Counted from 1 upwards.
                mark: row.get::<_, i64>(1)?.unsigned_abs(),
            })
        })
        .optional()?;
    standing.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Counts a transaction that has written something.
pub(super) fn advance(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("UPDATE store SET mark = mark + 1")?
        .execute(params![])
        .map(drop)
}

/// Makes it another store with the same content, which has come at least as far as `mark`. Its time begins anew.
pub(super) fn rename(connection: &Connection, mark: u64) -> Result<StoreMark, StoreError> {
    let (id, mark) = (new_id()?, i64::try_from(mark).unwrap_or(i64::MAX));
    let renamed = connection.execute(
        "UPDATE store SET id = ?1, mark = max(mark, ?2) + 1, believed = NULL, forgotten_until = 0",
        params![id, mark],
    );
    renamed.and_then(|_| standing(connection)).of(connection)
}
