//! Enrolment: the allowlist, the names of nodes, and the TPMs that have attested.
//!
//! The allowlist has EKs, by their digests, and instances of clouds, by their identities. An entry endorses an EK. An instance is accepted by
//! the rules of its pool: an entry only gives it a name, and restricts its pools.
//!
//! A name belongs to one identity, from its first use (or from `ek add --name`) until an administrator says otherwise: another TPM
//! cannot take over a node's name.

use std::collections::BTreeSet;

use attest::{Claims, EkDigest, NodeIdentity};
use attest_pool::by_its_own_tpm;
use attest_store::{EntryKind, EntryTransaction, Store, StoreEntry, StoreError, Transact};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Prefix of a TPM's identity.
const TPM: &str = "tpm:";

/// Store entry of an allowlisted EK, or of an instance of a cloud that an import has named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkRecord {
    /// The node's name, if the administrator gave it one.
    pub name: Option<String>,
    /// Time when it was added, in seconds since 1970.
    pub added: u64,
    /// The pools that the machine may join; empty for all.
    pub pools: Vec<String>,
    /// The administrator's note on the machine. It decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Time when it was removed from the list, in seconds since 1970. From then on the EK is not endorsed, even if its manufacturer is
    /// trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<u64>,
}

impl EkRecord {
    /// Returns whether the administrator lets this machine join a pool.
    #[must_use]
    pub fn may_join(&self, pool: &str) -> bool {
        self.removed.is_none() && self.allows(pool)
    }

    fn allows(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|known| known == pool)
    }
}

/// Reason why a node cannot be enrolled, or not by this name.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The name is another node's.
    #[error("the name {name} belongs to {owner}, {claimant} cannot take it")]
    NameTaken {
        name: String,
        owner: String,
        /// Identity of the machine that asks for the name.
        claimant: String,
    },
    /// The node has another name.
    #[error("this machine is registered as {given}, but asks for the name {asked}")]
    OtherName {
        /// The name it has: given by the administrator, or its own first choice.
        given: String,
        /// The name it asks for.
        asked: String,
        /// Identity of the machine that asks for the name.
        claimant: String,
        /// The pools of its EK on the allowlist, if that gives it the name: forgetting the name changes nothing then.
        pools: Option<Vec<String>>,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl EnrolmentError {
    /// Returns an alert for the administrator if a known node attests with another key.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        match self {
            Self::NameTaken { name, owner, claimant } => Some(format!(
                "{claimant} attests and asks for the name {name}, which belongs to {owner}: the machine or its TPM was replaced, or another machine claims its name"
            )),
            Self::OtherName { .. } | Self::Store(_) => None,
        }
    }
}

fn read<T: DeserializeOwned>(kind: EntryKind, entry: StoreEntry) -> Result<T, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| StoreError::Entry {
        kind: kind.as_str(),
        id: entry.id,
        source,
    })
}

fn write<T: Serialize>(kind: EntryKind, id: String, value: &T) -> Result<StoreEntry, StoreError> {
    match serde_json::to_string(value) {
        Ok(value) => Ok(StoreEntry { id, value }),
        Err(source) => Err(StoreError::Entry {
            kind: kind.as_str(),
            id,
            source,
        }),
    }
}

/// Puts an EK on the allowlist. Its name, if it has one, becomes the node's name. `replace` takes the name from its current owner: that is
/// the explicit re-enrolment. Changes all of it, or nothing.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn allow(store: &dyn Store, ek: EkDigest, record: EkRecord, replace: bool) -> Result<(), EnrolmentError> {
    let identity = NodeIdentity::from_ek(ek);
    store
        .transact(move |transaction| {
            let note = listed(transaction, identity.as_str())?.and_then(|listed| listed.note);
            let record = EkRecord {
                note: record.note.clone().or(note),
                ..record.clone()
            };
            put_entry(transaction, identity.as_str(), &record)?;
            match &record.name {
                Some(name) => enrol(transaction, name, identity.as_str(), replace),
                None => Ok(()),
            }
        })
        .await
}

/// Gives a name to this identity, as its only name. With `replace`, removes another owner of the name and another name of the identity.
pub(super) fn enrol(transaction: &mut EntryTransaction<'_>, name: &str, identity: &str, replace: bool) -> Result<(), EnrolmentError> {
    transaction.fetch([(EntryKind::Name, name), (EntryKind::NameOf, identity)])?;
    let known = transaction.get(EntryKind::NameOf, identity)?;
    // First: whoever has another name takes this one from its node for no moment.
    if let Some(known) = known.filter(|known| known.value != name) {
        if !replace {
            return Err(EnrolmentError::OtherName {
                given: known.value,
                asked: name.to_owned(),
                claimant: identity.to_owned(),
                pools: None,
            });
        }
        let other = transaction.get(EntryKind::Name, &known.value)?;
        if other.is_some_and(|other| other.value == identity) {
            transaction.remove(EntryKind::Name, &known.value)?;
        }
    }
    let owner = transaction.get(EntryKind::Name, name)?;
    if let Some(owner) = owner.filter(|owner| owner.value != identity) {
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
        // The allowlist gives a name to one machine.
        if let Some(record) = listed(transaction, &owner.value)?.filter(|record| record.name.as_deref() == Some(name)) {
            put_entry(transaction, &owner.value, &EkRecord { name: None, ..record })?;
        }
    }
    for (kind, id, value) in [(EntryKind::Name, name, identity), (EntryKind::NameOf, identity, name)] {
        // Most nodes have their names already.
        if transaction.get(kind, id)?.is_none_or(|entry| entry.value != value) {
            let (id, value) = (id.to_owned(), value.to_owned());
            transaction.put(kind, StoreEntry { id, value })?;
        }
    }
    Ok(())
}

/// Returns the id of an identity's entry: an EK's digest, or the instance's identity.
fn entry_id(identity: &str) -> &str {
    identity.strip_prefix(TPM).unwrap_or(identity)
}

/// Returns the identity of the allowlist's entry with this id.
pub(super) fn identity_of(id: &str) -> String {
    if id.contains(':') { id.to_owned() } else { format!("{TPM}{id}") }
}

/// Returns the key of an identity's entry on the allowlist.
#[must_use]
pub fn entry_key(identity: &str) -> (EntryKind, &str) {
    (EntryKind::Ek, entry_id(identity))
}

/// Returns the EK's entry on the allowlist, if there is one.
///
/// # Errors
/// [`StoreError`].
pub fn allowlisted(transaction: &mut EntryTransaction<'_>, ek: EkDigest) -> Result<Option<EkRecord>, StoreError> {
    listed(transaction, NodeIdentity::from_ek(ek).as_str())
}

/// Returns the allowlist's entry of an identity, if there is one.
///
/// # Errors
/// [`StoreError`].
pub fn listed(transaction: &mut EntryTransaction<'_>, identity: &str) -> Result<Option<EkRecord>, StoreError> {
    transaction
        .get(EntryKind::Ek, entry_id(identity))?
        .map(|entry| read(EntryKind::Ek, entry))
        .transpose()
}

/// Returns the ids under which the allowlist may have the instance of these claims: its identity, and the one by its own TPM.
#[must_use]
pub fn instance_ids(claims: &Claims) -> Vec<String> {
    let own = claims.instance().and_then(|instance| by_its_own_tpm(instance.as_str()));
    claims.instance().map(ToString::to_string).into_iter().chain(own).collect()
}

/// Returns the allowlist's entry of the instance of these claims, if there is one.
///
/// # Errors
/// [`StoreError`].
pub fn listed_instance(transaction: &mut EntryTransaction<'_>, claims: &Claims) -> Result<Option<EkRecord>, StoreError> {
    for id in instance_ids(claims) {
        if let Some(record) = listed(transaction, &id)? {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// Returns the whole allowlist, by identity.
///
/// # Errors
/// [`StoreError`].
pub async fn allowlist(store: &dyn Store) -> Result<Vec<(String, EkRecord)>, StoreError> {
    let entries = store.list(EntryKind::Ek).await?;
    entries
        .into_iter()
        .map(|entry| Ok((identity_of(&entry.id), read(EntryKind::Ek, entry)?)))
        .collect()
}

/// Removes an identity from the allowlist; returns whether it was on it. The entry stays, so that the root of the TPM's manufacturer, or the
/// rules for the instance, do not let the machine into pools that the entry kept it out of.
///
/// # Errors
/// [`StoreError`].
pub async fn disallow(store: &dyn Store, identity: &str, at: u64) -> Result<bool, StoreError> {
    let identity = identity.to_owned();
    store
        .transact(move |transaction| {
            let listed = listed(transaction, &identity)?;
            let Some(record) = listed.filter(|record| record.removed.is_none()) else {
                return Ok(false);
            };
            let removed = EkRecord {
                removed: Some(at),
                ..record
            };
            put_entry(transaction, &identity, &removed).map(|()| true)
        })
        .await
}

/// Endorses an EK that was not removed for one more pool; with a name, if one is given.
///
/// # Errors
/// [`EnrolmentError`].
pub(super) fn endorse(
    transaction: &mut EntryTransaction<'_>,
    ek: EkDigest,
    pool: &str,
    name: Option<&str>,
    now: u64,
) -> Result<(), EnrolmentError> {
    let (identity, listed) = (ek.identity(), allowlisted(transaction, ek)?);
    let mut pools = listed.as_ref().map(|record| record.pools.clone()).unwrap_or_default();
    if !listed.as_ref().is_some_and(|record| record.allows(pool)) {
        pools.push(pool.to_owned());
    }
    let (known, note) = listed.map_or((None, None), |record| (record.name, record.note));
    let record = EkRecord {
        name: name.map(str::to_owned).or(known),
        added: now,
        pools,
        note,
        removed: None,
    };
    put_entry(transaction, &identity, &record)?;
    match name {
        Some(name) => enrol(transaction, name, &identity, false),
        None => Ok(()),
    }
}

/// Gives a machine a name, whatever name it has and whoever has the name.
///
/// # Errors
/// [`EnrolmentError`].
pub(super) fn rename(transaction: &mut EntryTransaction<'_>, name: &str, identity: &str) -> Result<(), EnrolmentError> {
    if let Some(record) = listed(transaction, identity)?
        && record.name.as_deref().is_some_and(|given| given != name)
    {
        let name = Some(name.to_owned());
        put_entry(transaction, identity, &EkRecord { name, ..record })?;
    }
    enrol(transaction, name, identity, true)
}

/// Writes the allowlist's entry of an identity.
pub(super) fn put_entry(transaction: &mut EntryTransaction<'_>, identity: &str, record: &EkRecord) -> Result<(), StoreError> {
    transaction.put(EntryKind::Ek, write(EntryKind::Ek, entry_id(identity).to_owned(), record)?)
}

/// Deletes an entry of the allowlist, even a removed one: the trusted roots, or the rules for the instance, decide again. Returns whether
/// there was one.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_entry(store: &dyn Store, identity: &str) -> Result<bool, StoreError> {
    store.remove(EntryKind::Ek, entry_id(identity)).await
}

/// Gives `identity` the name, unless the name has another owner or the identity another name. One endorsed TPM must not be able to collect
/// the names of machines that have yet to boot.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn give_name(store: &dyn Store, name: &str, identity: &NodeIdentity) -> Result<(), EnrolmentError> {
    let (name, identity) = (name.to_owned(), identity.clone());
    store
        .transact(move |transaction| enrol(transaction, &name, identity.as_str(), false))
        .await
}

/// Returns the name of a node that has attested: the one given by the administrator, or else the one it asks for, if that has no other
/// owner.
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
            claimant: identity.to_string(),
            pools: allowlisted
                .filter(|_| identity.as_str().starts_with(TPM))
                .map(|record| record.pools.clone()),
        });
    }
    let name = given.or(asked);
    let Some(name) = name else { return Ok(None) };
    enrol(transaction, name, identity.as_str(), false)?;
    Ok(Some(name.to_owned()))
}

/// Returns all names, with their owners.
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

/// Frees a name, and deletes its approval; returns whether the name was taken.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_name(store: &dyn Store, name: &str) -> Result<bool, StoreError> {
    forget_name_of(store, name, None).await
}

/// Frees a name like [`forget_name`], but only if it belongs to this identity, if one is given.
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

/// Returns the identities of all TPMs that have attested, with or without names. Instances' own TPMs are not among them: their attestations
/// are the instances'.
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
