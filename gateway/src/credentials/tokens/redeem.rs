//! Use of a token, if it is valid for a fetch.

use std::net::IpAddr;

use attest::UnixTime;
use attest_store::{EntryKind, EntryTransaction, Spend, Spendable, StoreError, UseHolder, UseOccasion};
use attest_system::clock::rfc3339;

use super::holder::{AGAIN_SECONDS, Claimant, REPEATS_LIMIT, TokenHolder};
use super::record::TokenRecord;
use super::secret;

/// A token that is valid for this pool, from this address, at this time. Not yet used: it may be spent.
#[derive(Debug)]
pub struct PresentedToken {
    /// Its id in the store: its hash.
    id: String,
    pub(super) record: TokenRecord,
    pub(super) pool: String,
    pub(super) peer: IpAddr,
    now: UnixTime,
}

/// A token that was good for this fetch. Only [`PresentedToken::redeem`] makes one.
#[derive(Debug, Clone)]
pub struct RedeemedToken {
    name: String,
    pool: String,
    use_number: u32,
    is_repeated: bool,
    stale: Option<String>,
}

impl RedeemedToken {
    /// Returns the name that the administrator gave the token.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pool that was asked for, and that it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the number of this use; the first is 1.
    #[must_use]
    pub const fn use_number(&self) -> u32 {
        self.use_number
    }

    /// Returns whether the same node has made this use before: it counts once.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Returns a message to the administrator if the token was rotated: some pointer has the old one.
    #[must_use]
    pub fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }
}

/// Reason for refusing a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The store has no such token.
    #[error("the token does not exist")]
    Invalid,
    #[error("token {name:?} expired at {expires}, it is now {now} (seconds since 1970){}", rotated(*.superseded))]
    Expired {
        name: String,
        expires: u64,
        /// Time of its rotation, if that is the reason.
        superseded: Option<u64>,
        now: u64,
    },
    /// It is for another pool.
    #[error("token {name:?} is for pool {token}, but the request is for pool {asked}")]
    WrongPool {
        name: String,
        /// Pools that it is for.
        token: String,
        /// The pool asked for.
        asked: String,
    },
    /// It is not for use from there.
    #[error("token {name:?} may be used from {token}, but the request came from {peer}")]
    WrongNetwork {
        name: String,
        /// Networks that it may come from.
        token: String,
        /// Address that it came from.
        peer: IpAddr,
    },
    /// It was used as often as it may be.
    #[error("the {uses} uses of token {name:?} are spent")]
    Spent {
        name: String,
        /// Number of uses that it allows.
        uses: u32,
    },
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn rotated(superseded: Option<u64>) -> String {
    superseded.map_or_else(String::new, |at| format!("; it was rotated at {at}, its pointer is stale"))
}

/// Returns the token with this text, and how often it was used. No use is spent.
///
/// # Errors
/// [`StoreError`].
pub fn look_up(transaction: &mut EntryTransaction<'_>, text: &str) -> Result<Option<(TokenRecord, u32)>, StoreError> {
    let Some((id, record)) = find(transaction, text)? else {
        return Ok(None);
    };
    Ok(Some((record, transaction.uses(EntryKind::TokenUse, &id)?)))
}

/// Returns the token with this text, and its id.
fn find(transaction: &mut EntryTransaction<'_>, text: &str) -> Result<Option<(String, TokenRecord)>, StoreError> {
    let Some(id) = secret::hash_of_text(text) else { return Ok(None) };
    match transaction.get(EntryKind::Token, &id)? {
        Some(entry) if secret::is_same(&entry.id, &id) => {
            let record = TokenRecord::read(&entry)?;
            Ok(Some((entry.id, record)))
        }
        _ => Ok(None),
    }
}

/// Looks at a token for the config of `pool`, from `peer`, and uses nothing up.
///
/// # Errors
/// [`TokenError`], all but [`TokenError::Spent`].
pub fn open(
    transaction: &mut EntryTransaction<'_>,
    text: &str,
    pool: &str,
    peer: IpAddr,
    now: UnixTime,
) -> Result<PresentedToken, TokenError> {
    let (id, record) = find(transaction, text)?.ok_or(TokenError::Invalid)?;
    check(&record, pool, peer, now)?;
    Ok(PresentedToken {
        id,
        record,
        pool: pool.to_owned(),
        peer,
        now,
    })
}

impl PresentedToken {
    /// Returns the name that the administrator gave the token.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Uses the token once: the last that can be wrong with a decision. A node that has used it a short while ago uses nothing up.
    ///
    /// # Errors
    /// [`TokenError::Spent`] and [`TokenError::Store`].
    pub fn redeem(self, transaction: &mut EntryTransaction<'_>, node: TokenHolder<'_>) -> Result<RedeemedToken, TokenError> {
        let (use_number, again) = match transaction.spend(&self.thing(), &self.occasion(node), self.now.as_secs())? {
            Spend::Granted { use_number } => (use_number, false),
            Spend::Again { use_number } => (use_number, true),
            Spend::Exhausted | Spend::TooLate => return Err(self.spent()),
        };
        let TokenRecord {
            name, expires, superseded, ..
        } = self.record;
        let stale = superseded.map(|superseded| {
            format!(
                "stale pointer: token {name:?} was rotated at {}; the previous one, which was used, is valid until {}",
                rfc3339(superseded.at),
                rfc3339(expires)
            )
        });
        Ok(RedeemedToken {
            name,
            pool: self.pool,
            use_number,
            is_repeated: again,
            stale,
        })
    }

    /// Returns the occasion of a use: for a token without a limit, each use is one. A node that is known by more than its address is never
    /// confused with another one at the same address.
    fn occasion(&self, node: TokenHolder<'_>) -> UseOccasion {
        let again = |who: &str, of: &str, seconds| {
            UseOccasion::By(UseHolder {
                id: format!("{who} {of} {}", self.pool),
                seconds,
                repeats: REPEATS_LIMIT,
            })
        };
        match (node, self.record.uses, self.record.again) {
            (_, None, _) | (TokenHolder::Unknown, _, None) => UseOccasion::Any,
            (TokenHolder::Claimant(Claimant(digest)), ..) => again("claimant", digest, AGAIN_SECONDS),
            (TokenHolder::Attested(identity), ..) => again("identity", identity.as_str(), AGAIN_SECONDS),
            (TokenHolder::Unknown, _, Some(seconds)) => again("address", &self.peer.to_string(), seconds),
        }
    }

    fn thing(&self) -> Spendable {
        Spendable {
            kind: EntryKind::TokenUse,
            id: self.id.clone(),
            limit: self.limit(),
            remember_until: self.record.expires,
        }
    }

    fn limit(&self) -> u32 {
        self.record.uses.unwrap_or(u32::MAX)
    }

    fn spent(&self) -> TokenError {
        TokenError::Spent {
            name: self.record.name.clone(),
            uses: self.limit(),
        }
    }
}

/// Checks everything but the number of uses.
fn check(record: &TokenRecord, pool: &str, peer: IpAddr, now: UnixTime) -> Result<(), TokenError> {
    let name = || record.name.clone();
    if record.is_expired(now) {
        return Err(TokenError::Expired {
            name: name(),
            expires: record.ends(),
            superseded: record.superseded.as_ref().map(|superseded| superseded.at),
            now: now.as_secs(),
        });
    }
    if !record.pools.contains(pool) {
        return Err(TokenError::WrongPool {
            name: name(),
            token: record.pools.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
            asked: pool.to_owned(),
        });
    }
    if !record.may_come_from(peer) {
        let networks: Vec<String> = record.networks.iter().map(ToString::to_string).collect();
        return Err(TokenError::WrongNetwork {
            name: name(),
            token: networks.join(", "),
            peer,
        });
    }
    Ok(())
}
