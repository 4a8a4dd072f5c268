//! What SQLite says, in the store's words.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::StoreError;

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
