//! Changes to a machine by edits of its object in the cluster. They do the same as commands, and never override a command.
//!
//! Users who may edit objects need not be users who run commands. So an edit does not give back what a command took away: an EK removed
//! from the allowlist, or a revoked machine.

use std::collections::BTreeSet;

use attest::{EkDigest, NodeIdentity};
use attest_pool::by_its_own_tpm;
use attest_store::{EntryKind, Store, StoreEntry, StoreError, Transact};

use super::enrolment::{EkRecord, EnrolmentError, allowlisted, enrol, put_entry};
use super::revocations::{self, Revocation, read, unreadable};

/// Prefix of the reason of a revocation by an object, before the object's name.
const BY_OBJECT: &str = "attestednode ";

/// Result of an edit of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditResult {
    /// The edit changed these identities or names.
    Changed(BTreeSet<String>),
    /// The store was already in the requested state.
    Already,
    /// A command has decided otherwise; the edit has no effect.
    ByCommand,
}

/// Returns the reason of a revocation by this object.
fn reason_of(object: &str, why: Option<&str>) -> String {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("{BY_OBJECT}{object}{why}")
}

/// Returns whether the revocation was made by an edit of this object.
#[must_use]
pub fn is_by(revocation: &Revocation, object: &str) -> bool {
    let rest = revocation.reason.as_deref().and_then(|reason| reason.strip_prefix(BY_OBJECT));
    rest.and_then(|rest| rest.strip_prefix(object))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// Revokes a machine, found by its identity, with all its names and identities. Existing revocations keep their origin and reason.
///
/// # Errors
/// [`StoreError`].
pub async fn ban(store: &dyn Store, identity: &str, object: &str, why: Option<&str>, at: u64) -> Result<EditResult, StoreError> {
    let mut revoked = BTreeSet::new();
    loop {
        // Also what it was bound to since.
        let mut all = revocations::machine(store, identity).await?.all;
        let own: Vec<String> = all.iter().filter_map(|who| by_its_own_tpm(who)).collect();
        all.extend(own);
        let now = ban_all(store, &all, object, why, at).await?;
        if now.is_empty() {
            return Ok(if revoked.is_empty() {
                EditResult::Already
            } else {
                EditResult::Changed(revoked)
            });
        }
        revoked.extend(now);
    }
}

/// Revokes those that are not revoked yet, all or none, and returns them.
async fn ban_all(
    store: &dyn Store,
    all: &BTreeSet<String>,
    object: &str,
    why: Option<&str>,
    at: u64,
) -> Result<BTreeSet<String>, StoreError> {
    let (all, object, reason) = (all.clone(), object.to_owned(), reason_of(object, why));
    store
        .transact(move |transaction| {
            transaction.fetch(all.iter().map(|who| (EntryKind::Revoked, who.as_str())))?;
            let (mut free, mut own) = (BTreeSet::new(), BTreeSet::new());
            for who in &all {
                match transaction.get(EntryKind::Revoked, who)? {
                    None => drop(free.insert(who.clone())),
                    Some(entry) if is_by(&read(&entry)?, &object) => drop(own.insert(who.clone())),
                    Some(_) => {}
                }
            }
            if free.is_empty() {
                return Ok(free);
            }
            // Those that it has revoked before come back with them.
            let together: BTreeSet<String> = free.union(&own).cloned().collect();
            for who in &together {
                let revocation = Revocation {
                    at,
                    reason: Some(reason.clone()),
                    with: together.iter().filter(|other| *other != who).cloned().collect(),
                };
                let value = serde_json::to_string(&revocation).map_err(|source| unreadable(who, source))?;
                let id = who.clone();
                transaction.put(EntryKind::Revoked, StoreEntry { id, value })?;
            }
            Ok(free)
        })
        .await
}

/// Removes the revocations made by this object. Those made by a command stay.
///
/// # Errors
/// [`StoreError`].
pub async fn lift(store: &dyn Store, identity: &str, object: &str) -> Result<EditResult, StoreError> {
    let (identity, object) = (identity.to_owned(), object.to_owned());
    store
        .transact(move |transaction| {
            let Some(entry) = transaction.get(EntryKind::Revoked, &identity)? else {
                return Ok(EditResult::Already);
            };
            let revocation = read(&entry)?;
            if !is_by(&revocation, &object) {
                return Ok(EditResult::ByCommand);
            }
            let mut lifted = BTreeSet::from([identity.clone()]);
            for other in revocation.with {
                if let Some(entry) = transaction.get(EntryKind::Revoked, &other)?
                    && is_by(&read(&entry)?, &object)
                {
                    lifted.insert(other);
                }
            }
            for who in &lifted {
                transaction.remove(EntryKind::Revoked, who)?;
            }
            Ok(EditResult::Changed(lifted))
        })
        .await
}

/// Puts an EK on the allowlist for these pools, or changes its entry. The entry keeps its name unless another one is given.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn approve(store: &dyn Store, ek: EkDigest, name: Option<&str>, pools: &[String], at: u64) -> Result<EditResult, EnrolmentError> {
    let (name, pools) = (name.map(str::to_owned), pools.to_vec());
    store
        .transact(move |transaction| {
            let identity = NodeIdentity::from_ek(ek);
            let listed = allowlisted(transaction, ek)?;
            if listed.as_ref().is_some_and(|record| record.removed.is_some()) {
                return Ok(EditResult::ByCommand);
            }
            let record = EkRecord {
                name: name.clone().or_else(|| listed.as_ref().and_then(|record| record.name.clone())),
                added: listed.as_ref().map_or(at, |record| record.added),
                pools: pools.clone(),
                note: listed.as_ref().and_then(|record| record.note.clone()),
                removed: None,
            };
            if let Some(name) = &record.name {
                enrol(transaction, name, identity.as_str(), false)?;
            }
            if listed.as_ref() == Some(&record) {
                return Ok(EditResult::Already);
            }
            put_entry(transaction, identity.as_str(), &record)?;
            Ok(EditResult::Changed(BTreeSet::from([identity.to_string()])))
        })
        .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
