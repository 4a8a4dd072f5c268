//! A store's file that is written down, or takes what another store holds.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::super::embedded::{connect, make_file, prepare};
use super::super::engine::{KeyRange, KeyValue, Transaction};
use super::super::known::{Known, StoreFile, replace_mark};
use super::super::sqlite::{Explain, Part, count, page};
use super::super::{StoreError, StoreMark, schema};
use super::{HouseError, Source, Target, everything};

/// What a file holds at one moment.
pub(super) struct Moment {
    connection: Connection,
    store: StoreMark,
}

impl Moment {
    pub(super) fn of(file: &Path) -> Result<Self, StoreError> {
        let (connection, _) = connect(file)?;
        Known::beside(file)?.check(file, &schema::look(file, &connection)?)?;
        prepare(&connection)?;
        // What is read from here on is the store at this moment.
        connection.execute_batch("BEGIN").of(&connection)?;
        let store = schema::standing(&connection).of(&connection)?;
        Ok(Self { connection, store })
    }
}

impl Source for Moment {
    fn store(&self) -> StoreMark {
        self.store.clone()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        page(&self.connection, range, most).of(&self.connection)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let connection = &self.connection;
        connection.execute_batch("ROLLBACK; BEGIN").of(connection)?;
        schema::standing(connection).of(connection)
    }
}

/// A transaction in which all is taken. Dropped before its end it has written nothing.
pub(super) struct Taking {
    file: PathBuf,
    connection: Connection,
    known: Known,
}

impl Taking {
    pub(super) fn begin(file: &Path) -> Result<Self, HouseError> {
        let known = Known::beside(file).or_else(|_| Known::but_for_file(file))?;
        make_file(file)?;
        let (connection, _) = connect(file)?;
        if schema::look(file, &connection)? != StoreFile::Nothing {
            prepare(&connection)?;
            nothing_there(&connection)?;
        }
        prepare(&connection)?;
        connection.execute_batch("BEGIN IMMEDIATE").of(&connection)?;
        let file = file.to_owned();
        let taking = Self { file, connection, known };
        // Somebody may have been faster.
        nothing_there(&taking.connection)?;
        Ok(taking)
    }
}

fn nothing_there(connection: &Connection) -> Result<(), HouseError> {
    match count(connection, &everything()).of(connection)? {
        0 => Ok(()),
        keys => Err(HouseError::NotEmpty(keys)),
    }
}

impl Target for Taking {
    fn known(&self) -> &Known {
        &self.known
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        let mut part = Part::new(&self.connection);
        let done = part.put(&pair.key, &pair.value);
        part.end(done)
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        page(&self.connection, range, most).of(&self.connection)
    }

    fn finish(&mut self, from: &StoreMark) -> Result<StoreMark, StoreError> {
        let now = schema::name_anew(&self.connection, self.known.furthest().max(from.mark))?;
        replace_mark(&self.file, &now)?;
        self.connection.execute_batch("COMMIT").of(&self.connection)?;
        Ok(now)
    }
}
