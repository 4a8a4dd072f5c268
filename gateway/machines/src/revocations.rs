//! Revocations: one denylist over names and identities, which applies to any evidence.
//!
//! A machine is known by its node's name, its TPM and its cloud, and may show only one of them. So a revocation covers everything that is
//! known of it. The list is checked before a machine earns anything, and at each use of a ticket or a certificate.

use std::collections::{BTreeMap, BTreeSet};

use attest::challenge::is_node_name;
use attest::{EkDigest, NodeIdentity};
use attest_pool::by_its_own_tpm;
use attest_store::{EntryKind, EntryTransaction, Store, StoreEntry, StoreError, Transact};
use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};

use super::approvals::approvals;
use super::{enrolment, instances};

/// Prefixes of identities that clouds give, as [`NodeIdentity`] spells them.
const CLOUDS: [&str; 5] = ["gcp:", "aws:", "aws-nitrotpm:", "azure:", "azure-vtpm:"];
/// Longest identity that a cloud gives: a subscription and a machine have 36 characters each, a project of Google 30 and some.
const IDENTITY_LIMIT_BYTES: usize = 256;

/// Store entry of a revoked name or identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// Time of the revocation, in seconds since 1970.
    pub at: u64,
    /// The administrator's reason for it.
    pub reason: Option<String>,
    /// The other names and identities that were revoked with it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub with: BTreeSet<String>,
}

/// Reason why a machine is refused.
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
        /// Its time and reason.
        revocation: Revocation,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Parses the name of a machine as administrators write it: a node's name, an EK's digest with or without `tpm:`, a cloud instance. Returns
/// `None` for anything else.
#[must_use]
pub fn named(text: &str) -> Option<String> {
    let digest = text.strip_prefix("tpm:").unwrap_or(text).to_ascii_lowercase();
    if let Ok(digest) = digest.parse::<EkDigest>() {
        return Some(NodeIdentity::from_ek(digest).to_string());
    }
    let instance = CLOUDS.iter().find_map(|cloud| text.strip_prefix(cloud));
    let is_instance =
        |rest: &str| !rest.is_empty() && text.len() <= IDENTITY_LIMIT_BYTES && rest.bytes().all(|byte| byte.is_ascii_graphic());
    (is_node_name(text) || instance.is_some_and(is_instance)).then(|| text.to_owned())
}

/// A machine, by everything that the store knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its names and identities, including the given one.
    pub all: BTreeSet<String>,
    /// Set if such a machine has been there, or is expected.
    pub seen: bool,
}

/// Returns what the store knows of a machine, given as [`named`] returns it.
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
        let (kind, id) = enrolment::entry_key(&who);
        seen |= store.get(kind, id).await?.is_some();
    }
    let names = all.iter().any(|who| is_node_name(who)) && all.len() > 1;
    Ok(Machine { all, seen: seen || names })
}

/// Revokes all names and identities of a machine, and each instance also by its own TPM. The machine gets nothing from then on, whatever it
/// shows. Earlier revocations are replaced.
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
        Ok::<_, StoreError>(StoreEntry { id: who.clone(), value })
    });
    // All or none.
    store
        .change(EntryKind::Revoked, Vec::new(), entries.collect::<Result<_, _>>()?)
        .await
        .map(drop)
}

/// Revokes a machine that was found as `who` ([`machine`]), like [`revoke`], with everything bound to it since; a revoked machine is bound
/// to nothing more. Returns all that is revoked.
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

/// Removes a revocation, with those made together with it unless `only` is set. Returns the names and identities that were restored.
///
/// # Errors
/// [`StoreError`].
pub async fn restore(store: &dyn Store, who: &str, only: bool) -> Result<BTreeSet<String>, StoreError> {
    let who = who.to_owned();
    store
        .transact(move |transaction| {
            let Some(entry) = transaction.get(EntryKind::Revoked, &who)? else {
                return Ok(BTreeSet::new());
            };
            let mut restored = BTreeSet::from([who.clone()]);
            for other in read(&entry)?.with.into_iter().filter(|_| !only) {
                // One that was revoked once more since, with others, is theirs.
                if let Some(entry) = transaction.get(EntryKind::Revoked, &other)?
                    && read(&entry)?.with.contains(&who)
                {
                    restored.insert(other);
                }
            }
            for who in &restored {
                transaction.remove(EntryKind::Revoked, who)?;
            }
            Ok(restored)
        })
        .await
}

/// Returns all revocations, by name or identity.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<BTreeMap<String, Revocation>, StoreError> {
    let entries = store.list(EntryKind::Revoked).await?;
    entries.into_iter().map(|entry| Ok((entry.id.clone(), read(&entry)?))).collect()
}

/// Returns an error for a revoked machine: by the names and identities that it shows, and by those known to belong to them. So a machine
/// does not escape by omitting its name.
///
/// # Errors
/// [`RevocationError`].
pub fn refuse(transaction: &mut EntryTransaction<'_>, names: &[&str], identities: &[&str]) -> Result<(), RevocationError> {
    let all = all_of(names, identities);
    let all = || all.iter().map(|who| (EntryKind::Revoked, who.as_str()));
    let bound = || {
        let names = names.iter().map(|name| (EntryKind::Name, *name));
        names.chain(identities.iter().map(|identity| (EntryKind::NameOf, *identity)))
    };
    transaction.fetch(all().chain(bound()))?;
    for (kind, who) in all() {
        if let Some(entry) = transaction.get(kind, who)? {
            return Err(revoked(&entry)?);
        }
    }
    for (kind, id) in bound() {
        if let Some(bound) = transaction.get(kind, id)?
            && let Some(entry) = transaction.get(EntryKind::Revoked, &bound.value)?
        {
            return Err(revoked(&entry)?);
        }
    }
    Ok(())
}

/// Returns the entries that [`refuse`] reads first.
#[must_use]
pub fn wanted(names: &[&str], identities: &[&str]) -> Vec<(EntryKind, String)> {
    let all = all_of(names, identities).into_iter();
    all.map(|who| (EntryKind::Revoked, who)).collect()
}

/// Returns the names and identities to look up: these, and those of the instances' own TPMs.
fn all_of(names: &[&str], identities: &[&str]) -> BTreeSet<String> {
    let own = identities.iter().filter_map(|identity| by_its_own_tpm(identity));
    names.iter().chain(identities).map(|who| (*who).to_owned()).chain(own).collect()
}

fn revoked(entry: &StoreEntry) -> Result<RevocationError, StoreError> {
    Ok(RevocationError::Revoked {
        who: entry.id.clone(),
        revocation: read(entry)?,
    })
}

/// Records that a kubelet with this name was there: no other entry has its name.
///
/// # Errors
/// [`StoreError`].
pub fn note_kubelet(transaction: &mut EntryTransaction<'_>, name: &str, at: u64) -> Result<(), StoreError> {
    if transaction.get(EntryKind::Kubelet, name)?.is_some() {
        return Ok(());
    }
    let (id, value) = (name.to_owned(), at.to_string());
    transaction.put(EntryKind::Kubelet, StoreEntry { id, value })
}

pub(super) fn read(entry: &StoreEntry) -> Result<Revocation, StoreError> {
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
    async fn attack_28_identities_bound_during_a_revocation_are_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let instance = "gcp:p/1";
        let found = machine(&store, instance).await.unwrap().all;
        // Its TPM comes beside it, and has a name, when it was looked for.
        let tpm = NodeIdentity::from_ek("ab".repeat(32).parse().unwrap());
        let value = serde_json::json!({ "holder": tpm, "at": 1, "peer": "::1" }).to_string();
        let id = instance.to_owned();
        store.put(EntryKind::Instance, StoreEntry { id, value }).await.unwrap();
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
        let [names, identities] = [names, identities].map(|all| all.iter().map(ToString::to_string).collect::<Vec<String>>());
        let refused = store.read(move |transaction| {
            let [names, identities] = [&names, &identities].map(|all| all.iter().map(String::as_str).collect::<Vec<&str>>());
            refuse(transaction, &names, &identities)
        });
        match refused.await {
            Ok(()) => false,
            Err(RevocationError::Revoked { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn attack_28_revocation_covers_all_identities_but_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let ek: EkDigest = "ab".repeat(32).parse().unwrap();
        let tpm = NodeIdentity::from_ek(ek);
        give_name(&store, "worker-7", &tpm).await.unwrap();
        let bound = serde_json::json!({ "holder": tpm, "at": 1, "peer": "::1" }).to_string();
        for instance in ["aws:1/i-1", "gcp:p/1"] {
            let value = bound.replace(if instance == "gcp:p/1" { tpm.as_str() } else { "none" }, "claimant:00");
            let entry = StoreEntry {
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
        let beside = NodeIdentity::from_ek("cd".repeat(32).parse().unwrap());
        for (id, holder) in [("aws-nitrotpm:i-7", "nitro-tpm"), (beside.as_str(), "aws-nitrotpm:i-7")] {
            let value = serde_json::json!({ "holder": holder, "at": 1, "peer": "::1" }).to_string();
            let id = id.to_owned();
            store.put(EntryKind::Instance, StoreEntry { id, value }).await.unwrap();
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
