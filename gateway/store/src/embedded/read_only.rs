//! A store that is only read, by a user who cannot write it, or on a read-only file system.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::super::engine::{Engine, KeyRange, KeyValue, Transaction, Work, WorkInterrupted};
use super::super::expected_store::ExpectedStore;
use super::super::sqlite::{self, Explain};
use super::super::{StoreError, StoreMark, schema};
use super::io;

/// Characters that a path in a URI of SQLite cannot have.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');

/// Snapshot of the store in a SQLite file. Nothing is written, not even next to the file.
#[derive(Debug)]
pub(crate) struct ReadOnlyStore {
    file: PathBuf,
    connection: Mutex<Connection>,
    mark: StoreMark,
}

impl ReadOnlyStore {
    /// Opens a store that exists.
    ///
    /// # Errors
    /// Like [`super::Embedded::open`].
    pub(crate) fn open(file: &Path) -> Result<Self, StoreError> {
        fs::metadata(file).map_err(io(file))?;
        let known = ExpectedStore::load(file)?;
        let connection = connect(file)?;
        // All reads are of this moment.
        connection.execute_batch("BEGIN").at(file)?;
        known.check(file, &schema::inspect(file, &connection)?)?;
        let mark = schema::read_mark(&connection).at(file)?;
        Ok(Self {
            file: file.to_owned(),
            connection: Mutex::new(connection),
            mark,
        })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file. Without a write-ahead log and without the right to make its index, the file is complete as it is.
fn connect(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let readable = |connection: Connection| {
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0))?;
        Ok(connection)
    };
    let opened = Connection::open_with_flags(file, flags).and_then(readable);
    let has_log = fs::metadata(file.with_extension("db-wal")).is_ok_and(|log| log.len() > 0);
    if opened.is_ok() || has_log {
        return opened.at(file);
    }
    let path = file.display().to_string();
    let uri = format!("file:{}?immutable=1", utf8_percent_encode(&path, RESERVED));
    Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
        .and_then(readable)
        .at(file)
}

#[async_trait]
impl Engine for ReadOnlyStore {
    async fn transact(&self, mut work: Work) -> Result<(), StoreError> {
        let connection = self.connection();
        let mut reading = Reading {
            file: &self.file,
            connection: &connection,
            failed: None,
        };
        let done = work(&mut reading);
        match (done, reading.failed) {
            (_, Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
            (Err(WorkInterrupted::Refused(error)), None) => Err(error),
            (Err(WorkInterrupted::Engine), None) => Err(StoreError::Closed),
        }
    }

    fn later(&self, _work: Work) {}

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        sqlite::page(&self.connection(), &range, most).at(&self.file)
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        sqlite::count(&self.connection(), &range).at(&self.file)
    }

    fn most_writes(&self) -> usize {
        0
    }

    fn store_mark(&self) -> Option<StoreMark> {
        Some(self.mark.clone())
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Transaction in which nothing can be written.
struct Reading<'r> {
    file: &'r Path,
    connection: &'r Connection,
    failed: Option<StoreError>,
}

impl Reading<'_> {
    fn fail<T>(&mut self, error: StoreError) -> Result<T, WorkInterrupted> {
        self.failed.get_or_insert(error);
        Err(WorkInterrupted::Engine)
    }

    fn refuse(&mut self) -> Result<(), WorkInterrupted> {
        let error = io(self.file)(ErrorKind::ReadOnlyFilesystem.into());
        self.fail(error)
    }
}

impl Transaction for Reading<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        match sqlite::get(self.connection, key).at(self.file) {
            Ok(found) => Ok(found),
            Err(error) => self.fail(error),
        }
    }

    fn put(&mut self, _key: &str, _value: &str) -> Result<(), WorkInterrupted> {
        self.refuse()
    }

    fn delete(&mut self, _key: &str) -> Result<(), WorkInterrupted> {
        self.refuse()
    }

    fn delete_range(&mut self, _range: &KeyRange) -> Result<(), WorkInterrupted> {
        self.refuse()
    }
}
