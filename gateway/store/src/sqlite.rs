//! Keys and values in SQLite, and what it says, in the store's words.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::StoreError;
use super::engine::{KeyRange, KeyValue, Transaction, Unfinished};

/// Some work's part of a transaction: all of it is done, or nothing; others' work is in the same transaction.
pub(super) struct Part<'a> {
    connection: &'a Connection,
    /// Begun with the first thing that is written.
    savepoint: bool,
    failed: Option<rusqlite::Error>,
}

impl<'a> Part<'a> {
    pub(super) const fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            savepoint: false,
            failed: None,
        }
    }

    /// Keeps what was written, or nothing of it, as the work says.
    pub(super) fn end(mut self, done: Result<(), Unfinished>) -> Result<(), StoreError> {
        let ended = if !self.savepoint {
            Ok(())
        } else if done.is_ok() {
            self.statement("RELEASE part")
        } else {
            self.statement("ROLLBACK TO part").and_then(|()| self.statement("RELEASE part"))
        };
        match (done, self.failed.take()) {
            (Err(Unfinished::Refused(error)), _) => Err(error),
            (_, Some(error)) => Err(error).of(self.connection),
            (Err(Unfinished::Engine), None) => Err(StoreError::Closed),
            (Ok(()), None) => ended.of(self.connection),
        }
    }

    fn statement(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn noted<T>(&mut self, result: Result<T, rusqlite::Error>) -> Result<T, Unfinished> {
        result.map_err(|error| {
            self.failed = Some(error);
            Unfinished::Engine
        })
    }

    fn write(&mut self, sql: &str, params: impl rusqlite::Params) -> Result<(), Unfinished> {
        if !self.savepoint {
            let begun = self.statement("SAVEPOINT part");
            self.noted(begun)?;
            self.savepoint = true;
        }
        let written = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(params));
        self.noted(written).map(drop)
    }
}

impl Transaction for Part<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, Unfinished> {
        let found = get(self.connection, key);
        self.noted(found)
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), Unfinished> {
        self.write("INSERT OR REPLACE INTO pairs (key, value) VALUES (?1, ?2)", [key, value])
    }

    fn delete(&mut self, key: &str) -> Result<(), Unfinished> {
        self.write("DELETE FROM pairs WHERE key = ?1", [key])
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), Unfinished> {
        self.write("DELETE FROM pairs WHERE key >= ?1 AND key < ?2", [&range.from, &range.until])
    }
}

/// What stands under a key.
pub(super) fn get(connection: &Connection, key: &str) -> Result<Option<String>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT value FROM pairs WHERE key = ?1")
        .and_then(|mut statement| statement.query_row([key], |row| row.get(0)).optional())
}

/// The first of a range, so many at most.
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
    fn of(self, connection: &Connection) -> Result<T, StoreError>;

    fn at(self, file: &Path) -> Result<T, StoreError>;
}

impl<T> Explain<T> for Result<T, rusqlite::Error> {
    fn of(self, connection: &Connection) -> Result<T, StoreError> {
        self.map_err(|error| failed(connection.path().unwrap_or_default(), &error))
    }

    fn at(self, file: &Path) -> Result<T, StoreError> {
        self.map_err(|error| failed(&file.display().to_string(), &error))
    }
}

fn failed(file: &str, error: &rusqlite::Error) -> StoreError {
    StoreError::Engine {
        engine: "SQLite",
        place: file.to_owned(),
        problem: error.to_string(),
        advice: advice(error).to_owned(),
    }
}

fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process holds it: wait for that one, or end it",
        Some(ErrorCode::DiskFull) => "make room on its disk",
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "its user must be able to write the file and its folder"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "bring back a copy that is whole",
        _ => "its disk must be there, writable, and have room",
    }
}
