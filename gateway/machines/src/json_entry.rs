//! Store entries whose value is JSON.

use attest_store::{EntryKind, StoreEntry, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) fn read<T: DeserializeOwned>(kind: EntryKind, entry: &StoreEntry) -> Result<T, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(kind, &entry.id, source))
}

pub(super) fn write<T: Serialize>(kind: EntryKind, id: &str, value: &T) -> Result<StoreEntry, StoreError> {
    match serde_json::to_string(value) {
        Ok(value) => Ok(StoreEntry { id: id.to_owned(), value }),
        Err(source) => Err(unreadable(kind, id, source)),
    }
}

fn unreadable(kind: EntryKind, id: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: kind.as_str(),
        id: id.to_owned(),
        source,
    }
}
