//! Who gets nothing any more, whatever it shows: one denylist over names and identities.
//!
//! A machine is known by its node's name, by its TPM and by its cloud, and any of the three may be all that it shows: what is revoked is
//! everything that is known of it. The list is asked before anything is earned, and whenever a ticket or a certificate is used.

use std::collections::{BTreeMap, BTreeSet};

use attest::challenge::is_node_name;
use attest::{EkDigest, NodeIdentity};
use attest_store::{Anew, Entry, EntryKind, Reading, Rewrite, Store, StoreError};
use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};

use super::approvals::approvals;
use super::instances::{self, by_its_own_tpm, is_by_its_own_tpm};

/// Prefixes of identities that clouds give, as [`NodeIdentity`] spells them.
const CLOUDS: [&str; 5] = ["gcp:", "aws:", "aws-nitrotpm:", "azure:", "azure-vtpm:"];
/// Longest identity that a cloud gives: a subscription and a machine have 36 characters each, a project of Google 30 and some.
const IDENTITY_LIMIT_BYTES: usize = 256;

/// What the store keeps of whoever is revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// When, seconds since 1970.
    pub at: u64,
    /// Why, as the administrator says.
    pub reason: Option<String>,
    /// The other names and identities that were revoked with it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<String>,
}

/// Why somebody gets nothing.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The administrator has revoked it.
    #[error(
        "{who} was revoked at {}{}",
        rfc3339(.revocation.at),
        .revocation.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default()
    )]
    Revoked {
        /// Its name or identity.
        who: String,
        /// When and why.
        revocation: Revocation,
    },
    /// Who is revoked has claimed this name, or this is one that a machine has claimed, for a decision that is not recorded yet, and may come to nothing.
    #[error("whether {bound} belongs to {who}, which is revoked, is not decided yet")]
    Undecided {
        /// A name, or an identity.
        bound: String,
        /// The identity, or the name.
        who: String,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How an administrator names a machine: a node's name, an EK's digest with or without `tpm:`, an instance of a cloud. `None` is none
/// of these.
#[must_use]
pub fn named(text: &str) -> Option<String> {
    let digest = text.strip_prefix("tpm:").unwrap_or(text).to_ascii_lowercase();
    if let Ok(digest) = digest.parse::<EkDigest>() {
        return Some(NodeIdentity::of_tpm(digest).to_string());
    }
    let instance = CLOUDS.iter().find_map(|cloud| text.strip_prefix(cloud));
    let is_instance =
        |rest: &str| !rest.is_empty() && text.len() <= IDENTITY_LIMIT_BYTES && rest.bytes().all(|byte| byte.is_ascii_graphic());
    (is_node_name(text) || instance.is_some_and(is_instance)).then(|| text.to_owned())
}

/// A machine, by everything that the store knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its names and identities, the one asked for among them.
    pub all: BTreeSet<String>,
    /// Whether there ever was such a machine, or it is expected.
    pub seen: bool,
}

/// What the store knows of a machine that is named as [`named`] gives it.
///
/// # Errors
/// [`StoreError`].
pub async fn machine(store: &dyn Store, who: &str) -> Result<Machine, StoreError> {
    let (instances, tpms) = (instances::list(store).await?, instances::tpms(store).await?);
    let approvals = approvals(store).await?;
    let mut all = BTreeSet::new();
    let mut seen = false;
    let mut next = vec![who.to_owned()];
    while let Some(who) = next.pop() {
        if !all.insert(who.clone()) {
            continue;
        }
        for kind in [EntryKind::Name, EntryKind::NameOf] {
            next.extend(store.get(kind, &who).await?.map(|entry| entry.value));
        }
        for (name, approval) in &approvals {
            let identities = [Some(&approval.identity), approval.instance.as_ref()];
            if *name == who {
                next.extend(identities.into_iter().flatten().cloned());
                seen = true;
            } else if identities.contains(&Some(&who)) {
                next.push(name.clone());
            }
        }
        next.extend(by_its_own_tpm(&who));
        // Beside an instance that belongs to its own TPM, too: the TPM has attested as this machine's.
        for (tpm, instance) in &tpms {
            if *instance == who {
                next.push(tpm.clone());
            } else if *tpm == who {
                next.push(instance.clone());
            }
        }
        for (instance, record) in &instances {
            // Whoever made up a secret is no machine.
            if *instance == who && record.holder.starts_with("tpm:") {
                next.push(record.holder.clone());
            }
            if record.holder == who && who.starts_with("tpm:") {
                next.push(instance.clone());
            }
            if by_its_own_tpm(instance).is_some_and(|instance| instance == who) {
                next.push(instance.clone());
            }
            seen |= *instance == who;
        }
        seen |= store.get(EntryKind::Kubelet, &who).await?.is_some() || store.get(EntryKind::Clock, &who).await?.is_some();
        if let Some(digest) = who.strip_prefix("tpm:") {
            seen |= store.get(EntryKind::Ek, digest).await?.is_some();
        }
    }
    let names = all.iter().any(|who| is_node_name(who)) && all.len() > 1;
    Ok(Machine { all, seen: seen || names })
}

/// Revokes all that a machine is known by, and each instance also by its own TPM: nothing is given to it from now on, whatever it shows.
/// Earlier revocations are replaced.
///
/// # Errors
/// [`StoreError`].
pub async fn revoke(store: &dyn Store, all: &BTreeSet<String>, at: u64, reason: Option<&str>) -> Result<(), StoreError> {
    let own = all.iter().filter_map(|who| by_its_own_tpm(who));
    let all: BTreeSet<String> = all.iter().cloned().chain(own).collect();
    let entries = all.iter().map(|who| {
        let revocation = Revocation {
            at,
            reason: reason.map(str::to_owned),
            with: all.iter().filter(|other| *other != who).cloned().collect(),
        };
        let value = serde_json::to_string(&revocation).map_err(|source| unreadable(who, source))?;
        Ok::<_, StoreError>(Entry { id: who.clone(), value })
    });
    // All or none.
    store
        .change(EntryKind::Revoked, Vec::new(), entries.collect::<Result<_, _>>()?)
        .await
        .map(drop)
}

/// Revokes a machine that was found as `who` ([`machine`]), as [`revoke`]; also what it was bound to since: what is revoked is bound to nothing more.
/// Gives all that is revoked.
///
/// # Errors
/// [`StoreError`].
pub async fn revoke_machine(
    store: &dyn Store,
    who: &str,
    mut found: BTreeSet<String>,
    at: u64,
    reason: Option<&str>,
) -> Result<BTreeSet<String>, StoreError> {
    loop {
        revoke(store, &found, at, reason).await?;
        let known = machine(store, who).await?.all;
        if known.is_subset(&found) {
            return Ok(found);
        }
        found.extend(known);
    }
}

/// Takes a revocation back, with those that were made together with it unless `only` this one is meant; gives what was revoked and is no
/// longer. What is revoked anew meanwhile stays so.
///
/// # Errors
/// [`StoreError`], [`StoreError::Changed`] if it was revoked anew meanwhile.
pub async fn restore(store: &dyn Store, who: &str, only: bool) -> Result<BTreeSet<String>, StoreError> {
    let (mut anew, mut meant) = (Anew::default(), None);
    loop {
        let mut reading = Reading::of(store);
        let Some(entry) = reading.get(EntryKind::Revoked, who).await? else {
            return Ok(BTreeSet::new());
        };
        let Revocation { with, .. } = read(&entry)?;
        if *meant.get_or_insert_with(|| entry.value.clone()) != entry.value {
            let (kind, id) = (EntryKind::Revoked.as_str(), who.to_owned());
            return Err(StoreError::Changed { kind, id });
        }
        let mut restored = BTreeSet::from([who.to_owned()]);
        for other in with.into_iter().filter(|_| !only) {
            // One that was revoked once more since, with others, is theirs.
            if let Some(entry) = reading.get(EntryKind::Revoked, &other).await?
                && read(&entry)?.with.contains(who)
            {
                restored.insert(other);
            }
        }
        let gone = |who: &String| Rewrite {
            kind: EntryKind::Revoked,
            id: who.clone(),
            value: None,
        };
        match store.rewrite(reading.seen().clone(), restored.iter().map(gone).collect()).await {
            Ok(()) => return Ok(restored),
            Err(error) => anew.again(error)?,
        }
    }
}

/// Everybody who is revoked, by name or identity.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<BTreeMap<String, Revocation>, StoreError> {
    let entries = store.list(EntryKind::Revoked).await?;
    entries.into_iter().map(|entry| Ok((entry.id.clone(), read(&entry)?))).collect()
}

/// Refuses whoever is revoked: by the names and identities that it comes with, and by those that they are known to go with, so that no
/// machine escapes by not saying its name. What it goes with by a decision that may come to nothing refuses nobody for good.
///
/// # Errors
/// [`RevocationError`].
pub async fn refuse(reading: &mut Reading<'_>, names: &[&str], identities: &[&str]) -> Result<(), RevocationError> {
    soon(reading, names, identities);
    for who in all_of(names, identities) {
        if let Some(entry) = reading.get(EntryKind::Revoked, &who).await? {
            return Err(revoked(&entry)?);
        }
    }
    let by_name = refuse_bound(reading, EntryKind::Name, names).await?;
    let by_identity = refuse_bound(reading, EntryKind::NameOf, identities).await?;
    refuse_by_document(reading, identities).await?;
    by_name.or(by_identity).map_or(Ok(()), Err)
}

/// Says that [`refuse`] will be asked about these.
pub fn soon(reading: &mut Reading<'_>, names: &[&str], identities: &[&str]) {
    reading.soon(EntryKind::Revoked, all_of(names, identities).iter().map(String::as_str));
    reading.soon(EntryKind::Name, names.iter().copied());
    reading.soon(EntryKind::NameOf, identities.iter().copied());
}

/// By what somebody may be revoked that comes with these.
fn all_of(names: &[&str], identities: &[&str]) -> BTreeSet<String> {
    let own = identities.iter().filter_map(|identity| by_its_own_tpm(identity));
    names.iter().chain(identities).map(|who| (*who).to_owned()).chain(own).collect()
}

/// Refuses whoever goes with one who is revoked; gives what is not decided.
async fn refuse_bound(reading: &mut Reading<'_>, kind: EntryKind, ids: &[&str]) -> Result<Option<RevocationError>, RevocationError> {
    let mut undecided = None;
    for id in ids {
        let Some(bound) = reading.get(kind, id).await? else { continue };
        let who = bound.value.clone();
        let Some(entry) = reading.get(EntryKind::Revoked, &who).await? else {
            continue;
        };
        if reading.store.stands(kind, bound).await? {
            return Err(revoked(&entry)?);
        }
        let bound = (*id).to_owned();
        undecided = Some(RevocationError::Undecided { bound, who });
    }
    Ok(undecided)
}

/// Refuses an instance that shows its own TPM alone, if it was revoked by its document: whose it is, is not said there. Today both are revoked; earlier
/// releases have revoked the one that they knew.
async fn refuse_by_document(reading: &mut Reading<'_>, identities: &[&str]) -> Result<(), RevocationError> {
    if !identities.iter().any(|identity| is_by_its_own_tpm(identity)) {
        return Ok(());
    }
    for entry in reading.store.list(EntryKind::Revoked).await? {
        if by_its_own_tpm(&entry.id).is_some_and(|own| identities.contains(&own.as_str())) {
            reading.note(EntryKind::Revoked, &entry);
            return Err(revoked(&entry)?);
        }
    }
    Ok(())
}

fn revoked(entry: &Entry) -> Result<RevocationError, StoreError> {
    Ok(RevocationError::Revoked {
        who: entry.id.clone(),
        revocation: read(entry)?,
    })
}

/// Remembers that a kubelet with this name was there: its name is in no other entry.
///
/// # Errors
/// [`StoreError`].
pub async fn note_kubelet(store: &dyn Store, name: &str, at: u64) -> Result<(), StoreError> {
    let entry = Entry {
        id: name.to_owned(),
        value: at.to_string(),
    };
    store.insert(EntryKind::Kubelet, entry).await.map(drop)
}

pub(super) fn read(entry: &Entry) -> Result<Revocation, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
}

pub(super) fn unreadable(who: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: EntryKind::Revoked.as_str(),
        id: who.to_owned(),
        source,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::enrolment::give_name;
    use attest_store::Embedded;

    #[test]
    fn a_machine_is_named_by_name_digest_or_instance() {
        let digest = "ab".repeat(32);
        let tpm = format!("tpm:{digest}");
        for (text, expected) in [
            ("worker-7", Some("worker-7")),
            (digest.as_str(), Some(tpm.as_str())),
            (&digest.to_ascii_uppercase(), Some(&tpm)),
            (&tpm, Some(&tpm)),
            ("tpm:abc", None),
            ("aws:123456789012/i-1", Some("aws:123456789012/i-1")),
            ("aws-nitrotpm:i-1", Some("aws-nitrotpm:i-1")),
            ("aws-enclave:i-1", None),
            ("azure-vtpm:1", Some("azure-vtpm:1")),
            ("gcp:project/1", Some("gcp:project/1")),
            ("azure:", None),
            ("kubelet:worker-7", None),
            ("system:node:worker-7", None),
            ("", None),
            ("two words", None),
        ] {
            assert_eq!(named(text).as_deref(), expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn attack_28_what_a_machine_is_bound_to_while_it_is_revoked_is_revoked_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let instance = "gcp:p/1";
        let found = machine(&store, instance).await.unwrap().all;
        // Its TPM comes beside it, and has a name, when it was looked for.
        let tpm = NodeIdentity::of_tpm("ab".repeat(32).parse().unwrap());
        let value = serde_json::json!({ "holder": tpm, "at": 1, "peer": "::1" }).to_string();
        let id = instance.to_owned();
        store.put(EntryKind::Instance, Entry { id, value }).await.unwrap();
        give_name(&store, "worker-7", &tpm).await.unwrap();
        let revoked = revoke_machine(&store, instance, found, 1, None).await.unwrap();
        assert!(
            revoked.iter().map(String::as_str).eq([instance, tpm.as_str(), "worker-7"]),
            "{revoked:?}"
        );
        assert!(list(&store).await.unwrap().keys().eq(&revoked));
        // They come back together.
        assert_eq!(restore(&store, "worker-7", false).await.unwrap(), revoked);
    }

    async fn refused(store: &Embedded, names: &[&str], identities: &[&str]) -> bool {
        match refuse(&mut Reading::of(store), names, identities).await {
            Ok(()) => false,
            Err(RevocationError::Revoked { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn attack_28_whatever_a_machine_is_known_by_is_revoked_and_what_it_is_told_apart_by_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let ek: EkDigest = "ab".repeat(32).parse().unwrap();
        let tpm = NodeIdentity::of_tpm(ek);
        give_name(&store, "worker-7", &tpm).await.unwrap();
        let bound = serde_json::json!({ "holder": tpm, "at": 1, "peer": "::1" }).to_string();
        for instance in ["aws:1/i-1", "gcp:p/1"] {
            let value = bound.replace(if instance == "gcp:p/1" { tpm.as_str() } else { "none" }, "claimant:00");
            let entry = Entry {
                id: instance.to_owned(),
                value,
            };
            store.put(EntryKind::Instance, entry).await.unwrap();
        }
        let known = ["worker-7", tpm.as_str(), "aws:1/i-1", "aws-nitrotpm:i-1"];
        for who in &known[..3] {
            let machine = machine(&store, who).await.unwrap();
            assert!(
                machine.seen && machine.all.iter().map(String::as_str).eq(BTreeSet::from(known)),
                "{who}: {machine:?}"
            );
        }
        for unknown in ["worker-8", "tpm:00", "aws:1/i-2"] {
            assert!(!machine(&store, unknown).await.unwrap().seen, "{unknown}");
        }
        assert_eq!(machine(&store, "gcp:p/1").await.unwrap().all.len(), 1, "a claimant is no machine");
        revoke(&store, &machine(&store, "worker-7").await.unwrap().all, 1, None)
            .await
            .unwrap();
        for identity in &known[1..] {
            assert!(refused(&store, &[], &[identity]).await, "{identity}");
        }
        assert!(refused(&store, &["worker-7"], &[]).await && !refused(&store, &["worker-8"], &["gcp:p/1"]).await);
        // An instance that belongs to its NitroTPM, and the TPM beside it, whose word it is not.
        let beside = NodeIdentity::of_tpm("cd".repeat(32).parse().unwrap());
        for (id, holder) in [("aws-nitrotpm:i-7", "nitro-tpm"), (beside.as_str(), "aws-nitrotpm:i-7")] {
            let value = serde_json::json!({ "holder": holder, "at": 1, "peer": "::1" }).to_string();
            let id = id.to_owned();
            store.put(EntryKind::Instance, Entry { id, value }).await.unwrap();
        }
        for who in ["aws-nitrotpm:i-7", beside.as_str()] {
            let machine = machine(&store, who).await.unwrap();
            assert!(
                machine.all.iter().map(String::as_str).eq(["aws-nitrotpm:i-7", beside.as_str()]),
                "{machine:?}"
            );
        }
        // The name is another's now; the machine is what it was.
        assert_eq!(restore(&store, "worker-7", true).await.unwrap().len(), 1);
        assert!(refused(&store, &[], &[tpm.as_str()]).await);
        assert!(refused(&store, &["worker-7"], &[]).await, "it belongs to a machine that is revoked");
        assert_eq!(restore(&store, tpm.as_str(), false).await.unwrap().len(), 3);
        assert!(!refused(&store, &["worker-7"], &[tpm.as_str(), "aws:1/i-1"]).await);
        assert!(restore(&store, tpm.as_str(), false).await.unwrap().is_empty());
        // Revoked by the one identity, it does not come back by the other.
        revoke(&store, &BTreeSet::from(["aws-nitrotpm:i-1".to_owned()]), 1, None)
            .await
            .unwrap();
        assert!(refused(&store, &[], &["aws:2/i-1"]).await);
        // Nor the other way round, though it was revoked before the other identity was known.
        for (revoked, by_its_tpm, others) in [
            ("aws:1/i-3", "aws-nitrotpm:i-3", "aws-nitrotpm:i-4"),
            ("azure:1/a", "azure-vtpm:a", "azure-vtpm:b"),
        ] {
            revoke(&store, &BTreeSet::from([revoked.to_owned()]), 1, None).await.unwrap();
            assert!(refused(&store, &[], &[by_its_tpm]).await, "{by_its_tpm}");
            assert!(!refused(&store, &[], &[others]).await, "{others}");
            assert!(restore(&store, revoked, false).await.unwrap().contains(revoked));
            assert!(!refused(&store, &[], &[by_its_tpm]).await, "{by_its_tpm}");
        }
    }
}
