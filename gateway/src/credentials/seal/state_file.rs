//! Number of the newest set of the seal's keys, in a file next to the mark of the store. A client that can write to the store could set the
//! keys back, to ones that were dropped.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use attest_store::Store;
use attest_system::files;
use attest_system::newer_format::NewerFormat;
use serde::{Deserialize, Serialize};

use super::SealError;
use super::key_file::{KeyFile, StoreKey};

/// File name, in the folder of the store's mark.
pub(crate) const FILE: &str = "seal.set";
/// Prefix of the authenticated data.
const DOMAIN: &str = "attestation-gateway/v1/sealing-keys-kept";
/// Version of the document's format.
pub(crate) const VERSION: u8 = 1;

/// A set of keys: its store, and its number of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeySetId {
    pub(super) store: String,
    pub(super) changes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealStateFile {
    v: u8,
    /// Id of the key in the key file.
    key_file: String,
    store: String,
    changes: u64,
    tag: String,
}

/// Returns the file of a store, if it has one.
pub(super) fn file(store: &dyn Store) -> Option<PathBuf> {
    Some(files::folder(store.mark_path()?).join(FILE))
}

/// Returns the newest set that was read here. A file by a key that the key file no longer has counts for nothing.
pub(super) fn read(path: &Path, key_file: &KeyFile) -> Result<Option<KeySetId>, SealError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            let path = path.to_owned();
            return Err(SealError::Io { path, source });
        }
    };
    if let Some(newer) = NewerFormat::in_json("version", VERSION.into(), text.as_bytes()) {
        let path = path.to_owned();
        return Err(SealError::NewerFile { path, newer });
    }
    let altered = || SealError::NotKept(path.to_owned());
    let document: SealStateFile = serde_json::from_str(&text).map_err(|_| altered())?;
    let Ok(key) = key_file.key(&document.key_file) else {
        return Ok(None);
    };
    let set = KeySetId {
        store: document.store,
        changes: document.changes,
    };
    match document.v == VERSION && key.is_authentic(&document.tag, &associated_data(key, &set)) {
        true => Ok(Some(set)),
        false => Err(altered()),
    }
}

/// Writes down that this set was read.
pub(super) fn write(path: &Path, key: &StoreKey, set: &KeySetId) -> Result<(), SealError> {
    let document = SealStateFile {
        v: VERSION,
        key_file: key.id.clone(),
        store: set.store.clone(),
        changes: set.changes,
        tag: key.authenticate(&associated_data(key, set))?,
    };
    let text = serde_json::to_string(&document)?;
    Ok(files::replace(path, files::PRIVATE, &format!("{text}\n"))?)
}

/// Returns the data that is authenticated. No part has a line break.
fn associated_data(key: &StoreKey, set: &KeySetId) -> String {
    let KeySetId { store, changes } = set;
    format!("{DOMAIN}\n{}\n{store}\n{changes}", key.id)
}
