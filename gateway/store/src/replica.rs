//! Identity of one of several gateways: only this one settles what its decisions depend on, by its own attestation log.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use attest_system::files;

use super::{StoreError, schema};

/// File in the state folder, next to the log.
const FILE: &str = "replica.id";

/// Returns the id of this state folder, and creates it if the folder has none. The caller keeps others from doing so at the same time.
pub(super) fn load_or_create_id(folder: &Path) -> Result<String, StoreError> {
    let path = folder.join(FILE);
    match fs::read_to_string(&path) {
        Ok(id) if schema::is_id(id.trim()) => Ok(id.trim().to_owned()),
        Ok(_) => Err(StoreError::Io {
            path,
            source: std::io::Error::new(ErrorKind::InvalidData, "not a replica ID: restore the previous file"),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = schema::new_id()?;
            files::replace(&path, files::PRIVATE, &format!("{id}\n")).map_err(|error| StoreError::Io {
                path: error.path,
                source: error.source,
            })?;
            Ok(id)
        }
        Err(source) => Err(StoreError::Io { path, source }),
    }
}
