//! The way out for the administrator, when the store that is there is not the one that is known.

use std::path::Path;

use rusqlite::Connection;

use super::embedded::{connect, make_file, prepare};
use super::known::{Found, Known, replace_mark};
use super::{StoreError, StoreMark, schema};

/// A store that was not the one that is known, and is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The store that was known, if that says which.
    pub known: Option<StoreMark>,
    /// The one that was found, if it says which it is.
    pub found: Option<StoreMark>,
    /// What that is from now on.
    pub now: StoreMark,
}

/// Takes the store that is there for the right one, or begins an empty one. What the one that was known had revoked and spent since is
/// lost, so `first` has to make worthless whatever was not to be used twice. It becomes another store: the one that was known is not taken
/// for it later.
///
/// # Errors
/// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
pub fn accept<E: From<StoreError>>(file: &Path, first: impl FnOnce() -> Result<(), E>) -> Result<Accepted, E> {
    let (connection, known, found) = examine(file)?;
    first()?;
    let now = rename(file, &connection, &known)?;
    Ok(Accepted {
        known: known.file.or(known.log),
        found: match found {
            Found::Store(mark) => Some(mark),
            Found::Nothing | Found::Unmarked => None,
        },
        now,
    })
}

fn examine(file: &Path) -> Result<(Connection, Known, Found), StoreError> {
    let known = Known::beside(file);
    let readable = known.is_ok();
    let known = known.or_else(|_| Known::but_for_file(file))?;
    make_file(file)?;
    let (connection, _) = connect(file)?;
    let found = schema::look(file, &connection)?;
    if readable && known.check(file, &found).is_ok() {
        return Err(StoreError::Known(file.to_owned()));
    }
    Ok((connection, known, found))
}

fn rename(file: &Path, connection: &Connection, known: &Known) -> Result<StoreMark, StoreError> {
    prepare(connection)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let now = schema::rename(connection, known.furthest()).and_then(|now| replace_mark(file, &now).map(|()| now));
    connection.execute_batch(if now.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    now
}
