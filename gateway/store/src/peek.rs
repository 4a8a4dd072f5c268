//! Read of one entry of a store's file, for callers that only look.

use std::path::Path;

use rusqlite::OptionalExtension;

use super::documents::{self, EntryDocument};
use super::embedded::connect;
use super::sqlite::Explain;
use super::{Embedded, EntryKind, StoreEntry, StoreError, StoreMark, keys, schema};

impl Embedded {
    /// Returns an entry of the store in this file, and the store's mark; creates nothing. `None` without a store or an entry.
    ///
    /// # Errors
    /// Like [`Embedded::exists`].
    pub fn peek(file: &Path, kind: EntryKind, id: &str) -> Result<Option<(StoreMark, StoreEntry)>, StoreError> {
        if !Self::exists(file)? {
            return Ok(None);
        }
        let (connection, _) = connect(file)?;
        let key = keys::entry(kind.as_str(), id);
        let text: Option<String> = connection
            .query_row("SELECT value FROM pairs WHERE key = ?1", [&key], |row| row.get(0))
            .optional()
            .at(file)?;
        let document: Option<EntryDocument> = text.map(|text| documents::parse(&key, &text)).transpose()?;
        let Some(EntryDocument { value, .. }) = document else {
            return Ok(None);
        };
        let id = id.to_owned();
        Ok(Some((schema::read_mark(&connection).at(file)?, StoreEntry { id, value })))
    }
}
