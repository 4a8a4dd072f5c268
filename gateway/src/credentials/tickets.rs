//! Tickets, which a successful attestation earns: bound to node and pool, short-lived, valid for a few fetches. An unused one is valid for
//! longer, and short-lived from its first use on: its node may wait for a gateway that is away.

use attest::protocol::{ConfigCompression, ConfigForm, HexDigest, TICKET_PREFIX};
use attest::{EkDigest, EndorsedBy, Inventory, MachineObject, NodeIdentity, UnixTime};
use attest_ignition::SpecVersion;
use attest_log::ConfigSet;
use attest_machines::enrolment;
use attest_machines::instances::{self, InstanceRecord};
use attest_machines::objects::{MachineObjects, MachinesUnknown};
use attest_machines::revocations::{self, RevocationError};
use attest_pool::{MachineRules, by_its_own_tpm};
use attest_store::{EntryKind, EntryTransaction, ExpiredUse, Spend, Spendable, StoreError, UseOccasion};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::report_proofs::{self, ProvenAttestation};
use super::seal::{SealError, SealKeyRing, Sealed};
use crate::settings::TicketSettings;

/// Content of a ticket. Only the seal makes it authentic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TicketContent {
    id: String,
    identity: NodeIdentity,
    /// Cloud instance, if that is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<NodeIdentity>,
    /// Owner of the instance; if it had none, only `held_since` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// Time since when, in seconds since 1970; absent without an instance. A new claim of the instance has another time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_since: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    pool: String,
    /// The decision that earned it.
    decision: String,
    /// Set if only the allowlist endorsed the TPM.
    by_allowlist: bool,
    /// Set if only its manufacturer endorsed it.
    by_maker: bool,
    /// The Machine object of the cluster that it was let in by, if it was one: its `uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    expires: u64,
    /// Lifetime at the time of issue, in seconds; absent where `late` is.
    #[serde(default, skip_serializing_if = "is_zero")]
    lifetime: u64,
    /// Grace period after expiry for a ticket that was not used until then, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    late: u64,
    uses: u32,
    /// Form of the config; absent: plain JSON, in the version that the request accepts.
    #[serde(default, skip_serializing_if = "TicketConfig::is_plain")]
    config: TicketConfig,
}

/// Form of the config for a ticket. The node's pointer names the same, so every gateway that opens the ticket has to keep to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TicketConfig {
    /// Compression of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<ConfigCompression>,
    /// The exact config, if the pointer has its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<ConfigPromise>,
}

/// The config that a ticket is for, whatever the pool has when it is fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigPromise {
    pub set: ConfigSet,
    pub spec_version: SpecVersion,
    /// SHA-256 of the config as JSON, hexadecimal.
    pub sha256: String,
    /// Time of the promise, in seconds since 1970.
    pub at: u64,
    /// The last second at which a gateway that does not have the config yet waits for it.
    pub wait_until: u64,
}

impl TicketConfig {
    /// Returns whether nothing was agreed with the node.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what the node is told; `None` if nothing was agreed.
    #[must_use]
    pub fn form(&self) -> Option<ConfigForm> {
        (!self.is_plain()).then(|| ConfigForm {
            compression: self.compression,
            sha256: self.promise.as_ref().and_then(|promise| HexDigest::from_hex(&promise.sha256)),
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

impl TicketContent {
    /// Returns the last second at which it can be used, if its first use is `late` seconds after it has expired.
    const fn last(&self, late: u64) -> u64 {
        if late == 0 {
            return self.expires;
        }
        self.expires.saturating_add(late).saturating_add(self.lifetime)
    }

    /// Returns the ticket as the store spends it.
    fn thing(&self) -> Spendable {
        Spendable {
            kind: EntryKind::Ticket,
            id: self.id.clone(),
            limit: self.uses,
            // The same for each of its uses, whenever it is: what may have been forgotten is told by it.
            remember_until: self.last(self.late),
        }
    }
}

/// Result of an attestation, for which a ticket is issued.
#[derive(Debug, Clone, Copy)]
pub struct TicketGrant<'e> {
    pub identity: &'e NodeIdentity,
    /// Cloud instance, if it is known.
    pub instance: Option<&'e NodeIdentity>,
    /// Owner of the instance, with the time of the claim, if it has one: [`instances::record`].
    pub holder: Option<&'e InstanceRecord>,
    /// Its name, if it has one.
    pub name: Option<&'e str>,
    /// The pool that the ticket is for.
    pub pool: &'e str,
    /// The decision that earned it.
    pub decision: &'e str,
    /// Endorsement of the node's TPM, if it has attested by one.
    pub endorsed_by: Option<&'e EndorsedBy>,
    /// The Machine object of the cluster that it was let in by, if it was one.
    pub object: Option<&'e MachineObject>,
    /// Form of the config.
    pub config: &'e TicketConfig,
}

/// Machines that the pool lists individually at the moment: by its inventory, and by Machine objects of the cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct StillListed<'p> {
    pub inventory: Option<&'p Inventory>,
    pub machines: Option<(&'p MachineObjects, &'p MachineRules)>,
}

/// A ticket just issued. A secret.
pub struct IssuedTicket {
    /// The text that the node presents.
    pub text: String,
    /// The last second at which it is valid, since 1970.
    pub expires: u64,
    /// Proof of the same attestation for reports, valid for as long as the ticket can be.
    pub report: String,
    /// Form of its config; `None` for plain JSON.
    pub config: Option<ConfigForm>,
}

/// Issues a ticket under the seal.
///
/// # Errors
/// [`SealError`].
pub fn issue(seal: &SealKeyRing, settings: &TicketSettings, earned: &TicketGrant<'_>, now: UnixTime) -> Result<IssuedTicket, SealError> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| SealError::Random)?;
    let content = TicketContent {
        id: HEXLOWER.encode(&id),
        identity: earned.identity.clone(),
        instance: earned.instance.filter(|instance| *instance != earned.identity).cloned(),
        holder: earned.holder.map(|first| first.holder.clone()),
        // Of what is nobody's: that it was, at this time.
        held_since: earned.holder.map(|first| first.at).or(earned.instance.map(|_| now.as_secs())),
        name: earned.name.map(str::to_owned),
        pool: earned.pool.to_owned(),
        decision: earned.decision.to_owned(),
        by_allowlist: matches!(earned.endorsed_by, Some(EndorsedBy::Allowlist)),
        by_maker: matches!(earned.endorsed_by, Some(EndorsedBy::Root { .. })),
        object: earned.object.map(|object| object.uid.clone()),
        expires: now.as_secs().saturating_add(settings.lifetime.as_secs()),
        lifetime: if settings.late.is_zero() { 0 } else { settings.lifetime.as_secs() },
        late: settings.late.as_secs(),
        uses: settings.uses,
        config: earned.config.clone(),
    };
    let bytes = serde_json::to_vec(&content)?;
    let attestation = ProvenAttestation {
        decision: content.decision,
        identity: content.identity,
        instance: content.instance,
        name: content.name,
        pool: content.pool,
        expires: content.expires,
    };
    Ok(IssuedTicket {
        report: report_proofs::issue(seal, attestation, settings.longest(), now)?,
        text: format!("{TICKET_PREFIX}{}", seal.seal(Sealed::Ticket, &bytes)?),
        expires: content.expires,
        config: content.config.form(),
    })
}

/// A ticket that this gateway issued for the requested pool. It has not expired, or not if this is its first use. It is not yet used.
#[derive(Debug)]
pub struct PresentedTicket {
    content: TicketContent,
    now: u64,
    /// Latest first use after expiry, in seconds.
    late: u64,
}

/// A ticket that was good for this fetch. Only [`PresentedTicket::redeem`] makes one.
#[derive(Debug, Clone)]
pub struct RedeemedTicket {
    pool: String,
    use_number: u32,
    late_seconds: Option<u64>,
}

impl RedeemedTicket {
    /// Returns the pool that it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the number of this use; the first is 1.
    #[must_use]
    pub const fn use_number(&self) -> u32 {
        self.use_number
    }

    /// Returns the seconds from expiry to this use, if the ticket had expired: then this was its first use.
    #[must_use]
    pub const fn late_seconds(&self) -> Option<u64> {
        self.late_seconds
    }
}

/// Reason for refusing a ticket.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// This gateway did not issue it.
    #[error("the ticket was not issued by this gateway")]
    Invalid,
    #[error("the ticket expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired { expires: u64, now: u64 },
    /// It is too old, and was used before that, or its first use is too long ago.
    #[error("the ticket expired at {expires}, it is now {now} (seconds since 1970); the grace period is only for unused tickets")]
    ExpiredAfterUse { expires: u64, now: u64 },
    /// It is for another pool.
    #[error("the ticket is for pool {ticket}, but the request is for pool {asked}")]
    WrongPool {
        /// Pool that the ticket is for.
        ticket: String,
        /// The pool asked for.
        asked: String,
    },
    /// It was used as often as it may be.
    #[error("the ticket's {uses} uses are spent")]
    Spent {
        /// Number of uses that it allows.
        uses: u32,
    },
    /// The allowlist no longer endorses the TPM, or not for this pool.
    #[error("{identity} was removed from the allowlist for pool {pool} after it attested")]
    Withdrawn { identity: NodeIdentity, pool: String },
    /// The instance was released, or went over to another.
    #[error("{instance} belonged to {holder} when it attested; since then it was released, or claimed by another")]
    Released {
        instance: NodeIdentity,
        /// Owner of the instance when the ticket was earned.
        holder: String,
    },
    /// The pool's inventory no longer names the machine, nor does an existing Machine object of the cluster.
    #[error(
        "{identity} was in the inventory of pool {pool} when it attested; since then it was removed, has another TPM there, or became a Node"
    )]
    NotInInventory {
        /// The cloud instance, or else the machine's identity.
        identity: NodeIdentity,
        pool: String,
    },
    /// The pointer has the hash of a config that this gateway no longer has.
    #[error("the ticket is for a config of pool {pool} with SHA-256 {sha256}, which has changed since")]
    ConfigChanged { pool: String, sha256: String },
    /// The request accepts only versions older than that of the promised config.
    #[error("the ticket is for a config in spec {promised}, but the request accepts only {asked}")]
    SpecVersion {
        promised: SpecVersion,
        /// Version that the request accepts.
        asked: SpecVersion,
    },
    /// It is not known which machines the cluster has.
    #[error(transparent)]
    MachinesUnknown(#[from] MachinesUnknown),
    /// The node is revoked, or the store failed.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the part of a ticket's text that the seal has made; empty if the text is not a ticket.
#[must_use]
pub fn sealed(text: &str) -> &str {
    text.strip_prefix(TICKET_PREFIX).unwrap_or_default()
}

/// Looks at a ticket for the config of `pool`, and uses nothing up. What the administrator says today of late uses counts, if it is less than when the
/// ticket was issued.
///
/// # Errors
/// [`TicketError::Invalid`], [`TicketError::Expired`] and [`TicketError::WrongPool`].
pub fn open(seal: &SealKeyRing, settings: &TicketSettings, text: &str, pool: &str, now: UnixTime) -> Result<PresentedTicket, TicketError> {
    let sealed = text.strip_prefix(TICKET_PREFIX).ok_or(TicketError::Invalid)?;
    let bytes = seal.unseal(Sealed::Ticket, sealed).map_err(|_| TicketError::Invalid)?;
    let content: TicketContent = serde_json::from_slice(&bytes).map_err(|_| TicketError::Invalid)?;
    let late = content.late.min(settings.late.as_secs());
    if now.as_secs() > content.last(late) {
        return Err(TicketError::Expired {
            expires: content.expires,
            now: now.as_secs(),
        });
    }
    if content.pool != pool {
        return Err(TicketError::WrongPool {
            ticket: content.pool,
            asked: pool.to_owned(),
        });
    }
    Ok(PresentedTicket {
        content,
        now: now.as_secs(),
        late,
    })
}

impl PresentedTicket {
    /// Returns the node that it was issued to.
    #[must_use]
    pub const fn identity(&self) -> &NodeIdentity {
        &self.content.identity
    }

    /// Returns the node's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.content.name.as_deref()
    }

    /// Returns the id of the decision that earned it.
    #[must_use]
    pub fn decision(&self) -> &str {
        &self.content.decision
    }

    /// Returns how the config is sent for it.
    #[must_use]
    pub const fn config(&self) -> &TicketConfig {
        &self.content.config
    }

    /// Uses the ticket once, if its node is by the store still one that would have earned it. [`PresentedTicket::is_listed`] asks the rest.
    ///
    /// # Errors
    /// [`TicketError`]. A ticket that is refused for what has become of its node is not used up by that.
    pub fn redeem(&self, transaction: &mut EntryTransaction<'_>) -> Result<RedeemedTicket, TicketError> {
        self.stands(transaction)?;
        let (occasion, late_seconds) = self.occasion();
        let TicketContent { uses, expires, .. } = self.content;
        match transaction.spend(&self.content.thing(), &occasion, self.now)? {
            Spend::Granted { use_number } | Spend::Again { use_number } => Ok(RedeemedTicket {
                pool: self.content.pool.clone(),
                use_number,
                late_seconds,
            }),
            Spend::Exhausted => Err(TicketError::Spent { uses }),
            Spend::TooLate => Err(TicketError::ExpiredAfterUse { expires, now: self.now }),
        }
    }

    /// Returns the occasion of this use, and how late it is, if the ticket has expired.
    fn occasion(&self) -> (UseOccasion, Option<u64>) {
        let TicketContent { expires, lifetime, .. } = self.content;
        match self.now.checked_sub(expires) {
            None | Some(0) => (UseOccasion::Any, None),
            Some(late) => {
                let first_until = expires.saturating_add(self.late);
                let seconds = lifetime;
                (UseOccasion::Late(ExpiredUse { first_until, seconds }), Some(late))
            }
        }
    }

    /// Checks that the machine is still listed: since it attested, it may have been taken out of the inventory, or its Machine object be
    /// gone. To be in either is enough.
    ///
    /// # Errors
    /// [`TicketError::NotInInventory`] and [`TicketError::MachinesUnknown`].
    pub fn is_listed(&self, StillListed { inventory, machines }: StillListed<'_>) -> Result<(), TicketError> {
        let TicketContent {
            identity,
            instance,
            pool,
            by_maker,
            object,
            ..
        } = &self.content;
        if inventory.is_none() && machines.is_none()
            || inventory.is_some_and(|inventory| inventory.still_admits(identity, instance.as_ref(), *by_maker))
        {
            return Ok(());
        }
        if let (Some((machines, rules)), Some(object)) = (machines, object)
            && machines.current(rules, self.now)?.still_has(object, &rules.of)
        {
            return Ok(());
        }
        Err(TicketError::NotInInventory {
            identity: instance.as_ref().unwrap_or(identity).clone(),
            pool: pool.clone(),
        })
    }

    /// Checks the node in the store again: since it attested, it may have been revoked, or taken off the allowlist, or its instance
    /// released.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn stands(&self, transaction: &mut EntryTransaction<'_>) -> Result<(), TicketError> {
        let TicketContent {
            identity,
            instance,
            name,
            pool,
            by_allowlist,
            ..
        } = &self.content;
        let names: Vec<&str> = name.as_deref().into_iter().collect();
        let identities: Vec<&str> = instance.iter().chain([identity]).map(NodeIdentity::as_str).collect();
        let ek: Option<EkDigest> = identity.as_str().strip_prefix("tpm:").and_then(|digest| digest.parse().ok());
        let instances = identities.iter().map(|identity| (EntryKind::Instance, *identity));
        let listed = ek.map(|ek| ek.to_string());
        let of_clouds = identities.iter().filter(|identity| !identity.starts_with("tpm:"));
        let of_clouds: Vec<String> = of_clouds
            .flat_map(|instance| by_its_own_tpm(instance).into_iter().chain([(*instance).to_owned()]))
            .collect();
        transaction.fetch(instances.chain(listed.iter().chain(&of_clouds).map(|id| (EntryKind::Ek, id.as_str()))))?;
        revocations::refuse(transaction, &names, &identities)?;
        self.belongs(transaction)?;
        let record = match ek {
            Some(ek) => enrolment::allowlisted(transaction, ek)?,
            None => None,
        };
        let mut is_kept_out = false;
        for instance in &of_clouds {
            is_kept_out |= enrolment::listed(transaction, instance)?.is_some_and(|record| !record.may_join(pool));
        }
        // Where the allowlist says nothing of a TPM, its maker's root may.
        if !is_kept_out && record.map_or(!by_allowlist, |record| record.may_join(pool)) {
            return Ok(());
        }
        Err(TicketError::Withdrawn {
            identity: identity.clone(),
            pool: pool.clone(),
        })
    }

    /// Checks the owner of the instance, if it is one: still the same, since the same time, or still none.
    fn belongs(&self, transaction: &mut EntryTransaction<'_>) -> Result<(), TicketError> {
        let TicketContent {
            identity,
            instance,
            holder,
            held_since,
            ..
        } = &self.content;
        if holder.is_none() && held_since.is_none() {
            return Ok(());
        }
        let instance = instance.as_ref().unwrap_or(identity);
        let still = match (instances::record(transaction, instance)?, holder) {
            // Who comes back after a release has it anew, though he is known by the same.
            (Some(first), Some(holder)) => first.holder == *holder && *held_since == Some(first.at),
            (None, None) => true,
            _ => false,
        };
        if still {
            return Ok(());
        }
        Err(TicketError::Released {
            instance: instance.clone(),
            holder: holder.clone().unwrap_or_else(|| "nobody".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
