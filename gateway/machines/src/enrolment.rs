//! Who is known: allowlisted EKs, the names of nodes, and which TPMs have attested.
//!
//! A name belongs to one identity, from its first use (or from `ek add --name`) until an administrator says otherwise: another TPM
//! cannot take over a node's name.

use std::collections::BTreeSet;

use attest::{EkDigest, NodeIdentity};
use attest_store::{Entry, EntryKind, EntryTransaction, Store, StoreError, Transact};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How the identity of a TPM begins.
const TPM: &str = "tpm:";

/// What the store keeps of an allowlisted EK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkRecord {
    /// The node's name, if the administrator gave it one.
    pub name: Option<String>,
    /// When it was added, seconds since 1970.
    pub added: u64,
    /// The pools that the machine may join; none named is all.
    pub pools: Vec<String>,
    /// When it was taken off the list, seconds since 1970: then nobody vouches for it, whoever made its TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<u64>,
}

impl EkRecord {
    /// Whether the administrator lets this machine join a pool.
    #[must_use]
    pub fn may_join(&self, pool: &str) -> bool {
        self.removed.is_none() && self.allows(pool)
    }

    fn allows(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|known| known == pool)
    }
}

/// Why a node cannot be enrolled, or not by this name.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The name is another node's.
    #[error("the name {name} belongs to {owner}, {claimant} cannot take it")]
    NameTaken {
        name: String,
        owner: String,
        /// Who wants it.
        claimant: String,
    },
    /// The node has another name.
    #[error("this node is known as {given}, it asks to be {asked}")]
    OtherName {
        /// The name it has: given by the administrator, or its own first choice.
        given: String,
        /// The name it asks for.
        asked: String,
        /// The allowlist's entry, if that gives it the name: forgetting the name changes nothing then.
        listed: Option<EkRecord>,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl EnrolmentError {
    /// What the administrator has to look into: a node that is known comes with another key than it had.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        match self {
            Self::NameTaken { name, owner, claimant } => Some(format!(
                "{claimant} attests, and asks to be {name}, which is {owner}: the machine was replaced, or its TPM was, or another machine wants its name"
            )),
            Self::OtherName { .. } | Self::Store(_) => None,
        }
    }
}

fn read<T: DeserializeOwned>(kind: EntryKind, entry: Entry) -> Result<T, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| StoreError::Entry {
        kind: kind.as_str(),
        id: entry.id,
        source,
    })
}

fn write<T: Serialize>(kind: EntryKind, id: String, value: &T) -> Result<Entry, StoreError> {
    match serde_json::to_string(value) {
        Ok(value) => Ok(Entry { id, value }),
        Err(source) => Err(StoreError::Entry {
            kind: kind.as_str(),
            id,
            source,
        }),
    }
}

/// Puts an EK on the allowlist. Its name, if it has one, becomes the node's; `replace` takes the name from whoever had it: that is
/// the explicit re-enrolment. All of it, or nothing.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn allow(store: &dyn Store, ek: EkDigest, record: EkRecord, replace: bool) -> Result<(), EnrolmentError> {
    let identity = NodeIdentity::of_tpm(ek);
    store
        .transact(move |transaction| {
            list_ek(transaction, ek, &record)?;
            match &record.name {
                Some(name) => enrol(transaction, name, &identity, replace),
                None => Ok(()),
            }
        })
        .await
}

/// Writes that a name is this identity's, and that it has no other. Where another has the name, or it has another, that goes if it may be replaced.
pub(super) fn enrol(
    transaction: &mut EntryTransaction<'_>,
    name: &str,
    identity: &NodeIdentity,
    replace: bool,
) -> Result<(), EnrolmentError> {
    transaction.fetch([(EntryKind::Name, name), (EntryKind::NameOf, identity.as_str())])?;
    let known = transaction.get(EntryKind::NameOf, identity.as_str())?;
    // First: whoever has another name takes this one from its node for no moment.
    if let Some(known) = known.filter(|known| known.value != name) {
        if !replace {
            return Err(EnrolmentError::OtherName {
                given: known.value,
                asked: name.to_owned(),
                listed: None,
            });
        }
        let other = transaction.get(EntryKind::Name, &known.value)?;
        if other.is_some_and(|other| other.value == identity.as_str()) {
            transaction.remove(EntryKind::Name, &known.value)?;
        }
    }
    let owner = transaction.get(EntryKind::Name, name)?;
    if let Some(owner) = owner.filter(|owner| owner.value != identity.as_str()) {
        if !replace {
            return Err(EnrolmentError::NameTaken {
                name: owner.id,
                owner: owner.value,
                claimant: identity.to_string(),
            });
        }
        let known = transaction.get(EntryKind::NameOf, &owner.value)?;
        if known.is_some_and(|known| known.value == name) {
            transaction.remove(EntryKind::NameOf, &owner.value)?;
        }
    }
    for (kind, id, value) in [
        (EntryKind::Name, name, identity.as_str()),
        (EntryKind::NameOf, identity.as_str(), name),
    ] {
        // Most nodes have their names already.
        if transaction.get(kind, id)?.is_none_or(|entry| entry.value != value) {
            let (id, value) = (id.to_owned(), value.to_owned());
            transaction.put(kind, Entry { id, value })?;
        }
    }
    Ok(())
}

/// The EK's entry on the allowlist, if there is one.
///
/// # Errors
/// [`StoreError`].
pub fn allowlisted(transaction: &mut EntryTransaction<'_>, ek: EkDigest) -> Result<Option<EkRecord>, StoreError> {
    transaction
        .get(EntryKind::Ek, &ek.to_string())?
        .map(|entry| read(EntryKind::Ek, entry))
        .transpose()
}

/// The whole allowlist.
///
/// # Errors
/// [`StoreError`].
pub async fn allowlist(store: &dyn Store) -> Result<Vec<(String, EkRecord)>, StoreError> {
    let entries = store.list(EntryKind::Ek).await?;
    entries
        .into_iter()
        .map(|entry| Ok((entry.id.clone(), read(EntryKind::Ek, entry)?)))
        .collect()
}

/// Takes an EK off the allowlist; says whether it was on it. The entry stays, so that the root of the TPM's maker does not let the machine
/// into pools that the entry kept it out of.
///
/// # Errors
/// [`StoreError`].
pub async fn disallow(store: &dyn Store, ek: EkDigest, at: u64) -> Result<bool, StoreError> {
    store
        .transact(move |transaction| {
            let listed = allowlisted(transaction, ek)?;
            let Some(record) = listed.filter(|record| record.removed.is_none()) else {
                return Ok(false);
            };
            let removed = EkRecord {
                removed: Some(at),
                ..record
            };
            list_ek(transaction, ek, &removed).map(|()| true)
        })
        .await
}

/// Writes what the allowlist says of an EK.
pub(super) fn list_ek(transaction: &mut EntryTransaction<'_>, ek: EkDigest, record: &EkRecord) -> Result<(), StoreError> {
    transaction.put(EntryKind::Ek, write(EntryKind::Ek, ek.to_string(), record)?)
}

/// Forgets an entry of the allowlist, also one that was taken off it: what the roots say of the EK counts again. Says whether there was
/// one.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_entry(store: &dyn Store, ek: EkDigest) -> Result<bool, StoreError> {
    store.remove(EntryKind::Ek, &ek.to_string()).await
}

/// Gives `identity` the name, if it is nobody else's and the identity has no other: one endorsed TPM must not be able to collect the
/// names of machines that have yet to boot.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn give_name(store: &dyn Store, name: &str, identity: &NodeIdentity) -> Result<(), EnrolmentError> {
    let (name, identity) = (name.to_owned(), identity.clone());
    store.transact(move |transaction| enrol(transaction, &name, &identity, false)).await
}

/// The name of a node that has attested: what the administrator called it, or else what it asks for and nobody else has.
///
/// # Errors
/// [`EnrolmentError`].
pub fn settle_name(
    transaction: &mut EntryTransaction<'_>,
    allowlisted: Option<&EkRecord>,
    asked: Option<&str>,
    identity: &NodeIdentity,
) -> Result<Option<String>, EnrolmentError> {
    let given = allowlisted.and_then(|record| record.name.as_deref());
    if let (Some(given), Some(asked)) = (given, asked)
        && given != asked
    {
        return Err(EnrolmentError::OtherName {
            given: given.to_owned(),
            asked: asked.to_owned(),
            listed: allowlisted.cloned(),
        });
    }
    let name = given.or(asked);
    let Some(name) = name else { return Ok(None) };
    enrol(transaction, name, identity, false)?;
    Ok(Some(name.to_owned()))
}

/// All names, and whose they are.
///
/// # Errors
/// [`StoreError`].
pub async fn names(store: &dyn Store) -> Result<Vec<(String, String)>, StoreError> {
    Ok(store
        .list(EntryKind::Name)
        .await?
        .into_iter()
        .map(|entry| (entry.id, entry.value))
        .collect())
}

/// Frees a name, and forgets what was approved for it; says whether it was taken.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_name(store: &dyn Store, name: &str) -> Result<bool, StoreError> {
    forget_name_of(store, name, None).await
}

/// As [`forget_name`], if it is this identity's, where one is said.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_name_of(store: &dyn Store, name: &str, identity: Option<&str>) -> Result<bool, StoreError> {
    let (name, identity) = (name.to_owned(), identity.map(str::to_owned));
    store
        .transact(move |transaction| {
            let owner = transaction.get(EntryKind::Name, &name)?;
            if let Some(identity) = &identity
                && owner.as_ref().is_none_or(|owner| owner.value != *identity)
            {
                return Ok(false);
            }
            let was_taken = transaction.remove(EntryKind::Name, &name)?;
            if let Some(owner) = owner
                && transaction
                    .get(EntryKind::NameOf, &owner.value)?
                    .is_some_and(|known| known.value == name)
            {
                transaction.remove(EntryKind::NameOf, &owner.value)?;
            }
            Ok(transaction.remove(EntryKind::Approval, &name)? || was_taken)
        })
        .await
}

/// The TPMs that have attested, as identities, whether they have names or not; of instances' own, that the instances have attested says it.
///
/// # Errors
/// [`StoreError`].
pub async fn attested_tpms(store: &dyn Store) -> Result<BTreeSet<String>, StoreError> {
    let entries = store.list(EntryKind::Clock).await?;
    Ok(entries.into_iter().map(|entry| entry.id).filter(|id| id.starts_with(TPM)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
