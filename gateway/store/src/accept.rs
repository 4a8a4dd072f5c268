//! The way out for the administrator, when the store that is there is not the one that is known.

use std::path::Path;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::embedded::{connect, make_file, prepare};
use super::expected_store::{ExpectedStore, StoreFile, replace_mark};
use super::sqlite::Explain;
use super::{StoreError, StoreMark, schema};

/// A store in the place of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The store that was known, if that says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<StoreMark>,
    /// The store that was found, if it is known which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<StoreMark>,
}

/// A store that was not the one that is known, and is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedStore {
    /// The accepted store, and the store that it replaces.
    pub replacement: Replacement,
    /// Id and mark of the store after acceptance.
    pub now: StoreMark,
}

/// Accepts the current store, or initializes an empty one. Everything that the known store has revoked and spent since is lost. So `first`
/// has to invalidate whatever must not be used twice, and to record the replacement. The store gets another id, so that the known one is
/// not mistaken for it later.
///
/// # Errors
/// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
pub fn accept<E: From<StoreError>>(file: &Path, first: impl FnOnce(&Replacement) -> Result<(), E>) -> Result<AcceptedStore, E> {
    let (connection, known, found) = examine(file)?;
    let replacement = Replacement {
        known: known.expected().cloned(),
        found: match found {
            StoreFile::Store(mark) | StoreFile::Moved(mark, _) => Some(mark),
            StoreFile::Nothing => None,
        },
    };
    first(&replacement)?;
    let now = rename(file, &connection, &known, &replacement)?;
    Ok(AcceptedStore { replacement, now })
}

fn examine(file: &Path) -> Result<(Connection, ExpectedStore, StoreFile), StoreError> {
    let known = ExpectedStore::load(file);
    let readable = known.is_ok();
    let known = known.or_else(|_| ExpectedStore::but_for_file(file))?;
    make_file(file)?;
    let (connection, _) = connect(file)?;
    let found = schema::inspect(file, &connection)?;
    if readable && known.check(file, &found).is_ok() {
        return Err(StoreError::Known(file.to_owned()));
    }
    Ok((connection, known, found))
}

fn rename(file: &Path, connection: &Connection, known: &ExpectedStore, replacement: &Replacement) -> Result<StoreMark, StoreError> {
    prepare(connection)?;
    connection.execute_batch("BEGIN IMMEDIATE").explain(connection)?;
    let now = schema::take_decisions(connection, replacement.known.as_ref(), replacement.found.as_ref())
        .and_then(|()| schema::reinitialize(connection, known.furthest()))
        .and_then(|now| replace_mark(file, &now).map(|()| now));
    connection
        .execute_batch(if now.is_ok() { "COMMIT" } else { "ROLLBACK" })
        .explain(connection)?;
    now
}
