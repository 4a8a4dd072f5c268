//! What somebody wants of a machine who edits its object in the cluster: the same as by a command, and never more than a command has left open.
//!
//! Whoever may edit objects is not who runs commands. So what a command has taken away, an edit does not give back: not an EK that was taken off the
//! allowlist, nor a machine that was revoked.

use std::collections::BTreeSet;

use attest::{EkDigest, NodeIdentity};
use attest_store::{Anew, EntryKind, Reading, Rewrite, Store, StoreError};

use super::enrolment::{EkRecord, EnrolmentError, allowlisted, listing, naming};
use super::instances::by_its_own_tpm;
use super::revocations::{self, Revocation, read, unreadable};

/// What begins the reason of a revocation by an object, before its name.
const BY_OBJECT: &str = "attestednode ";

/// What became of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// This was changed.
    Changed(BTreeSet<String>),
    /// It was so already.
    Already,
    /// A command has said otherwise.
    ByCommand,
}

/// The reason of a revocation by this object.
fn reason_of(object: &str, why: Option<&str>) -> String {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("{BY_OBJECT}{object}{why}")
}

/// Whether it was made by an edit of this object.
#[must_use]
pub fn is_by(revocation: &Revocation, object: &str) -> bool {
    let rest = revocation.reason.as_deref().and_then(|reason| reason.strip_prefix(BY_OBJECT));
    rest.and_then(|rest| rest.strip_prefix(object))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(": "))
}

/// Revokes a machine, found by its identity, and all that it is known by. What is revoked already stays as it is: by whom, and why.
///
/// # Errors
/// [`StoreError`].
pub async fn ban(store: &dyn Store, identity: &str, object: &str, why: Option<&str>, at: u64) -> Result<Done, StoreError> {
    let mut revoked = BTreeSet::new();
    loop {
        // Also what it was bound to since.
        let mut all = revocations::machine(store, identity).await?.all;
        let own: Vec<String> = all.iter().filter_map(|who| by_its_own_tpm(who)).collect();
        all.extend(own);
        let now = ban_all(store, &all, object, why, at).await?;
        if now.is_empty() {
            return Ok(if revoked.is_empty() {
                Done::Already
            } else {
                Done::Changed(revoked)
            });
        }
        revoked.extend(now);
    }
}

/// Revokes those of them that are not, all or none; gives which.
async fn ban_all(
    store: &dyn Store,
    all: &BTreeSet<String>,
    object: &str,
    why: Option<&str>,
    at: u64,
) -> Result<BTreeSet<String>, StoreError> {
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        reading.soon(EntryKind::Revoked, all.iter().map(String::as_str));
        let (mut free, mut own) = (BTreeSet::new(), BTreeSet::new());
        for who in all {
            match reading.get(EntryKind::Revoked, who).await? {
                None => drop(free.insert(who.clone())),
                Some(entry) if is_by(&read(&entry)?, object) => drop(own.insert(who.clone())),
                Some(_) => {}
            }
        }
        if free.is_empty() {
            return Ok(free);
        }
        // Those that it has revoked before come back with them.
        let together: BTreeSet<String> = free.union(&own).cloned().collect();
        let rewrite = |who: &String| {
            let revocation = Revocation {
                at,
                reason: Some(reason_of(object, why)),
                with: together.iter().filter(|other| *other != who).cloned().collect(),
            };
            let value = serde_json::to_string(&revocation).map_err(|source| unreadable(who, source))?;
            let (kind, id) = (EntryKind::Revoked, who.clone());
            Ok::<_, StoreError>(Rewrite {
                kind,
                id,
                value: Some(value),
            })
        };
        let rewrites: Vec<Rewrite> = together.iter().map(rewrite).collect::<Result<_, _>>()?;
        match store.rewrite(reading.seen().clone(), rewrites).await {
            Ok(()) => return Ok(free),
            Err(error) => anew.again(error)?,
        }
    }
}

/// Takes back what this object has revoked; what a command has revoked, before or since, stays so.
///
/// # Errors
/// [`StoreError`].
pub async fn lift(store: &dyn Store, identity: &str, object: &str) -> Result<Done, StoreError> {
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let Some(entry) = reading.get(EntryKind::Revoked, identity).await? else {
            return Ok(Done::Already);
        };
        let revocation = read(&entry)?;
        if !is_by(&revocation, object) {
            return Ok(Done::ByCommand);
        }
        let mut lifted = BTreeSet::from([identity.to_owned()]);
        for other in revocation.with {
            if let Some(entry) = reading.get(EntryKind::Revoked, &other).await?
                && is_by(&read(&entry)?, object)
            {
                lifted.insert(other);
            }
        }
        let gone = |who: &String| Rewrite {
            kind: EntryKind::Revoked,
            id: who.clone(),
            value: None,
        };
        match store.rewrite(reading.seen().clone(), lifted.iter().map(gone).collect()).await {
            Ok(()) => return Ok(Done::Changed(lifted)),
            Err(error) => anew.again(error)?,
        }
    }
}

/// Puts an EK on the allowlist for these pools, or changes what stands there; a name that it has stays unless another is said.
///
/// # Errors
/// [`EnrolmentError`].
pub async fn approve(store: &dyn Store, ek: EkDigest, name: Option<&str>, pools: &[String], at: u64) -> Result<Done, EnrolmentError> {
    let identity = NodeIdentity::of_tpm(ek);
    let mut anew = Anew::default();
    loop {
        let mut reading = Reading::of(store);
        let listed = allowlisted(&mut reading, ek).await?;
        if listed.as_ref().is_some_and(|record| record.removed.is_some()) {
            return Ok(Done::ByCommand);
        }
        let record = EkRecord {
            name: name
                .map(str::to_owned)
                .or_else(|| listed.as_ref().and_then(|record| record.name.clone())),
            added: listed.as_ref().map_or(at, |record| record.added),
            pools: pools.to_vec(),
            removed: None,
        };
        let mut rewrites = vec![listing(ek, &record)?];
        if let Some(name) = &record.name {
            rewrites.extend(naming(&mut reading, name, &identity, false).await?);
        }
        if listed.as_ref() == Some(&record) {
            return Ok(Done::Already);
        }
        match store.rewrite(reading.seen().clone(), rewrites).await {
            Ok(()) => return Ok(Done::Changed(BTreeSet::from([identity.to_string()]))),
            Err(error) => anew.again(error)?,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
