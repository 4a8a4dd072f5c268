//! Tickets: what a successful attestation earns. Bound to node and pool, short-lived, good for a few fetches.

use attest::{EndorsedBy, Inventory, NodeIdentity, UnixTime};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::revocations::RevocationError;
use crate::seal::{Seal, SealError, Sealed};
use crate::settings::TicketSettings;
use crate::store::{Kind, Occasion, Pending, Spend, Spendable, Store, StoreError};
use crate::{enrolment, revocations};

/// What every ticket begins with; no provisioning token can.
pub const PREFIX: &str = "ticket.";

/// What a ticket says. Only the seal makes it true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    id: String,
    identity: NodeIdentity,
    /// Which instance of a cloud it is, if that is not the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<NodeIdentity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    pool: String,
    /// The decision that earned it.
    decision: String,
    /// Whether nobody but the allowlist vouched for the TPM.
    #[serde(default)]
    by_allowlist: bool,
    /// Whether nobody but its maker did.
    #[serde(default)]
    by_maker: bool,
    expires: u64,
    uses: u32,
}

/// What a ticket is issued for.
#[derive(Debug, Clone, Copy)]
pub struct Earned<'e> {
    /// The node.
    pub identity: &'e NodeIdentity,
    /// Which instance of a cloud it is, if that is known.
    pub instance: Option<&'e NodeIdentity>,
    /// Its name, if it has one.
    pub name: Option<&'e str>,
    /// The pool that the ticket is for.
    pub pool: &'e str,
    /// The decision that earned it.
    pub decision: &'e str,
    /// Who vouched for the node's TPM, if it has attested by one.
    pub endorsed_by: Option<&'e EndorsedBy>,
}

/// A ticket just issued. A secret.
pub struct Issued {
    /// The text that the node presents.
    pub text: String,
    /// The last second at which it is good, since 1970.
    pub expires: u64,
}

/// Issues a ticket.
///
/// # Errors
/// [`SealError`].
pub fn issue(seal: &Seal, settings: &TicketSettings, earned: &Earned<'_>, now: UnixTime) -> Result<Issued, SealError> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| SealError::Random)?;
    let content = Content {
        id: HEXLOWER.encode(&id),
        identity: earned.identity.clone(),
        instance: earned.instance.filter(|instance| *instance != earned.identity).cloned(),
        name: earned.name.map(str::to_owned),
        pool: earned.pool.to_owned(),
        decision: earned.decision.to_owned(),
        by_allowlist: matches!(earned.endorsed_by, Some(EndorsedBy::Allowlist)),
        by_maker: matches!(earned.endorsed_by, Some(EndorsedBy::Root { .. })),
        expires: now.as_secs().saturating_add(settings.lifetime.as_secs()),
        uses: settings.uses,
    };
    let bytes = serde_json::to_vec(&content).map_err(|_| SealError::Random)?;
    Ok(Issued {
        text: format!("{PREFIX}{}", seal.seal(Sealed::Ticket, &bytes)?),
        expires: content.expires,
    })
}

/// A ticket that this gateway issued for the pool asked for, and that is not too old. Not yet used.
#[derive(Debug)]
pub struct Presented(Content);

/// A ticket that was good for this fetch. Only [`Presented::redeem`] makes one.
#[derive(Debug, Clone)]
pub struct Redeemed {
    pool: String,
    use_number: u32,
}

impl Redeemed {
    /// The pool it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Which use this was; the first is 1.
    #[must_use]
    pub const fn use_number(&self) -> u32 {
        self.use_number
    }
}

/// Why a ticket is refused.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// This gateway did not issue it.
    #[error("the ticket was not issued by this gateway")]
    Invalid,
    /// It is too old.
    #[error("the ticket expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired {
        /// Its last second.
        expires: u64,
        /// Now.
        now: u64,
    },
    /// It is for another pool.
    #[error("the ticket is for pool {ticket}, asked for was {asked}")]
    WrongPool {
        /// The ticket's pool.
        ticket: String,
        /// The pool asked for.
        asked: String,
    },
    /// It was used as often as it may be.
    #[error("the ticket's {uses} uses are spent")]
    Spent {
        /// Its limit.
        uses: u32,
    },
    /// Who vouched for the TPM does so no longer, or not for this pool.
    #[error("{identity} was endorsed for pool {pool} by the allowlist when it attested, and is not any longer")]
    Withdrawn {
        /// The node.
        identity: NodeIdentity,
        /// The ticket's pool.
        pool: String,
    },
    /// The pool's inventory names the machine no longer.
    #[error("{identity} was in the inventory of pool {pool} when it attested, and is not any longer, or with another TPM")]
    NotInInventory {
        /// The machine.
        identity: NodeIdentity,
        /// The ticket's pool.
        pool: String,
    },
    /// The node is revoked, or the store cannot tell.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Looks at a ticket for the config of `pool`, and uses nothing up.
///
/// # Errors
/// [`TicketError::Invalid`], [`TicketError::Expired`] and [`TicketError::WrongPool`].
pub fn open(seal: &Seal, text: &str, pool: &str, now: UnixTime) -> Result<Presented, TicketError> {
    let sealed = text.strip_prefix(PREFIX).ok_or(TicketError::Invalid)?;
    let bytes = seal.unseal(Sealed::Ticket, sealed).map_err(|_| TicketError::Invalid)?;
    let content: Content = serde_json::from_slice(&bytes).map_err(|_| TicketError::Invalid)?;
    if now.as_secs() > content.expires {
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
    Ok(Presented(content))
}

impl Presented {
    /// The node it was issued to.
    #[must_use]
    pub const fn identity(&self) -> &NodeIdentity {
        &self.0.identity
    }

    /// The node's name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Id of the decision that earned it.
    #[must_use]
    pub fn decision(&self) -> &str {
        &self.0.decision
    }

    /// Uses the ticket once, for the decision that is `pending`, if its node is still one that would have earned it: by the store, and by the
    /// pool's `inventory`, if that has one.
    ///
    /// # Errors
    /// [`TicketError`]. A ticket that is refused for what has become of its node is not used up by that.
    pub async fn redeem(self, store: &dyn Store, inventory: Option<&Inventory>, pending: Pending) -> Result<Redeemed, TicketError> {
        self.stands(store).await?;
        if let Some(inventory) = inventory {
            self.is_in(inventory)?;
        }
        let Content {
            id, uses, expires, pool, ..
        } = self.0;
        let thing = Spendable {
            kind: Kind::Ticket,
            id,
            limit: uses,
            remember_until: expires,
        };
        match store.spend_for(thing, Occasion::Any, pending).await? {
            Spend::Granted { use_number } | Spend::Again { use_number } => Ok(Redeemed { pool, use_number }),
            Spend::Exhausted | Spend::TooLate | Spend::Undecided => Err(TicketError::Spent { uses }),
        }
    }

    /// Asks the inventory about the machine once more: it may have been taken out of it since it attested.
    fn is_in(&self, inventory: &Inventory) -> Result<(), TicketError> {
        let Content {
            identity,
            instance,
            pool,
            by_maker,
            ..
        } = &self.0;
        if inventory.still_admits(identity, instance.as_ref(), *by_maker) {
            return Ok(());
        }
        Err(TicketError::NotInInventory {
            identity: instance.as_ref().unwrap_or(identity).clone(),
            pool: pool.clone(),
        })
    }

    /// Asks the store about the node once more: it may have been revoked, or taken off the allowlist, since it attested.
    async fn stands(&self, store: &dyn Store) -> Result<(), TicketError> {
        let Content {
            identity,
            instance,
            name,
            pool,
            by_allowlist,
            ..
        } = &self.0;
        let names: Vec<&str> = name.as_deref().into_iter().collect();
        let identities: Vec<&str> = instance.iter().chain([identity]).map(NodeIdentity::as_str).collect();
        revocations::refuse(store, &names, &identities).await?;
        let ek = identity.as_str().strip_prefix("tpm:").and_then(|digest| digest.parse().ok());
        let record = match ek {
            Some(ek) => enrolment::allowlisted(store, ek).await?,
            None => None,
        };
        // Where the allowlist says nothing of a TPM, its maker's root may.
        if record.map_or(!by_allowlist, |record| record.may_join(pool)) {
            return Ok(());
        }
        Err(TicketError::Withdrawn {
            identity: identity.clone(),
            pool: pool.clone(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use attest::EkDigest;

    use super::*;
    use crate::enrolment::EkRecord;
    use crate::store::Embedded;

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1000));

    struct Case {
        _folder: tempfile::TempDir,
        seal: Seal,
        store: Embedded,
        ek: EkDigest,
    }

    fn case() -> Case {
        let folder = tempfile::tempdir().unwrap();
        Case {
            store: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
            seal: Seal::open(&folder.path().join("seal.key")).unwrap(),
            ek: "ab".repeat(32).parse().unwrap(),
            _folder: folder,
        }
    }

    impl Case {
        fn issue(&self, by_allowlist: bool) -> String {
            let settings = TicketSettings {
                lifetime: Duration::from_secs(600),
                uses: 1,
            };
            let earned = Earned {
                identity: &NodeIdentity::of_tpm(self.ek),
                instance: None,
                name: None,
                pool: "worker",
                decision: "d",
                endorsed_by: by_allowlist.then_some(&EndorsedBy::Allowlist),
            };
            issue(&self.seal, &settings, &earned, NOW).unwrap().text
        }

        async fn redeem(&self, text: &str) -> Result<Redeemed, TicketError> {
            let pending = Pending {
                decision: "c".to_owned(),
                at: 0,
            };
            open(&self.seal, text, "worker", NOW)?.redeem(&self.store, None, pending).await
        }

        async fn allow(&self, pools: &[&str]) {
            let record = EkRecord {
                name: None,
                added: 0,
                pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
                removed: None,
            };
            enrolment::allow(&self.store, self.ek, record, false).await.unwrap();
        }
    }

    #[tokio::test]
    async fn each_ticket_has_its_own_uses() {
        let case = case();
        let (one, two) = (case.issue(false), case.issue(false));
        case.redeem(&one).await.unwrap();
        assert!(matches!(case.redeem(&one).await, Err(TicketError::Spent { uses: 1 })));
        assert_eq!(case.redeem(&two).await.unwrap().use_number(), 1);
    }

    #[test]
    fn a_ticket_is_good_to_its_last_second() {
        let case = case();
        let text = case.issue(false);
        let at = |seconds: u64| {
            open(
                &case.seal,
                &text,
                "worker",
                UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
            )
        };
        at(1600).unwrap();
        assert!(matches!(at(1601), Err(TicketError::Expired { expires: 1600, now: 1601 })));
    }

    #[tokio::test]
    async fn attack_28_a_ticket_is_worth_nothing_once_any_of_what_its_node_is_known_by_is_revoked() {
        let case = case();
        let tpm = NodeIdentity::of_tpm(case.ek);
        let instance: NodeIdentity = serde_json::from_str(r#""gcp:project/1""#).unwrap();
        let settings = TicketSettings {
            lifetime: Duration::from_secs(600),
            uses: 9,
        };
        // A TPM in an instance, and an instance that has none.
        for (identity, known_by) in [
            (&tpm, vec![tpm.as_str(), instance.as_str(), "worker-0"]),
            (&instance, vec![instance.as_str(), "worker-0"]),
        ] {
            let earned = Earned {
                identity,
                instance: Some(&instance),
                name: Some("worker-0"),
                pool: "worker",
                decision: "d",
                endorsed_by: None,
            };
            let text = issue(&case.seal, &settings, &earned, NOW).unwrap().text;
            assert_eq!(open(&case.seal, &text, "worker", NOW).unwrap().name(), Some("worker-0"));
            for who in known_by {
                revocations::revoke(&case.store, &[who.to_owned()].into(), 1, None).await.unwrap();
                assert!(matches!(case.redeem(&text).await, Err(TicketError::Revocation(_))), "{who}");
                case.store.remove(Kind::Revoked, who).await.unwrap();
            }
            assert_eq!(case.redeem(&text).await.unwrap().use_number(), 1, "no refusal has used it up");
        }
    }

    #[tokio::test]
    async fn attack_28_a_ticket_is_worth_nothing_once_nobody_vouches_for_its_tpm_and_is_not_used_up_by_that() {
        let case = case();
        let (by_list, by_root) = (case.issue(true), case.issue(false));
        let withdrawn = async |text: &str| matches!(case.redeem(text).await, Err(TicketError::Withdrawn { .. }));
        assert!(withdrawn(&by_list).await, "the entry is gone");
        case.allow(&["infra"]).await;
        assert!(withdrawn(&by_list).await && withdrawn(&by_root).await, "for another pool only");
        enrolment::disallow(&case.store, case.ek, 1).await.unwrap();
        assert!(withdrawn(&by_list).await && withdrawn(&by_root).await, "off the list");
        enrolment::forget_entry(&case.store, case.ek).await.unwrap();
        case.redeem(&by_root).await.unwrap();
        case.allow(&[]).await;
        case.redeem(&by_list).await.unwrap();
    }
}
