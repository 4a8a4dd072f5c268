//! A store whose content was moved to another place: it says so, and no gateway goes on with it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StoreError;

/// The new place of a store's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moved {
    /// Id of the store that it is there.
    pub id: String,
    /// Its place there, in the form of `export::place`.
    pub to: String,
}

impl Moved {
    /// Returns the error for a process that comes to the old place.
    pub(super) fn error(&self, place: &Path) -> StoreError {
        StoreError::Moved {
            path: place.to_owned(),
            to: self.to.clone(),
        }
    }
}
