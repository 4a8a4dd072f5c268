//! Cloud instances, and their holders.
//!
//! Every process on an instance can obtain the cloud's statements about it at any time. AWS's identity document works for any client with a
//! copy. So an instance belongs to the first holder that proves it: to the TPM that attests with it, or else to the creator of the secret
//! that came with it. All others are refused until an administrator releases the instance.

use attest::{Claims, NodeIdentity};
use attest_pool::by_its_own_tpm;
use attest_store::{EntryKind, EntryTransaction, Store, StoreEntry, StoreError, Transact};
use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};

/// Prefix of a TPM's identity.
const TPM: &str = "tpm:";

/// Holder of an instance. Also stored for a TPM that an administrator endorses: the instance that is the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceRecord {
    /// The holder, or the instance that is the same machine: `tpm:<EkDigest>`, `nitro-tpm` or `azure-vtpm` (its own), or
    /// `claimant:<SHA-256>`.
    pub holder: String,
    /// Since when, seconds since 1970.
    pub at: u64,
    /// The address that this came from.
    pub peer: String,
}

/// Reason why the claim of an instance is refused.
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
        instance: String,
        /// The holder that came first.
        first: InstanceRecord,
        /// The claimant that is refused.
        claimant: String,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InstanceError {
    /// Returns an alert for the administrator, if there is something to look into.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        match self {
            Self::Claimed { instance, .. } => Some(format!("another claimant presents {instance}: {self}")),
            Self::Store(_) => None,
        }
    }
}

/// Evidence about an instance, presented to claim it.
#[derive(Debug, Clone, Copy)]
pub struct InstanceClaim<'a> {
    /// The verified claims about the instance.
    pub claims: &'a Claims,
    /// Set if the first client with such evidence becomes the instance's holder.
    pub first_use_binds: bool,
    /// Time of the claim, in seconds since 1970.
    pub at: u64,
    /// The address that it came from.
    pub peer: &'a str,
}

/// An instance that the claimant may have.
#[derive(Debug, Default)]
pub struct TakenInstance {
    /// Its holder, and since when; as this decision wrote it or found it. `None` if it has no holder, or the claims are about no instance.
    pub record: Option<InstanceRecord>,
    /// Alert for the administrator about something that is not refused.
    pub alert: Option<String>,
}

/// Claimant of an instance, by what identifies it again later.
#[derive(Debug, PartialEq, Eq)]
enum InstanceClaimant {
    Tpm(String),
    /// The instance's NitroTPM, which names the instance and no key.
    NitroTpm,
    /// The machine's vTPM in Azure, whose key Azure may renew.
    AzureVtpm,
    /// The owner of a secret, which has this digest.
    Claimant(String),
    /// A claimant that nothing identifies.
    Anybody,
}

impl InstanceClaimant {
    const NITRO_TPM: &str = "nitro-tpm";
    const AZURE_VTPM: &str = "azure-vtpm";
    const CLAIMANT: &str = "claimant:";

    fn from_claim(claim: &InstanceClaim<'_>) -> Self {
        let claims = claim.claims;
        match (claims.tpm(), claims.aws_nitro_tpm(), claims.claimant_sha256()) {
            (Some(tpm), _, _) => Self::Tpm(NodeIdentity::from_ek(tpm.ek_digest).to_string()),
            (None, Some(_), _) => Self::NitroTpm,
            (None, None, _) if claims.azure_vtpm().is_some() => Self::AzureVtpm,
            (None, None, Some(claimant)) if claim.first_use_binds => Self::Claimant(format!("{}{claimant}", Self::CLAIMANT)),
            (None, None, _) => Self::Anybody,
        }
    }

    /// Returns the holder as the store, the log and `machines show` show it; `None` for a claimant that is not stored.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Tpm(text) | Self::Claimant(text) => Some(text),
            Self::NitroTpm => Some(Self::NITRO_TPM),
            Self::AzureVtpm => Some(Self::AZURE_VTPM),
            Self::Anybody => None,
        }
    }

    /// Returns the holder as messages name it.
    fn named(&self) -> String {
        self.text().unwrap_or("the instance without a TPM").to_owned()
    }
}

impl InstanceClaim<'_> {
    /// Checks that the instance of the claims, if there is one, belongs to this claimant; the first claimant gets it.
    ///
    /// # Errors
    /// [`InstanceError`].
    pub fn make(self, transaction: &mut EntryTransaction<'_>) -> Result<TakenInstance, InstanceError> {
        let Some(instance) = self.claims.instance() else {
            return Ok(TakenInstance::default());
        };
        let holder = InstanceClaimant::from_claim(&self);
        if let (InstanceClaimant::Tpm(tpm), false) = (&holder, self.claims.has_the_instances_ek()) {
            self.keep_to_one(transaction, tpm, instance, &holder)?;
        }
        self.take(transaction, instance, &holder)
    }

    /// Binds a TPM to the instance that it attests with; it cannot attest with another one. So an attacker on a trusted machine cannot take
    /// the instance of a node that has not booted yet. A NitroTPM's statement about the instance does not cover the EK that attests with
    /// it. If Google's certificate names both, there is nothing to bind. Runs first, unless the instance has another holder: that refusal
    /// says more.
    fn keep_to_one(
        &self,
        transaction: &mut EntryTransaction<'_>,
        tpm: &str,
        instance: &NodeIdentity,
        holder: &InstanceClaimant,
    ) -> Result<(), InstanceError> {
        let first = record(transaction, instance)?;
        if first.is_some_and(|first| matches!(self.compare_holder(&first, holder), InstanceHolder::Others)) {
            return Ok(());
        }
        let Some(found) = transaction.get(EntryKind::Instance, tpm)? else {
            return Ok(write(transaction, tpm, &self.record(instance.as_str()))?);
        };
        let first = read(found)?;
        if is_one_instance(&first.holder, instance.as_str()) {
            return Ok(());
        }
        Err(claimed(tpm, first, instance.to_string()))
    }

    fn take(
        &self,
        transaction: &mut EntryTransaction<'_>,
        instance: &NodeIdentity,
        holder: &InstanceClaimant,
    ) -> Result<TakenInstance, InstanceError> {
        self.reserve_for_own_tpm(transaction, instance, holder)?;
        let own = holder.text().map(|text| self.record(text));
        let left = |record, alert| Ok(TakenInstance { record, alert });
        let Some(first) = record(transaction, instance)? else {
            if let Some(own) = &own {
                write(transaction, instance.as_str(), own)?;
            }
            return left(own, None);
        };
        match self.compare_holder(&first, holder) {
            InstanceHolder::Own | InstanceHolder::OfAnybody => left(Some(first), None),
            InstanceHolder::Superseded => {
                let own = self.record(holder.text().unwrap_or(InstanceClaimant::NITRO_TPM));
                write(transaction, instance.as_str(), &own)?;
                left(Some(own), Some(superseded(instance, &first)))
            }
            InstanceHolder::Others => Err(claimed(instance.as_str(), first, holder.named())),
        }
    }

    /// Compares the instance's holder with the present claimant.
    fn compare_holder(&self, first: &InstanceRecord, holder: &InstanceClaimant) -> InstanceHolder {
        let claimed_by_secret = first.holder.starts_with(InstanceClaimant::CLAIMANT);
        // It belongs to its NitroTPM, which attests here too.
        let to_its_nitro_tpm = first.holder == InstanceClaimant::NITRO_TPM && self.claims.aws_nitro_tpm().is_some();
        let to_its_vtpm = first.holder == InstanceClaimant::AZURE_VTPM && self.claims.azure_vtpm().is_some();
        if holder.text() == Some(&first.holder) || to_its_nitro_tpm || to_its_vtpm {
            InstanceHolder::Own
        } else if *holder == InstanceClaimant::Anybody && claimed_by_secret {
            InstanceHolder::OfAnybody
        } else if claimed_by_secret && self.claims.is_of_the_instances_own_tpm() {
            InstanceHolder::Superseded
        } else {
            InstanceHolder::Others
        }
    }

    /// Refuses a claim if another holder has the instance under the identity of its own TPM alone. That identity differs from the
    /// document's: a NitroTPM document names no account, and a vTPM of Azure no subscription.
    fn reserve_for_own_tpm(
        &self,
        transaction: &mut EntryTransaction<'_>,
        instance: &NodeIdentity,
        holder: &InstanceClaimant,
    ) -> Result<(), InstanceError> {
        let shows_it = self.claims.aws_nitro_tpm().is_some() || self.claims.azure_vtpm().is_some();
        let Some(other) = by_its_own_tpm(instance.as_str()).filter(|_| !shows_it) else {
            return Ok(());
        };
        let Some(found) = transaction.get(EntryKind::Instance, &other)? else {
            return Ok(());
        };
        let first = read(found)?;
        if holder.text() == Some(&first.holder) {
            return Ok(());
        }
        Err(claimed(&other, first, holder.named()))
    }

    /// Returns the record that makes this claimant the holder.
    fn record(&self, holder: &str) -> InstanceRecord {
        InstanceRecord {
            holder: holder.to_owned(),
            at: self.at,
            peer: self.peer.to_owned(),
        }
    }
}

fn claimed(instance: &str, first: InstanceRecord, claimant: String) -> InstanceError {
    InstanceError::Claimed {
        instance: instance.to_owned(),
        first,
        claimant,
    }
}

/// Returns the entries that [`InstanceClaim::make`] reads first.
#[must_use]
pub fn wanted(claims: &Claims) -> Vec<(EntryKind, String)> {
    let own = claims.instance().and_then(|instance| by_its_own_tpm(instance.as_str()));
    let ids = claims.instance().map(ToString::to_string).into_iter().chain(own);
    let ids = ids.chain(claims.tpm().map(|tpm| NodeIdentity::from_ek(tpm.ek_digest).to_string()));
    ids.map(|id| (EntryKind::Instance, id)).collect()
}

/// Returns whether two identities are of the same instance. Documents of AWS and Azure name the account or subscription, and the instance's
/// own TPM alone does not.
fn is_one_instance(one: &str, other: &str) -> bool {
    let is_the_same = |one: &str, other: &str| by_its_own_tpm(one).is_some_and(|one| one == other);
    one == other || is_the_same(one, other) || is_the_same(other, one)
}

/// Relation of an instance's holder to the present claimant.
enum InstanceHolder {
    /// The claimant is the holder.
    Own,
    /// The holder is the owner of a secret, which does not bind this claim.
    OfAnybody,
    /// The holder is the owner of a secret, which any client could have created. The claimant is the instance's own TPM, which only the
    /// instance has.
    Superseded,
    /// The instance has another holder.
    Others,
}

fn superseded(instance: &NodeIdentity, first: &InstanceRecord) -> String {
    format!(
        "{instance} now attests by its own TPM; it was claimed without TPM at {} from {}, by {}: if that was not this machine, somebody has its config",
        rfc3339(first.at),
        first.peer,
        first.holder
    )
}

/// Returns all instances that have a holder.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(String, InstanceRecord)>, StoreError> {
    let entries = store.list(EntryKind::Instance).await?;
    // That a TPM is in one machine only is the same fact from the other side.
    let instances = entries.into_iter().filter(|entry| !entry.id.starts_with(TPM));
    instances.map(|entry| Ok((entry.id.clone(), read(entry)?))).collect()
}

/// Returns the TPMs that have attested with an instance, each with that instance, no matter who holds it.
///
/// # Errors
/// [`StoreError`].
pub async fn tpms(store: &dyn Store) -> Result<Vec<(String, String)>, StoreError> {
    let entries = store.list(EntryKind::Instance).await?;
    let tpms = entries.into_iter().filter(|entry| entry.id.starts_with(TPM));
    tpms.map(|entry| Ok((entry.id.clone(), read(entry)?.holder))).collect()
}

/// Returns whether the instance of the claims has a holder: the cloud's statements about it prove nothing for another client then.
///
/// # Errors
/// [`StoreError`].
pub fn is_somebodys(transaction: &mut EntryTransaction<'_>, claims: &Claims) -> Result<bool, StoreError> {
    let Some(instance) = claims.instance() else { return Ok(false) };
    for id in [Some(instance.to_string()), by_its_own_tpm(instance.as_str())]
        .into_iter()
        .flatten()
    {
        if transaction.get(EntryKind::Instance, &id)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Releases an instance for the next claimant, and the TPMs bound to it for another instance. Returns whether it had a holder.
///
/// # Errors
/// [`StoreError`].
pub async fn release(store: &dyn Store, instance: &str) -> Result<bool, StoreError> {
    // It may belong to its NitroTPM, and TPMs be beside it that it does not name.
    let tpms = tpms(store).await?.into_iter();
    let tpms: Vec<String> = tpms.filter(|(_, beside)| beside == instance).map(|(tpm, _)| tpm).collect();
    let instance = instance.to_owned();
    store
        .transact(move |transaction| {
            let found = transaction.get(EntryKind::Instance, &instance)?;
            // Its TPM may be beside another instance, too.
            let holder = found.clone().and_then(|entry| read(entry).ok()).map(|record| record.holder);
            for id in holder.iter().chain([&instance]) {
                transaction.remove(EntryKind::Instance, id)?;
            }
            for tpm in &tpms {
                // It may have gone over to another since.
                let beside = transaction.get(EntryKind::Instance, tpm)?;
                if beside
                    .and_then(|entry| read(entry).ok())
                    .is_some_and(|record| record.holder == instance)
                {
                    transaction.remove(EntryKind::Instance, tpm)?;
                }
            }
            Ok(found.is_some())
        })
        .await
}

/// Returns the current holder of an instance, and since when; `None` if it has none.
///
/// # Errors
/// [`StoreError`].
pub fn record(transaction: &mut EntryTransaction<'_>, instance: &NodeIdentity) -> Result<Option<InstanceRecord>, StoreError> {
    transaction.get(EntryKind::Instance, instance.as_str())?.map(read).transpose()
}

fn write(transaction: &mut EntryTransaction<'_>, instance: &str, record: &InstanceRecord) -> Result<(), StoreError> {
    let value = serde_json::to_string(record).map_err(|source| unreadable(instance, source))?;
    let id = instance.to_owned();
    transaction.put(EntryKind::Instance, StoreEntry { id, value })
}

fn read(entry: StoreEntry) -> Result<InstanceRecord, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
}

fn unreadable(instance: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: EntryKind::Instance.as_str(),
        id: instance.to_owned(),
        source,
    }
}
