//! Which pointers are in use: what they say of the CAs that they carry, when they were seen last, and with whom. A pointer says so in its
//! URL (`?ca=`), which is a hint and no proof: it helps to know when an old CA can go, and decides nothing.

use serde::{Deserialize, Serialize};

use crate::store::{Kind, Store, StoreError};

/// Pointers of one pool that carry the same CAs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The pool that was asked for.
    pub pool: String,
    /// The CAs that the pointer says it carries, by the first 16 digits of their fingerprints: only those that the gateway knew then.
    /// `None`: the pointer says nothing, as those of other programs and of older releases do.
    pub authorities: Option<Vec<String>>,
    /// The CA that signed the certificate which the node accepted when it was seen last, in the same way.
    pub accepted: String,
    /// When one was seen first, seconds since 1970.
    pub first: u64,
    /// When one was seen last.
    pub last: u64,
    /// From where, then.
    pub peer: String,
}

/// All sightings, in no particular order.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<Sighting>, StoreError> {
    let mut all = Vec::new();
    for entry in store.list(Kind::Pointer).await? {
        all.push(serde_json::from_str(&entry.value).map_err(|source| StoreError::Entry {
            kind: Kind::Pointer.as_str(),
            id: entry.id,
            source,
        })?);
    }
    Ok(all)
}
