//! A store whose content was taken to another place: it says so, and nobody goes on with it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StoreError;

/// Where it has gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moved {
    /// Id of the store that it is there.
    pub id: String,
    /// Its place there.
    pub to: String,
}

impl Moved {
    /// What whoever comes to the old place is told.
    pub(super) fn error(&self, place: &Path) -> StoreError {
        StoreError::Moved {
            path: place.to_owned(),
            to: self.to.clone(),
        }
    }
}
