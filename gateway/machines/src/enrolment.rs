//! Who is known: allowlisted EKs, the names of nodes, and which TPMs have attested.
//!
//! A name belongs to one identity, from its first use (or from `ek add --name`) until an administrator says otherwise: another TPM
//! cannot take over a node's name.

use std::collections::BTreeSet;

use attest::{EkDigest, NodeIdentity};
use attest_store::{Anew, Claim, Entry, EntryKind, Pending, Reading, Rewrite, Store, StoreError};
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
    /// The name, or the machine's other one, is being claimed by a decision that is not recorded yet, and may come to nothing.
    #[error("the name {name} is being claimed by a machine that attests at this moment: try again")]
    Undecided { name: String },
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
            Self::OtherName { .. } | Self::Undecided { .. } | Self::Store(_) => None,
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
    let listed = listing(ek, &record)?;
    enrol(store, &NodeIdentity::of_tpm(ek), record.name.as_deref(), Some(listed), replace).await
}

/// Gives an identity a name, and writes what else there is, at once.
async fn enrol(
    store: &dyn Store,
    identity: &NodeIdentity,
    name: Option<&str>,
    listed: Option<Rewrite>,
    replace: bool,
) -> Result<(), EnrolmentError> {
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let mut rewrites: Vec<Rewrite> = listed.clone().into_iter().collect();
        if let Some(name) = name {
            rewrites.extend(naming(&mut reading, name, identity, replace).await?);
        }
        match store.rewrite(reading.seen().clone(), rewrites).await {
            Ok(()) => return Ok(()),
            Err(error) => anew.again(error)?,
        }
    }
}

/// What has to be written so that a name is this identity's, and it has no other. Where another has it, or it has another, that goes if it may be
/// replaced.
pub(super) async fn naming(
    reading: &mut Reading<'_>,
    name: &str,
    identity: &NodeIdentity,
    replace: bool,
) -> Result<Vec<Rewrite>, EnrolmentError> {
    let rewrite = |kind, id: &str, value: Option<&str>| Rewrite {
        kind,
        id: id.to_owned(),
        value: value.map(str::to_owned),
    };
    let mut rewrites = vec![
        rewrite(EntryKind::Name, name, Some(identity.as_str())),
        rewrite(EntryKind::NameOf, identity.as_str(), Some(name)),
    ];
    let owner = reading.get(EntryKind::Name, name).await?;
    if let Some(owner) = owner.filter(|owner| owner.value != identity.as_str()) {
        if !replace {
            return Err(taken(reading.store, &owner, identity).await);
        }
        if reading
            .get(EntryKind::NameOf, &owner.value)
            .await?
            .is_some_and(|known| known.value == name)
        {
            rewrites.push(rewrite(EntryKind::NameOf, &owner.value, None));
        }
    }
    let known = reading.get(EntryKind::NameOf, identity.as_str()).await?;
    if let Some(known) = known.filter(|known| known.value != name) {
        if !replace {
            return Err(other_name(reading.store, known, name).await);
        }
        let other = reading.get(EntryKind::Name, &known.value).await?;
        if other.is_some_and(|other| other.value == identity.as_str()) {
            rewrites.push(rewrite(EntryKind::Name, &known.value, None));
        }
    }
    Ok(rewrites)
}

/// Says that [`allowlisted`] will be asked about this one.
pub fn soon(reading: &mut Reading<'_>, ek: EkDigest) {
    reading.soon(EntryKind::Ek, [ek.to_string().as_str()]);
}

/// The EK's entry on the allowlist, if there is one.
///
/// # Errors
/// [`StoreError`].
pub async fn allowlisted(reading: &mut Reading<'_>, ek: EkDigest) -> Result<Option<EkRecord>, StoreError> {
    reading
        .get(EntryKind::Ek, &ek.to_string())
        .await?
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
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let listed = allowlisted(&mut reading, ek).await?;
        let Some(record) = listed.filter(|record| record.removed.is_none()) else {
            return Ok(false);
        };
        let removed = EkRecord {
            removed: Some(at),
            ..record
        };
        let rewrites = vec![listing(ek, &removed)?];
        match store.rewrite(reading.seen().clone(), rewrites).await {
            Ok(()) => return Ok(true),
            Err(error) => anew.again(error)?,
        }
    }
}

/// What has to be written so that this is what the allowlist says of an EK.
pub(super) fn listing(ek: EkDigest, record: &EkRecord) -> Result<Rewrite, StoreError> {
    let Entry { id, value } = write(EntryKind::Ek, ek.to_string(), record)?;
    Ok(Rewrite {
        kind: EntryKind::Ek,
        id,
        value: Some(value),
    })
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
    enrol(store, identity, Some(name), None, false).await
}

/// As [`give_name`], for a decision that is under way: the name is the identity's if that is recorded.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn claim_name(reading: &mut Reading<'_>, name: &str, identity: &NodeIdentity, decision: &Pending) -> Result<(), EnrolmentError> {
    let [entry, reverse] = both_ways(name, identity);
    // First: whoever has another name takes this one from its node for no moment.
    if let Some(known) = reading
        .get(EntryKind::NameOf, &reverse.id)
        .await?
        .filter(|known| known.value != name)
    {
        return Err(other_name(reading.store, known, name).await);
    }
    let owner = claim(reading, EntryKind::Name, entry, decision).await?;
    if let Some(owner) = owner.filter(|owner| owner.value != identity.as_str()) {
        reading.note(EntryKind::Name, &owner);
        return Err(taken(reading.store, &owner, identity).await);
    }
    // It has no other, or this is [`StoreError::Changed`].
    claim(reading, EntryKind::NameOf, reverse, decision).await?;
    Ok(())
}

/// Whose a name is, and which name an identity has.
fn both_ways(name: &str, identity: &NodeIdentity) -> [Entry; 2] {
    [(name, identity.as_str()), (identity.as_str(), name)].map(|(id, value)| Entry {
        id: id.to_owned(),
        value: value.to_owned(),
    })
}

async fn taken(store: &dyn Store, owner: &Entry, claimant: &NodeIdentity) -> EnrolmentError {
    let refused = EnrolmentError::NameTaken {
        name: owner.id.clone(),
        owner: owner.value.clone(),
        claimant: claimant.to_string(),
    };
    decided(store, EntryKind::Name, owner, &owner.id).await.err().unwrap_or(refused)
}

async fn other_name(store: &dyn Store, known: Entry, asked: &str) -> EnrolmentError {
    let undecided = decided(store, EntryKind::NameOf, &known, asked).await.err();
    undecided.unwrap_or_else(|| EnrolmentError::OtherName {
        given: known.value,
        asked: asked.to_owned(),
        listed: None,
    })
}

/// That an entry in the way of a name stays: it may be that of a decision that comes to nothing.
async fn decided(store: &dyn Store, kind: EntryKind, entry: &Entry, name: &str) -> Result<(), EnrolmentError> {
    if store.stands(kind, entry.clone()).await? {
        return Ok(());
    }
    Err(EnrolmentError::Undecided { name: name.to_owned() })
}

/// Writes an entry for a decision if there is none; gives the one there is otherwise.
async fn claim(reading: &mut Reading<'_>, kind: EntryKind, entry: Entry, decision: &Pending) -> Result<Option<Entry>, StoreError> {
    let claim = Claim { entry, instead_of: None };
    loop {
        let found = reading.claim(kind, claim.clone(), decision).await?;
        // What is there by another decision stands for this one, too, unless that came to nothing meanwhile.
        if found.as_ref() != Some(&claim.entry) || reading.share(kind, claim.entry.clone(), decision).await? {
            return Ok(found);
        }
    }
}

/// The name of a node that has attested: what the administrator called it, or else what it asks for and nobody else has.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn settle_name(
    reading: &mut Reading<'_>,
    allowlisted: Option<&EkRecord>,
    asked: Option<&str>,
    identity: &NodeIdentity,
    decision: &Pending,
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
    claim_name(reading, name, identity, decision).await?;
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
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let gone = |kind, id: &str| Rewrite {
            kind,
            id: id.to_owned(),
            value: None,
        };
        let mut rewrites = Vec::new();
        let owner = reading.get(EntryKind::Name, name).await?;
        if identity.is_some_and(|identity| owner.as_ref().is_none_or(|owner| owner.value != identity)) {
            return Ok(false);
        }
        if let Some(owner) = owner {
            rewrites.push(gone(EntryKind::Name, name));
            let known = reading.get(EntryKind::NameOf, &owner.value).await?;
            if known.is_some_and(|known| known.value == name) {
                rewrites.push(gone(EntryKind::NameOf, &owner.value));
            }
        }
        if reading.get(EntryKind::Approval, name).await?.is_some() {
            rewrites.push(gone(EntryKind::Approval, name));
        }
        if rewrites.is_empty() {
            return Ok(false);
        }
        match store.rewrite(reading.seen().clone(), rewrites).await {
            Ok(()) => return Ok(true),
            Err(error) => anew.again(error)?,
        }
    }
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
