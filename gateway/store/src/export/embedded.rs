//! A store's file that is written down, or takes what another store holds.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::super::embedded::{connect, make_file, prepare};
use super::super::engine::{KeyRange, KeyValue, Transaction};
use super::super::expected_store::{ExpectedStore, StoreFile, replace_mark};
use super::super::moved::Moved;
use super::super::schema::{self, StoreSchema};
use super::super::sqlite::{Explain, SqliteTransaction, count, page};
use super::super::{StoreError, StoreMark};
use super::{ExportError, MigrationSource, MigrationTarget, everything};

/// Snapshot of the content of a file.
pub(super) struct EmbeddedSnapshot {
    file: PathBuf,
    connection: Connection,
    store: StoreMark,
    schema: StoreSchema,
    moved: Option<Moved>,
}

impl EmbeddedSnapshot {
    pub(super) fn open(file: &Path) -> Result<Self, StoreError> {
        let (connection, _) = connect(file)?;
        ExpectedStore::load(file)?.check_to_move(file, &schema::inspect(file, &connection)?)?;
        prepare(&connection)?;
        // What is read from here on is the store at this moment.
        connection.execute_batch("BEGIN").explain(&connection)?;
        let (store, moved) = read_mark(&connection)?;
        let schema = schema::current(&connection)?;
        let file = file.to_owned();
        Ok(Self {
            file,
            connection,
            store,
            schema,
            moved,
        })
    }

    /// Runs the work if the store is unchanged; no process writes meanwhile.
    fn unchanged(&self, work: impl FnOnce(&Connection) -> Result<(), StoreError>) -> Result<(), ExportError> {
        let connection = &self.connection;
        connection.execute_batch("ROLLBACK; BEGIN IMMEDIATE").explain(connection)?;
        let done = match read_mark(connection)? {
            (store, moved) if store == self.store && moved == self.moved => work(connection).map_err(ExportError::from),
            (_, Some(moved)) => Err(moved.error(&self.file).into()),
            _ => Err(ExportError::WentOn),
        };
        // Whatever comes next begins with the end of a transaction.
        let end = if done.is_ok() { "COMMIT; BEGIN" } else { "ROLLBACK; BEGIN" };
        connection.execute_batch(end).explain(connection)?;
        done
    }
}

/// Returns the store's mark, with its original id, and its new place if it was moved.
fn read_mark(connection: &Connection) -> Result<(StoreMark, Option<Moved>), StoreError> {
    let standing = schema::read_mark(connection).explain(connection)?;
    Ok(match schema::moved(connection).explain(connection)? {
        None => (standing, None),
        Some((id, moved)) => (StoreMark { id, ..standing }, Some(moved)),
    })
}

impl MigrationSource for EmbeddedSnapshot {
    fn store(&self) -> StoreMark {
        self.store.clone()
    }

    fn schema(&self) -> StoreSchema {
        self.schema
    }

    fn moved(&self) -> Option<&Moved> {
        self.moved.as_ref()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        page(&self.connection, range, most).explain(&self.connection)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let connection = &self.connection;
        connection.execute_batch("ROLLBACK; BEGIN").explain(connection)?;
        Ok(read_mark(connection)?.0)
    }

    fn move_to(&mut self, to: &Moved) -> Result<(), ExportError> {
        self.unchanged(|connection| schema::move_to(connection, to))
    }

    fn undo_move(&mut self) -> Result<(), ExportError> {
        self.unchanged(schema::undo_move)
    }
}

/// Returns the store that is there, regardless of the known one. No import can run meanwhile.
pub(super) fn existing_store(file: &Path) -> Result<Option<StoreMark>, StoreError> {
    if !file.exists() {
        return Ok(None);
    }
    let (connection, _) = connect(file)?;
    connection.execute_batch("BEGIN IMMEDIATE").explain(&connection)?;
    Ok(match schema::inspect(file, &connection)? {
        StoreFile::Store(mark) => Some(mark),
        StoreFile::Nothing | StoreFile::Moved(..) => None,
    })
}

/// A transaction in which all is taken. Dropped before its end it has written nothing.
pub(super) struct EmbeddedImport {
    file: PathBuf,
    connection: Connection,
    expected: ExpectedStore,
}

impl EmbeddedImport {
    pub(super) fn begin(file: &Path) -> Result<Self, ExportError> {
        let known = ExpectedStore::load(file).or_else(|_| ExpectedStore::but_for_file(file))?;
        make_file(file)?;
        let (connection, _) = connect(file)?;
        if schema::inspect(file, &connection)? != StoreFile::Nothing {
            prepare(&connection)?;
            check_empty(&connection)?;
        }
        prepare(&connection)?;
        connection.execute_batch("BEGIN IMMEDIATE").explain(&connection)?;
        let file = file.to_owned();
        let taking = Self {
            file,
            connection,
            expected: known,
        };
        // Somebody may have been faster.
        check_empty(&taking.connection)?;
        Ok(taking)
    }
}

fn check_empty(connection: &Connection) -> Result<(), ExportError> {
    match count(connection, &everything()).explain(connection)? {
        0 => Ok(()),
        keys => Err(ExportError::NotEmpty(keys)),
    }
}

impl MigrationTarget for EmbeddedImport {
    fn expected_store(&self) -> &ExpectedStore {
        &self.expected
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        let mut part = SqliteTransaction::new(&self.connection);
        let done = part.put(&pair.key, &pair.value);
        part.end(done)
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        page(&self.connection, range, most).explain(&self.connection)
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        schema::take_decisions(&self.connection, self.expected.expected(), Some(from))?;
        let now = schema::name(&self.connection, id, self.expected.furthest().max(from.mark))?;
        schema::set(&self.connection, schema).explain(&self.connection)?;
        replace_mark(&self.file, &now)?;
        self.connection.execute_batch("COMMIT").explain(&self.connection)?;
        Ok(now)
    }
}
