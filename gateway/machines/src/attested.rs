//! Which machine has attested when, and which name of a node was approved for it: what a gateway knows that approves CSRs.
//!
//! An attestation is good for one approval: whoever has its machine's name approved has spent it, in the transaction that says so.

use attest::tpm::vtpm::VerifiedInstance;
use attest::{Claims, EkDigest, NodeIdentity, SpkiSha256};
use attest_store::{Claim, EntryKind, Pending, Reading, Rewrite, Store, StoreError};
use serde::{Deserialize, Serialize};

pub use super::approvals::{Approval, Bound, approval, approvals};
use super::enrolment;
use super::json_entry::{read, write};
use super::revocations::{self, RevocationError};

/// How the identity of a TPM begins.
const TPM: &str = "tpm:";
/// How identities of instances of AWS begin: with a document that says whose it is, and by its NitroTPM alone.
const AWS: [&str; 2] = ["aws:", "aws-nitrotpm:"];

/// Attestations that are forgotten in one transaction.
const FORGOTTEN_AT_ONCE: usize = 50;

/// An attestation that has earned a ticket, until an approval spends it or it is too old for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attested {
    /// When, seconds since 1970.
    pub at: u64,
    pub pool: String,
    /// The node's name, as the store has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which instance of a cloud it is, if that is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// What the cloud calls the instance where Kubernetes names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// SHA-256 of the SubjectPublicKeyInfo of the key that its kubelet will ask a certificate for, if it has attested that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_sha256: Option<SpkiSha256>,
    /// Id of the decision's record.
    pub decision: String,
}

impl Attested {
    /// Of evidence that has earned something in this pool.
    #[must_use]
    pub fn of(claims: &Claims, pool: &str, name: Option<&str>, at: u64, decision: &str) -> Self {
        let instance = claims.instance().filter(|instance| *instance != claims.identity());
        Self {
            at,
            pool: pool.to_owned(),
            name: name.map(str::to_owned),
            instance: instance.map(ToString::to_string),
            provider: Provider::of(claims),
            key_sha256: claims.kubelet_key_sha256().copied(),
            decision: decision.to_owned(),
        }
    }

    /// Whether it is the same but for the moment.
    fn is_as(&self, other: &Self) -> bool {
        let Self { at, .. } = *other;
        Self { at, ..self.clone() } == *other
    }
}

/// What a cloud calls an instance in a `spec.providerID` of Kubernetes, as far as attestation proves it. Azure's names a resource, and its documents name none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Provider {
    /// `aws:///ZONE/INSTANCE`: instances of all zones and accounts have ids of their own.
    Aws { instance: String },
    /// `gce://PROJECT/ZONE/NAME`.
    Gce { project: String, zone: String, name: String },
}

impl Provider {
    fn of(claims: &Claims) -> Option<Self> {
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

    /// What a `spec.providerID` says. `None` if it is of no cloud whose instances attest by what it names.
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

/// Says for a decision that is under way that a machine has attested: its last attestation counts, if it is recorded. So a gateway that is killed
/// between the two finds it among what is pending, and neither is there without the other.
///
/// # Errors
/// [`StoreError::Changed`] if it is to be decided anew: it attests a second time at this moment, or what was read has changed.
pub async fn claim(reading: &mut Reading<'_>, identity: &NodeIdentity, attested: &Attested, decision: &Pending) -> Result<(), StoreError> {
    let kind = EntryKind::Attested;
    let entry = write(kind, identity.as_str(), attested)?;
    // Not noted: this decision is not made from it, and of two at once the later one counts.
    let known = reading.store.get(kind, identity.as_str()).await?;
    if let Some(own) = &known
        && read::<Attested>(kind, own)?.decision == attested.decision
    {
        // It is judged anew, and has claimed before.
        return match read::<Attested>(kind, own)?.is_as(attested) {
            true => Ok(()),
            false => Err(changed(identity.as_str())),
        };
    }
    let instead_of = known.map(|known| known.value);
    let claim = Claim { entry, instead_of };
    match reading.store.claim(kind, claim, reading.deciding(decision)).await? {
        None => Ok(()),
        Some(_) => Err(changed(identity.as_str())),
    }
}

/// Whether an attestation is recorded: until then nobody has got anything for it, an approval neither.
///
/// # Errors
/// [`StoreError`].
pub async fn is_recorded(store: &dyn Store, identity: &str, attested: &Attested) -> Result<bool, StoreError> {
    let kind = EntryKind::Attested;
    match store.get(kind, identity).await? {
        Some(entry) if read::<Attested>(kind, &entry)? == *attested => store.stands(kind, entry).await,
        _ => Ok(false),
    }
}

fn changed(identity: &str) -> StoreError {
    StoreError::Changed {
        kind: EntryKind::Attested.as_str(),
        id: identity.to_owned(),
    }
}

/// The attestations that no approval has spent, by identity; also those that are not recorded yet.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(String, Attested)>, StoreError> {
    let entries = store.list(EntryKind::Attested).await?.into_iter();
    entries
        .map(|entry| Ok((entry.id.clone(), read(EntryKind::Attested, &entry)?)))
        .collect()
}

/// Forgets attestations that are older than that time, seconds since 1970: nothing is approved for them any more. One that has come meanwhile stays.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_before(store: &dyn Store, at: u64) -> Result<(), StoreError> {
    let old: Vec<_> = list(store).await?.into_iter().filter(|(_, attested)| attested.at < at).collect();
    for some in old.chunks(FORGOTTEN_AT_ONCE) {
        let mut reading = Reading::of(store);
        reading.soon(EntryKind::Attested, some.iter().map(|(identity, _)| identity.as_str()));
        let mut gone_ones = Vec::new();
        for (identity, attested) in some {
            let found = reading.get(EntryKind::Attested, identity).await?;
            if let Some(found) = found
                && read::<Attested>(EntryKind::Attested, &found)? == *attested
            {
                gone_ones.push(gone(EntryKind::Attested, identity));
            }
        }
        match store.rewrite(reading.seen().clone(), gone_ones).await {
            // Somebody among them has attested at this moment: the others go the next time.
            Ok(()) | Err(StoreError::Changed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What the store has in the way of a name's approval, or for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Whose the name is, by enrolment.
    pub owner: Option<String>,
    /// The name that the machine was given otherwise.
    pub other_name: Option<String>,
    /// Whether the administrator has given the owner this name, with its EK: it did not only ask for it.
    pub owner_given: bool,
    /// Whether the administrator has given the machine this name, with its EK.
    pub given: bool,
    /// What was approved of the name.
    pub approval: Option<Approval>,
    /// That one of both is revoked, in words.
    pub revoked: Option<String>,
}

/// The identity that a name belongs to, by enrolment.
///
/// # Errors
/// [`StoreError`].
pub async fn owner(reading: &mut Reading<'_>, name: &str) -> Result<Option<String>, StoreError> {
    Ok(reading.get(EntryKind::Name, name).await?.map(|entry| entry.value))
}

/// Returns whether the administrator has given the name to this identity, with its EK.
async fn is_given(reading: &mut Reading<'_>, name: &str, identity: &str) -> Result<bool, StoreError> {
    let Some(ek) = identity.strip_prefix(TPM).and_then(|digest| digest.parse::<EkDigest>().ok()) else {
        return Ok(false);
    };
    let listed = enrolment::allowlisted(reading, ek).await?;
    Ok(listed.is_some_and(|listed| listed.removed.is_none() && listed.name.as_deref() == Some(name)))
}

/// Looks at what the store has of a name, and of the machine that may be its node.
///
/// # Errors
/// [`StoreError`].
pub async fn held(reading: &mut Reading<'_>, name: &str, machine: Option<(&str, &Attested)>) -> Result<Held, StoreError> {
    let mut held = Held {
        owner: owner(reading, name).await?,
        approval: approval(reading, name).await?,
        ..Held::default()
    };
    let (identity, instance) = match machine {
        Some((identity, attested)) => (Some(identity), attested.instance.as_deref()),
        None => (
            held.approval.as_ref().map(|approval| approval.identity.as_str()),
            held.approval.as_ref().and_then(|approval| approval.instance.as_deref()),
        ),
    };
    let identities: Vec<&str> = identity.into_iter().chain(instance).collect();
    match revocations::refuse(reading, &[name], &identities).await {
        Ok(()) => {}
        Err(RevocationError::Store(error)) => return Err(error),
        Err(error @ (RevocationError::Revoked { .. } | RevocationError::Undecided { .. })) => held.revoked = Some(error.to_string()),
    }
    if let Some(identity) = identity {
        let known = reading.get(EntryKind::NameOf, identity).await?;
        held.other_name = known.map(|entry| entry.value).filter(|known| known != name);
        held.given = is_given(reading, name, identity).await?;
    }
    if let Some(owner) = &held.owner {
        held.owner_given = is_given(reading, name, owner).await?;
    }
    Ok(held)
}

/// Approves a name, if all that was read for it is unchanged: its attestation is spent by that.
///
/// # Errors
/// [`StoreError::Changed`] if it is to be decided anew.
pub async fn approve(reading: &mut Reading<'_>, store: &dyn Store, name: &str, approval: &Approval) -> Result<(), StoreError> {
    let attested = reading.get(EntryKind::Attested, &approval.identity).await?;
    let is_it = match &attested {
        Some(entry) => read::<Attested>(EntryKind::Attested, entry)?.decision == approval.attestation,
        None => false,
    };
    if !is_it {
        return Err(changed(&approval.identity));
    }
    let written = write(EntryKind::Approval, name, approval)?;
    let approved = Rewrite {
        kind: EntryKind::Approval,
        id: written.id,
        value: Some(written.value),
    };
    let rewrites = vec![gone(EntryKind::Attested, &approval.identity), approved];
    store.rewrite(reading.seen().clone(), rewrites).await
}

fn gone(kind: EntryKind, id: &str) -> Rewrite {
    Rewrite {
        kind,
        id: id.to_owned(),
        value: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
