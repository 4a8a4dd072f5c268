//! Keys and values in SQLite, and what it says, in the store's words.

use std::collections::BTreeMap;
use std::path::Path;

use attest_system::files;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::StoreError;
use super::engine::{KeyRange, KeyValue, Transaction, WorkInterrupted};

const DISK_FULL_ADVICE: &str = "free space on the disk of the store";

/// The part of one work in a transaction that it shares with others: all of it is done, or nothing. Nothing is written before the work has
/// ended.
pub(super) struct SqliteTransaction<'a> {
    connection: &'a Connection,
    writes: BTreeMap<String, Option<String>>,
    removed: Vec<KeyRange>,
    failed: Option<rusqlite::Error>,
}

impl<'a> SqliteTransaction<'a> {
    pub(super) const fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            writes: BTreeMap::new(),
            removed: Vec::new(),
            failed: None,
        }
    }

    /// Writes all that the work has written, or nothing, according to its result.
    pub(super) fn end(mut self, done: Result<(), WorkInterrupted>) -> Result<(), StoreError> {
        match (done, self.failed.take()) {
            (Err(WorkInterrupted::Refused(error)), _) => Err(error),
            (_, Some(error)) => Err(error).explain(self.connection),
            (Err(WorkInterrupted::Engine), None) => Err(StoreError::Closed),
            (Ok(()), None) => self.write().explain(self.connection),
        }
    }

    fn write(&self) -> Result<(), rusqlite::Error> {
        if self.writes.is_empty() && self.removed.is_empty() {
            return Ok(());
        }
        self.statement("SAVEPOINT part", [])?;
        let written = self.statements();
        if written.is_err() {
            self.statement("ROLLBACK TO part", [])?;
        }
        self.statement("RELEASE part", []).and(written)
    }

    fn statements(&self) -> Result<(), rusqlite::Error> {
        for range in &self.removed {
            self.statement("DELETE FROM pairs WHERE key >= ?1 AND key < ?2", [&range.from, &range.until])?;
        }
        for (key, value) in &self.writes {
            match value {
                Some(value) => self.statement("INSERT OR REPLACE INTO pairs (key, value) VALUES (?1, ?2)", [key, value])?,
                None => self.statement("DELETE FROM pairs WHERE key = ?1", [key])?,
            }
        }
        Ok(())
    }

    fn statement(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.execute(params).map(drop)
    }
}

impl Transaction for SqliteTransaction<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        if let Some(written) = self.writes.get(key) {
            return Ok(written.clone());
        }
        get(self.connection, key).map_err(|error| {
            self.failed = Some(error);
            WorkInterrupted::Engine
        })
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted> {
        self.writes.insert(key.to_owned(), Some(value.to_owned()));
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted> {
        self.writes.insert(key.to_owned(), None);
        Ok(())
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted> {
        self.removed.push(range.clone());
        Ok(())
    }
}

/// Returns the value under a key.
pub(super) fn get(connection: &Connection, key: &str) -> Result<Option<String>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT value FROM pairs WHERE key = ?1")
        .and_then(|mut statement| statement.query_row([key], |row| row.get(0)).optional())
}

/// Returns the first `most` values of a range.
pub(super) fn page(connection: &Connection, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, rusqlite::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection
        .prepare_cached("SELECT key, value FROM pairs WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3")?
        .query_map(params![range.from, range.until, most], |row| {
            Ok(KeyValue {
                key: row.get(0)?,
                value: row.get(1)?,
            })
        })?
        .collect()
}

pub(super) fn count(connection: &Connection, range: &KeyRange) -> Result<u64, rusqlite::Error> {
    let count: i64 = connection
        .prepare_cached("SELECT count(*) FROM pairs WHERE key >= ?1 AND key < ?2")?
        .query_row([&range.from, &range.until], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Says which file it was about, and what can be done.
pub(super) trait Explain<T> {
    fn explain(self, connection: &Connection) -> Result<T, StoreError>;

    fn at(self, file: &Path) -> Result<T, StoreError>;
}

impl<T> Explain<T> for Result<T, rusqlite::Error> {
    fn explain(self, connection: &Connection) -> Result<T, StoreError> {
        self.map_err(|error| failed(connection.path().unwrap_or_default(), &error))
    }

    fn at(self, file: &Path) -> Result<T, StoreError> {
        self.map_err(|error| failed(&file.display().to_string(), &error))
    }
}

/// Returns an error of SQLite's with its file. A full disk is named: SQLite often calls it an I/O error.
pub(super) fn failed(file: &str, error: &rusqlite::Error) -> StoreError {
    let (problem, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if files::is_disk_full(Path::new(file)) => {
            (format!("the disk is full ({error})"), DISK_FULL_ADVICE)
        }
        _ => (error.to_string(), advice(error)),
    };
    StoreError::Engine {
        engine: "SQLite",
        place: file.to_owned(),
        problem,
        advice: advice.to_owned(),
    }
}

fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process has locked the store: wait for it, or end it",
        Some(ErrorCode::DiskFull) => DISK_FULL_ADVICE,
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "let the gateway's user write the store's file and its folder"
        }
        Some(ErrorCode::SystemIoFailure) => "check that the store's disk is mounted, writable and not full",
        _ => "restore a backup: `attest-gateway restore FILE --replace`",
    }
}
