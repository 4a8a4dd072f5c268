//! Attestations of machines, and the node names approved for them. A gateway that approves CSRs decides by these.
//!
//! An attestation is good for one approval. Approving its machine's name spends it, in the same transaction.

use attest::tpm::vtpm::VerifiedInstance;
use attest::{Claims, NodeIdentity, SpkiSha256};
use attest_store::{EntryKind, EntryTransaction, Store, StoreError, Transact};
use serde::{Deserialize, Serialize};

pub use super::approvals::{Approval, Bound, approval, approvals};
use super::enrolment;
use super::json_entry::{read, write};
use super::revocations::{self, RevocationError};

/// Prefixes of the identities of AWS instances: with a document, which names the account, and by the NitroTPM alone.
const AWS: [&str; 2] = ["aws:", "aws-nitrotpm:"];

/// Attestations that one transaction deletes.
const FORGOTTEN_AT_ONCE: usize = 50;

/// An attestation that has earned a ticket, until an approval spends it or it is too old for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestedMachine {
    /// Time of the attestation, in seconds since 1970.
    pub at: u64,
    pub pool: String,
    /// The node's name, as the store has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Identity of its cloud instance, if that differs from the machine's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The instance as its cloud names it in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// SHA-256 of the SubjectPublicKeyInfo of the key that its kubelet will ask a certificate for, if it has attested that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_sha256: Option<SpkiSha256>,
    /// Id of the decision's record.
    pub decision: String,
}

impl AttestedMachine {
    /// Builds the entry for evidence that has earned something in this pool.
    #[must_use]
    pub fn new(claims: &Claims, pool: &str, name: Option<&str>, at: u64, decision: &str) -> Self {
        let instance = claims.instance().filter(|instance| *instance != claims.identity());
        Self {
            at,
            pool: pool.to_owned(),
            name: name.map(str::to_owned),
            instance: instance.map(ToString::to_string),
            provider: Provider::from_claims(claims),
            key_sha256: claims.kubelet_key_sha256().copied(),
            decision: decision.to_owned(),
        }
    }
}

/// An instance as its cloud names it in a node's `spec.providerID`, as far as attestation proves it. Azure's provider ID names a resource,
/// which Azure's documents do not name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Provider {
    /// `aws:///ZONE/INSTANCE`: instances of all zones and accounts have ids of their own.
    Aws { instance: String },
    /// Provider ID of Google Cloud, `gce://PROJECT/ZONE/NAME`.
    Gce { project: String, zone: String, name: String },
}

impl Provider {
    fn from_claims(claims: &Claims) -> Option<Self> {
        let instance = claims.instance()?;
        let of_google = claims.gcp().map(|document| &document.instance);
        let of_google = of_google.or_else(|| claims.tpm()?.instance().map(VerifiedInstance::instance));
        if let Some(google) = of_google {
            return Some(Self::Gce {
                project: google.project_id().to_owned(),
                zone: google.zone().to_owned(),
                name: google.instance_name().to_owned(),
            });
        }
        let of_aws = AWS.iter().find_map(|prefix| instance.as_str().strip_prefix(prefix))?;
        let instance = of_aws.rsplit_once('/').map_or(of_aws, |(_, instance)| instance).to_owned();
        Some(Self::Aws { instance })
    }

    /// Parses a `spec.providerID`. Returns `None` for clouds whose instances do not prove what it names.
    #[must_use]
    pub fn read(provider_id: &str) -> Option<Self> {
        if let Some(rest) = provider_id.strip_prefix("aws:///") {
            let (_, instance) = rest.split_once('/')?;
            let is_one = !instance.is_empty() && !instance.contains('/');
            return is_one.then(|| Self::Aws {
                instance: instance.to_owned(),
            });
        }
        let mut parts = provider_id.strip_prefix("gce://")?.split('/').map(str::to_owned);
        let (project, zone, name) = (parts.next()?, parts.next()?, parts.next()?);
        let is_one = parts.next().is_none() && [&project, &zone, &name].iter().all(|part| !part.is_empty());
        is_one.then_some(Self::Gce { project, zone, name })
    }
}

/// Records a machine's attestation; replaces its last one.
///
/// # Errors
/// [`StoreError`].
pub fn note(transaction: &mut EntryTransaction<'_>, identity: &NodeIdentity, attested: &AttestedMachine) -> Result<(), StoreError> {
    let kind = EntryKind::Attested;
    transaction.put(kind, write(kind, identity.as_str(), attested)?)
}

/// Returns the attestations that no approval has spent, by identity.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(String, AttestedMachine)>, StoreError> {
    let entries = store.list(EntryKind::Attested).await?.into_iter();
    entries
        .map(|entry| Ok((entry.id.clone(), read(EntryKind::Attested, &entry)?)))
        .collect()
}

/// Deletes attestations older than that time, in seconds since 1970: they are too old for an approval. A newer one of the same machine
/// stays.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_before(store: &dyn Store, at: u64) -> Result<(), StoreError> {
    let old: Vec<_> = list(store).await?.into_iter().filter(|(_, attested)| attested.at < at).collect();
    for some in old.chunks(FORGOTTEN_AT_ONCE) {
        let some = some.to_vec();
        let forgotten = store.transact(move |transaction| {
            transaction.fetch(some.iter().map(|(identity, _)| (EntryKind::Attested, identity.as_str())))?;
            for (identity, attested) in &some {
                // It may have attested meanwhile.
                if let Some(found) = transaction.get(EntryKind::Attested, identity)?
                    && read::<AttestedMachine>(EntryKind::Attested, &found)? == *attested
                {
                    transaction.remove(EntryKind::Attested, identity)?;
                }
            }
            Ok::<_, StoreError>(())
        });
        forgotten.await?;
    }
    Ok(())
}

/// State of a name in the store, for or against its approval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalHold {
    /// Identity that the name belongs to, by enrolment.
    pub owner: Option<String>,
    /// Another name that the machine has been given.
    pub other_name: Option<String>,
    /// Set if the administrator gave the owner this name, with its EK; the owner did not only ask for it.
    pub owner_given: bool,
    /// Set if the administrator gave the machine this name, with its EK.
    pub given: bool,
    /// The approval of the name, if there is one.
    pub approval: Option<Approval>,
    /// Revocation of the name or the machine, as text.
    pub revoked: Option<String>,
}

/// Returns whether the administrator has given the name to this identity, on the allowlist.
fn is_given(transaction: &mut EntryTransaction<'_>, name: &str, identity: &str) -> Result<bool, StoreError> {
    let listed = enrolment::listed(transaction, identity)?;
    Ok(listed.is_some_and(|listed| listed.removed.is_none() && listed.name.as_deref() == Some(name)))
}

/// Reads the state of a name, and of the machine that may be its node.
///
/// # Errors
/// [`StoreError`].
pub fn held(
    transaction: &mut EntryTransaction<'_>,
    name: &str,
    machine: Option<(&str, &AttestedMachine)>,
) -> Result<ApprovalHold, StoreError> {
    let mut held = ApprovalHold {
        owner: transaction.get(EntryKind::Name, name)?.map(|entry| entry.value),
        approval: approval(transaction, name)?,
        ..ApprovalHold::default()
    };
    let (identity, instance) = match machine {
        Some((identity, attested)) => (Some(identity.to_owned()), attested.instance.clone()),
        None => (
            held.approval.as_ref().map(|approval| approval.identity.clone()),
            held.approval.as_ref().and_then(|approval| approval.instance.clone()),
        ),
    };
    let identities: Vec<&str> = identity.as_deref().into_iter().chain(instance.as_deref()).collect();
    match revocations::refuse(transaction, &[name], &identities) {
        Ok(()) => {}
        Err(RevocationError::Store(error)) => return Err(error),
        Err(error @ RevocationError::Revoked { .. }) => held.revoked = Some(error.to_string()),
    }
    if let Some(identity) = &identity {
        let known = transaction.get(EntryKind::NameOf, identity)?;
        held.other_name = known.map(|entry| entry.value).filter(|known| known != name);
        held.given = is_given(transaction, name, identity)?;
    }
    if let Some(owner) = &held.owner {
        held.owner_given = is_given(transaction, name, owner)?;
    }
    Ok(held)
}

/// Approves a name for a machine if the state of both is still the one that was judged; this spends its attestation. Returns whether it was
/// approved.
///
/// # Errors
/// [`StoreError`].
pub fn approve(
    transaction: &mut EntryTransaction<'_>,
    name: &str,
    approval: &Approval,
    machine: (&str, &AttestedMachine),
    judged: &ApprovalHold,
) -> Result<bool, StoreError> {
    let (identity, attested) = machine;
    let found = transaction.get(EntryKind::Attested, identity)?;
    let stands = match &found {
        Some(entry) => read::<AttestedMachine>(EntryKind::Attested, entry)? == *attested,
        None => false,
    };
    // Until the log has the attestation, nothing is approved for it.
    if !stands || transaction.is_pending(&attested.decision)? || held(transaction, name, Some(machine))? != *judged {
        return Ok(false);
    }
    transaction.remove(EntryKind::Attested, identity)?;
    transaction.put(EntryKind::Approval, write(EntryKind::Approval, name, approval)?)?;
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
