//! One entry of a store's file, for who only looks.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::documents::{self, EntryDocument};
use super::embedded::connect;
use super::sqlite::Explain;
use super::{Embedded, Entry, EntryKind, StoreError, StoreMark, keys, older, schema};

impl Embedded {
    /// Whether an older release has written this file, and opening it would bring it up to date. Nothing is written, and nothing looked through.
    ///
    /// # Errors
    /// [`StoreError::Engine`].
    pub fn is_older(file: &Path) -> Result<bool, StoreError> {
        if !file.exists() {
            return Ok(false);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        older::is_there(&Connection::open_with_flags(file, flags).at(file)?)
    }

    /// An entry of the store in this file, and which store that is; nothing is made. `None` if there is none, or an older release has written
    /// the file.
    ///
    /// # Errors
    /// As [`Embedded::look`].
    pub fn peek(file: &Path, kind: EntryKind, id: &str) -> Result<Option<(StoreMark, Entry)>, StoreError> {
        if !Self::look(file)? {
            return Ok(None);
        }
        let (connection, _) = connect(file)?;
        let is_of_today: bool = connection
            .query_row("SELECT count(*) > 0 FROM sqlite_master WHERE name = 'pairs'", [], |row| row.get(0))
            .at(file)?;
        if !is_of_today {
            return Ok(None);
        }
        let key = keys::entry(kind.as_str(), id);
        let text: Option<String> = connection
            .query_row("SELECT value FROM pairs WHERE key = ?1", [&key], |row| row.get(0))
            .optional()
            .at(file)?;
        let document: Option<EntryDocument> = text.map(|text| documents::parse(&key, &text)).transpose()?;
        let Some(value) = document.and_then(|document| document.value) else {
            return Ok(None);
        };
        let id = id.to_owned();
        Ok(Some((schema::standing(&connection).at(file)?, Entry { id, value })))
    }
}
