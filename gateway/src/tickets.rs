//! Tickets: what a successful attestation earns. Bound to node and pool, short-lived, good for a few fetches.

use attest::{NodeIdentity, UnixTime};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::seal::{Seal, SealError, Sealed};
use crate::settings::TicketSettings;
use crate::store::{Kind, Pending, Spend, Spendable, Store, StoreError};

/// What every ticket begins with; no provisioning token can.
pub const PREFIX: &str = "ticket.";

/// What a ticket says. Only the seal makes it true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    id: String,
    identity: NodeIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    pool: String,
    /// The decision that earned it.
    decision: String,
    expires: u64,
    uses: u32,
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
pub fn issue(
    seal: &Seal,
    settings: &TicketSettings,
    identity: &NodeIdentity,
    name: Option<&str>,
    pool: &str,
    decision: &str,
    now: UnixTime,
) -> Result<Issued, SealError> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| SealError::Random)?;
    let content = Content {
        id: HEXLOWER.encode(&id),
        identity: identity.clone(),
        name: name.map(str::to_owned),
        pool: pool.to_owned(),
        decision: decision.to_owned(),
        expires: now.as_secs().saturating_add(settings.lifetime.as_secs()),
        uses: settings.uses,
    };
    let bytes = serde_json::to_vec(&content).map_err(|_| SealError::Random)?;
    Ok(Issued {
        text: format!("{PREFIX}{}", seal.seal(Sealed::Ticket, &bytes)?),
        expires: content.expires,
    })
}

/// A ticket of this gateway's, for this pool, in time. Not yet used: it may be spent.
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
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Looks at a ticket for the config of `pool`, and uses nothing up.
///
/// # Errors
/// [`TicketError`], all but [`TicketError::Spent`] and [`TicketError::Store`].
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

    /// Uses the ticket once, for the decision that is `pending`: the last that can be wrong with it.
    ///
    /// # Errors
    /// [`TicketError::Spent`] and [`TicketError::Store`].
    pub async fn redeem(self, store: &dyn Store, pending: Pending) -> Result<Redeemed, TicketError> {
        let Self(content) = self;
        let thing = Spendable {
            kind: Kind::Ticket,
            id: content.id,
            limit: content.uses,
            remember_until: content.expires,
        };
        match store.spend_for(thing, pending).await? {
            Spend::Granted { use_number } => Ok(Redeemed {
                pool: content.pool,
                use_number,
            }),
            Spend::Exhausted => Err(TicketError::Spent { uses: content.uses }),
        }
    }
}
