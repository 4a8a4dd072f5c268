//! Instances of clouds, and to whom each belongs.
//!
//! What a cloud says of an instance can be heard by every process on it, and what AWS's identity document says, by whoever has a copy.
//! So an instance belongs to who first shows that it is his: to the TPM that attests beside it, or, where an identity document stands
//! alone, to who made up the secret that came with it. Anybody else is refused until an administrator says otherwise.

use attest::{Claims, NodeIdentity};
use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::store::{Entry, Kind, Store, StoreError};

/// What the store keeps of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceRecord {
    /// To whom it belongs: `tpm:<EkDigest>`, or `claimant:<SHA-256>`.
    pub holder: String,
    /// Since when, seconds since 1970.
    pub at: u64,
    /// The address that this came from.
    pub peer: String,
}

/// Why an instance's identity is not taken.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It belongs to another.
    #[error(
        "{instance} was claimed at {} from {}, and belongs to {}; it is now claimed by {claimant}",
        rfc3339(.first.at),
        .first.peer,
        .first.holder
    )]
    Claimed {
        /// The instance.
        instance: String,
        /// Who came first.
        first: InstanceRecord,
        /// Who comes now.
        claimant: String,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InstanceError {
    /// What the administrator has to look into.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        match self {
            Self::Claimed { instance, .. } => Some(format!("{instance} is claimed a second time: {self}")),
            Self::Store(_) => None,
        }
    }
}

/// Who shows the identity of an instance.
enum Claimant {
    /// Somebody that can be known again.
    Known(String),
    /// The instance itself, for this very challenge.
    Itself,
}

fn claimant(claims: &Claims) -> Claimant {
    match (claims.tpm(), claims.replayable_claimant()) {
        (Some(tpm), _) => Claimant::Known(NodeIdentity::of_tpm(tpm.ek_digest).to_string()),
        (None, Some(claimant)) => Claimant::Known(format!("claimant:{claimant}")),
        (None, None) => Claimant::Itself,
    }
}

/// Checks that the instance, if these claims are about one, belongs to who shows them; the first to do so gets it.
///
/// # Errors
/// [`InstanceError`].
pub async fn claim(store: &dyn Store, claims: &Claims, at: u64, peer: &str) -> Result<(), InstanceError> {
    let Some(instance) = claims.instance() else { return Ok(()) };
    let (first, claimant) = match claimant(claims) {
        Claimant::Known(holder) => {
            let record = InstanceRecord {
                holder: holder.clone(),
                at,
                peer: peer.to_owned(),
            };
            let entry = Entry {
                id: instance.to_string(),
                value: serde_json::to_string(&record).map_err(|source| unreadable(instance.as_str(), source))?,
            };
            (store.insert(Kind::Instance, entry).await?, holder)
        }
        Claimant::Itself => (
            store.get(Kind::Instance, instance.as_str()).await?,
            "the instance without a TPM".to_owned(),
        ),
    };
    let Some(first) = first else { return Ok(()) };
    let first = read(first)?;
    // Evidence that is bound to the challenge is more than what a claimant had to show, and less than a TPM.
    let weaker = claims.replayable_claimant().is_none() && claims.tpm().is_none() && first.holder.starts_with("claimant:");
    if weaker || first.holder == claimant {
        return Ok(());
    }
    Err(InstanceError::Claimed {
        instance: instance.to_string(),
        first,
        claimant,
    })
}

/// All instances that belong to somebody.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(String, InstanceRecord)>, StoreError> {
    let entries = store.list(Kind::Instance).await?;
    entries.into_iter().map(|entry| Ok((entry.id.clone(), read(entry)?))).collect()
}

/// Lets the next one have an instance; says whether it belonged to somebody.
///
/// # Errors
/// [`StoreError`].
pub async fn release(store: &dyn Store, instance: &str) -> Result<bool, StoreError> {
    store.remove(Kind::Instance, instance).await
}

fn read(entry: Entry) -> Result<InstanceRecord, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
}

fn unreadable(instance: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: Kind::Instance.as_str(),
        id: instance.to_owned(),
        source,
    }
}
