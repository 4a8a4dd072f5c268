//! Challenges on their way out and back: sealed, good for a short time, and for one answer.

use attest::{Challenge, UnixTime};
use serde::{Deserialize, Serialize};

use crate::seal::{NotSealed, Seal, SealError, Sealed};
use crate::store::{Kind, Spend, Spendable, Store, StoreError};

/// Seals a challenge into the text that the node sends back.
///
/// # Errors
/// [`SealError`].
pub fn seal(seal: &Seal, challenge: &Challenge) -> Result<String, SealError> {
    let content = serde_json::to_vec(challenge).map_err(|_| SealError::Random)?;
    seal.seal(Sealed::Challenge, &content)
}

/// A challenge that this gateway sealed. Not yet spent: whoever reads what is in it can answer it, so no record takes it.
#[derive(Debug)]
pub struct Opened(Challenge);

/// A challenge that nobody can answer any more. Only [`Opened::spend`] makes one; read back, it is a record's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spent(Challenge);

impl Spent {
    /// The challenge.
    #[must_use]
    pub const fn challenge(&self) -> &Challenge {
        &self.0
    }
}

/// Why a challenge is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeError {
    /// This gateway did not seal it.
    #[error("the challenge was {0}")]
    NotSealed(#[from] NotSealed),
    /// It is too old.
    #[error("the challenge expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired {
        /// Its last second.
        expires: u64,
        /// Now.
        now: u64,
    },
    /// It was answered before.
    #[error("the challenge was answered before")]
    Spent,
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Opened {
    /// Opens a sealed challenge.
    ///
    /// # Errors
    /// [`ChallengeError::NotSealed`] and [`ChallengeError::Expired`].
    pub fn open(seal: &Seal, text: &str, now: UnixTime) -> Result<Self, ChallengeError> {
        let content = seal.unseal(Sealed::Challenge, text)?;
        // Sealed by another release of this gateway, at worst.
        let challenge: Challenge = serde_json::from_slice(&content).map_err(|_| NotSealed)?;
        if !challenge.is_of_today() {
            return Err(NotSealed.into());
        }
        if now.as_secs() > challenge.expires {
            return Err(ChallengeError::Expired {
                expires: challenge.expires,
                now: now.as_secs(),
            });
        }
        Ok(Self(challenge))
    }

    /// The challenge, to see whose it is. Nothing of it may be said before it is spent.
    #[must_use]
    pub const fn peek(&self) -> &Challenge {
        &self.0
    }

    /// Spends the challenge. It is spent before the evidence is looked at: one challenge is one attempt, whatever comes of it, and a
    /// crash cannot make it two.
    ///
    /// # Errors
    /// [`ChallengeError::Spent`] and [`ChallengeError::Store`].
    pub async fn spend(self, store: &dyn Store) -> Result<Spent, ChallengeError> {
        let thing = Spendable {
            kind: Kind::Challenge,
            id: self.0.id.to_string(),
            limit: 1,
            remember_until: self.0.expires,
        };
        match store.spend(thing).await? {
            Spend::Granted { .. } => Ok(Spent(self.0)),
            Spend::Exhausted => Err(ChallengeError::Spent),
        }
    }
}
