//! Instances of clouds, and to whom each belongs.
//!
//! What a cloud says of an instance can be heard by every process on it, at any time, and what AWS's identity document says, by whoever has a
//! copy. So an instance belongs to who first shows that it is his: to the TPM that attests beside it, or, where there is none, to who made up
//! the secret that came with it. Anybody else is refused until an administrator says otherwise.

use attest::{Claims, NodeIdentity};
use attest_pool::by_its_own_tpm;
use attest_store::{Entry, EntryKind, EntryTransaction, Store, StoreError, Transact};
use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};

/// How the identity of a TPM begins.
const TPM: &str = "tpm:";

/// What the store keeps of an instance; and of a TPM that an administrator vouches for, with which instance it is one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceRecord {
    /// To whom it belongs, or with which instance it is one machine: `tpm:<EkDigest>`, `nitro-tpm` or `azure-vtpm` (its
    /// own), or `claimant:<SHA-256>`.
    pub holder: String,
    /// Since when, seconds since 1970.
    pub at: u64,
    /// The address that this came from.
    pub peer: String,
}

/// Why an instance's identity is not taken.
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
        /// Who came first.
        first: InstanceRecord,
        /// Who comes now.
        claimant: String,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InstanceError {
    /// What the administrator has to look into.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        match self {
            Self::Claimed { instance, .. } => Some(format!("{instance} is claimed a second time: {self}")),
            Self::Store(_) => None,
        }
    }
}

/// Evidence about an instance, by which somebody wants to be taken for it.
#[derive(Debug, Clone, Copy)]
pub struct InstanceClaim<'a> {
    /// What was proven.
    pub claims: &'a Claims,
    /// Whether the first to show such evidence has the instance from then on.
    pub first_use_binds: bool,
    /// When, seconds since 1970.
    pub at: u64,
    /// The address that it came from.
    pub peer: &'a str,
}

/// An instance that is left to who shows it.
#[derive(Debug, Default)]
pub struct Taken {
    /// To whom it belongs, and since when, as the decision has written it or stands on it; `None` if it is nobody's, or the claims are about none.
    pub record: Option<InstanceRecord>,
    /// What the administrator should look into although it is not refused.
    pub alert: Option<String>,
}

/// Who shows the identity of an instance, by what can be known again.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    Tpm(String),
    /// The instance's NitroTPM, which names the instance and no key.
    NitroTpm,
    /// The machine's vTPM in Azure, whose key Azure may renew.
    AzureVtpm,
    /// Whoever knows a secret.
    Claimant(String),
    /// Nobody in particular.
    Anybody,
}

impl Holder {
    const NITRO_TPM: &str = "nitro-tpm";
    const AZURE_VTPM: &str = "azure-vtpm";
    const CLAIMANT: &str = "claimant:";

    fn of(claim: &InstanceClaim<'_>) -> Self {
        let claims = claim.claims;
        match (claims.tpm(), claims.aws_nitro_tpm(), claims.claimant_sha256()) {
            (Some(tpm), _, _) => Self::Tpm(NodeIdentity::of_tpm(tpm.ek_digest).to_string()),
            (None, Some(_), _) => Self::NitroTpm,
            (None, None, _) if claims.azure_vtpm().is_some() => Self::AzureVtpm,
            (None, None, Some(claimant)) if claim.first_use_binds => Self::Claimant(format!("{}{claimant}", Self::CLAIMANT)),
            (None, None, _) => Self::Anybody,
        }
    }

    /// As the store, the log and `node list` have it; `None` for what is not kept.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Tpm(text) | Self::Claimant(text) => Some(text),
            Self::NitroTpm => Some(Self::NITRO_TPM),
            Self::AzureVtpm => Some(Self::AZURE_VTPM),
            Self::Anybody => None,
        }
    }

    /// As people are told.
    fn named(&self) -> String {
        self.text().unwrap_or("the instance without a TPM").to_owned()
    }
}

impl InstanceClaim<'_> {
    /// Checks that the instance, if the claims are about one, belongs to who shows them; the first to do so gets it.
    ///
    /// # Errors
    /// [`InstanceError`].
    pub fn make(self, transaction: &mut EntryTransaction<'_>) -> Result<Taken, InstanceError> {
        let Some(instance) = self.claims.instance() else {
            return Ok(Taken::default());
        };
        let holder = Holder::of(&self);
        if let (Holder::Tpm(tpm), false) = (&holder, self.claims.has_the_instances_ek()) {
            self.keep_to_one(transaction, tpm, instance, &holder)?;
        }
        self.take(transaction, instance, &holder)
    }

    /// A TPM is in one machine: one that has attested as part of an instance is beside no other. So whoever has broken into a trusted machine
    /// takes no instance from the node that has not come yet. What a NitroTPM says of the instance is no word about the EK beside it; where
    /// Google's certificate names both, nothing is left to be kept. First, and unless the instance is another's: that is refused for it, which
    /// says more.
    fn keep_to_one(
        &self,
        transaction: &mut EntryTransaction<'_>,
        tpm: &str,
        instance: &NodeIdentity,
        holder: &Holder,
    ) -> Result<(), InstanceError> {
        let first = record(transaction, instance)?;
        if first.is_some_and(|first| matches!(self.beside(&first, holder), Standing::Others)) {
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

    fn take(&self, transaction: &mut EntryTransaction<'_>, instance: &NodeIdentity, holder: &Holder) -> Result<Taken, InstanceError> {
        self.keep_from_others_than_its_own_tpm(transaction, instance, holder)?;
        let own = holder.text().map(|text| self.record(text));
        let left = |record, alert| Ok(Taken { record, alert });
        let Some(first) = record(transaction, instance)? else {
            if let Some(own) = &own {
                write(transaction, instance.as_str(), own)?;
            }
            return left(own, None);
        };
        match self.beside(&first, holder) {
            Standing::Own | Standing::OfAnybody => left(Some(first), None),
            Standing::Superseded => {
                let own = self.record(holder.text().unwrap_or(Holder::NITRO_TPM));
                write(transaction, instance.as_str(), &own)?;
                left(Some(own), Some(superseded(instance, &first)))
            }
            Standing::Others => Err(claimed(instance.as_str(), first, holder.named())),
        }
    }

    /// How the one that has an instance stands to who shows it now.
    fn beside(&self, first: &InstanceRecord, holder: &Holder) -> Standing {
        let claimed_by_secret = first.holder.starts_with(Holder::CLAIMANT);
        // It belongs to its NitroTPM, which attests here too.
        let to_its_nitro_tpm = first.holder == Holder::NITRO_TPM && self.claims.aws_nitro_tpm().is_some();
        let to_its_vtpm = first.holder == Holder::AZURE_VTPM && self.claims.azure_vtpm().is_some();
        if holder.text() == Some(&first.holder) || to_its_nitro_tpm || to_its_vtpm {
            Standing::Own
        } else if *holder == Holder::Anybody && claimed_by_secret {
            Standing::OfAnybody
        } else if claimed_by_secret && self.claims.is_of_the_instances_own_tpm() {
            Standing::Superseded
        } else {
            Standing::Others
        }
    }

    /// A NitroTPM document says no account, and a vTPM of Azure's no subscription: an instance that has attested by it alone is held under another
    /// identity than its document has.
    fn keep_from_others_than_its_own_tpm(
        &self,
        transaction: &mut EntryTransaction<'_>,
        instance: &NodeIdentity,
        holder: &Holder,
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

    /// That it is this one's from now on.
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

/// The entries that [`InstanceClaim::make`] reads first.
#[must_use]
pub fn wanted(claims: &Claims) -> Vec<(EntryKind, String)> {
    let own = claims.instance().and_then(|instance| by_its_own_tpm(instance.as_str()));
    let ids = claims.instance().map(ToString::to_string).into_iter().chain(own);
    let ids = ids.chain(claims.tpm().map(|tpm| NodeIdentity::of_tpm(tpm.ek_digest).to_string()));
    ids.map(|id| (EntryKind::Instance, id)).collect()
}

/// Whether two identities are of one instance: the documents of AWS and Azure say whose it is, and its own TPM alone does not.
fn is_one_instance(one: &str, other: &str) -> bool {
    let is_the_same = |one: &str, other: &str| by_its_own_tpm(one).is_some_and(|one| one == other);
    one == other || is_the_same(one, other) || is_the_same(other, one)
}

/// Who has an instance that somebody shows.
enum Standing {
    /// Who shows it.
    Own,
    /// Whoever made up a secret, where that binds nobody.
    OfAnybody,
    /// Whoever made up a secret, which can have been anybody; what shows it now is its own TPM, which cannot.
    Superseded,
    /// Somebody else.
    Others,
}

fn superseded(instance: &NodeIdentity, first: &InstanceRecord) -> String {
    format!(
        "{instance} attests by its own TPM, and was claimed at {} from {} without it, by {}: if that was not this machine, somebody has its configuration",
        rfc3339(first.at),
        first.peer,
        first.holder
    )
}

/// All instances that belong to somebody.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(String, InstanceRecord)>, StoreError> {
    let entries = store.list(EntryKind::Instance).await?;
    // That a TPM is in one machine only is the same fact from the other side.
    let instances = entries.into_iter().filter(|entry| !entry.id.starts_with(TPM));
    instances.map(|entry| Ok((entry.id.clone(), read(entry)?))).collect()
}

/// The TPMs that have attested beside an instance, and the instance that each is beside, to whomever that belongs.
///
/// # Errors
/// [`StoreError`].
pub async fn tpms(store: &dyn Store) -> Result<Vec<(String, String)>, StoreError> {
    let entries = store.list(EntryKind::Instance).await?;
    let tpms = entries.into_iter().filter(|entry| entry.id.starts_with(TPM));
    tpms.map(|entry| Ok((entry.id.clone(), read(entry)?.holder))).collect()
}

/// Whether the instance that claims are about belongs to somebody: what a cloud says of it is worth nothing then to another.
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

/// Lets the next one have an instance, and each TPM that is beside it be beside another; says whether it belonged to somebody.
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

/// To whom an instance belongs at the moment, and since when; `None` if it belongs to nobody.
///
/// # Errors
/// [`StoreError`].
pub fn record(transaction: &mut EntryTransaction<'_>, instance: &NodeIdentity) -> Result<Option<InstanceRecord>, StoreError> {
    transaction.get(EntryKind::Instance, instance.as_str())?.map(read).transpose()
}

fn write(transaction: &mut EntryTransaction<'_>, instance: &str, record: &InstanceRecord) -> Result<(), StoreError> {
    let value = serde_json::to_string(record).map_err(|source| unreadable(instance, source))?;
    let id = instance.to_owned();
    transaction.put(EntryKind::Instance, Entry { id, value })
}

fn read(entry: Entry) -> Result<InstanceRecord, StoreError> {
    serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
}

fn unreadable(instance: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: EntryKind::Instance.as_str(),
        id: instance.to_owned(),
        source,
    }
}
