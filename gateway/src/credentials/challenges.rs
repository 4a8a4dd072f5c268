//! Challenges on their way out and back: sealed, good for a short time, and for one answer.

mod attempts;

pub use attempts::{AnswerAttempts, Attempt};
use attest::{Challenge, UnixTime};
use attest_store::{EntryKind, EntryTransaction, Spend, Spendable, Store, StoreError, UseOccasion};

use super::seal::{NotSealed, SealError, SealKeyRing, Sealed};

/// Seals a challenge into the text that the node sends back.
///
/// # Errors
/// [`SealError`].
pub fn seal(seal: &SealKeyRing, challenge: &Challenge) -> Result<String, SealError> {
    let content = serde_json::to_vec(challenge)?;
    seal.seal(Sealed::Challenge, &content)
}

/// Challenge that this gateway sealed, not yet spent. A reader of its content could answer it, so no record takes it.
#[derive(Debug)]
pub struct OpenedChallenge(Challenge);

/// Challenge that can no longer be answered, once the transaction that has spent it is committed. Only this module makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent(Challenge);

impl Spent {
    #[must_use]
    pub const fn challenge(&self) -> &Challenge {
        &self.0
    }

    /// Returns the challenge, for a record.
    #[must_use]
    pub fn into_challenge(self) -> Challenge {
        self.0
    }
}

/// Challenge whose evidence is looked at.
#[derive(Debug)]
pub enum AnsweredChallenge {
    /// The decision spends it.
    Opened(OpenedChallenge),
    /// It was spent beforehand.
    Spent(Spent),
}

impl AnsweredChallenge {
    /// Returns the challenge, like [`OpenedChallenge::peek`].
    #[must_use]
    pub const fn peek(&self) -> &Challenge {
        match self {
            Self::Opened(OpenedChallenge(challenge)) | Self::Spent(Spent(challenge)) => challenge,
        }
    }

    /// Spends the challenge if it is not spent yet.
    ///
    /// # Errors
    /// [`ChallengeError::Spent`] and [`ChallengeError::Store`].
    pub async fn spend(&self, store: &dyn Store) -> Result<Spent, ChallengeError> {
        match self {
            Self::Opened(opened) => opened.spend(store).await,
            Self::Spent(spent) => Ok(spent.clone()),
        }
    }

    /// Checks whether the challenge can be spent.
    ///
    /// # Errors
    /// [`ChallengeError::Spent`] and [`ChallengeError::Store`].
    pub fn can_spend(&self, transaction: &mut EntryTransaction<'_>) -> Result<(), ChallengeError> {
        match self {
            Self::Opened(opened) => opened
                .spent(transaction.would_spend(&opened.thing(), &UseOccasion::Any, 0)?)
                .map(drop),
            Self::Spent(_) => Ok(()),
        }
    }

    /// Like [`Self::spend`], as a part of the decision's transaction.
    ///
    /// # Errors
    /// [`ChallengeError::Spent`] and [`ChallengeError::Store`].
    pub fn spend_in(&self, transaction: &mut EntryTransaction<'_>) -> Result<Spent, ChallengeError> {
        match self {
            Self::Opened(opened) => opened.spent(transaction.spend(&opened.thing(), &UseOccasion::Any, 0)?),
            Self::Spent(spent) => Ok(spent.clone()),
        }
    }
}

/// Reason for refusing a challenge.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeError {
    /// This gateway did not seal it.
    #[error("the challenge was {0}")]
    NotSealed(#[from] NotSealed),
    #[error("the challenge expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired { expires: u64, now: u64 },
    /// It was answered before.
    #[error("the challenge was answered before")]
    Spent,
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenedChallenge {
    /// Opens a sealed challenge.
    ///
    /// # Errors
    /// [`ChallengeError::NotSealed`] and [`ChallengeError::Expired`].
    pub fn open(seal: &SealKeyRing, text: &str, now: UnixTime) -> Result<Self, ChallengeError> {
        let content = seal.unseal(Sealed::Challenge, text)?;
        // Sealed by a newer release of this gateway, at worst.
        let challenge: Challenge = serde_json::from_slice(&content).map_err(|_| NotSealed)?;
        if now.as_secs() > challenge.expires {
            return Err(ChallengeError::Expired {
                expires: challenge.expires,
                now: now.as_secs(),
            });
        }
        Ok(Self(challenge))
    }

    /// Returns the challenge, to look up its node. Nothing of it may be disclosed before it is spent.
    #[must_use]
    pub const fn peek(&self) -> &Challenge {
        &self.0
    }

    /// Spends the challenge. It is spent before anything is recorded or answered about its evidence: one challenge is one attempt, whatever
    /// comes of it, and a crash cannot make it two.
    ///
    /// # Errors
    /// [`ChallengeError::Spent`] and [`ChallengeError::Store`].
    pub async fn spend(&self, store: &dyn Store) -> Result<Spent, ChallengeError> {
        self.spent(store.spend(self.thing()).await?)
    }

    fn thing(&self) -> Spendable {
        Spendable {
            kind: EntryKind::Challenge,
            id: self.0.id.to_string(),
            limit: 1,
            remember_until: self.0.expires,
        }
    }

    fn spent(&self, found: Spend) -> Result<Spent, ChallengeError> {
        match found {
            Spend::Granted { .. } => Ok(Spent(self.0.clone())),
            Spend::Again { .. } | Spend::Exhausted | Spend::TooLate => Err(ChallengeError::Spent),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use attest::challenge::Subject;
    use attest::protocol::{Blob, HexDigest};

    use super::*;

    const EXPIRES: u64 = 1_800_000_120;

    /// Opens a challenge at this time, before anything is spent, and before evidence is looked at.
    fn opened(at: u64) -> Result<Challenge, ChallengeError> {
        let folder = tempfile::tempdir().unwrap();
        let key = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
        let challenge = Challenge {
            id: HexDigest::from([3; 32]),
            issued: EXPIRES - 120,
            expires: EXPIRES,
            purpose: "ignition-config".to_owned(),
            pool: "worker".to_owned(),
            name: None,
            nonce: Blob(vec![7; 32]),
            subject: Subject::default(),
        };
        let text = seal(&key, &challenge).unwrap();
        OpenedChallenge::open(&key, &text, UnixTime::since_unix_epoch(Duration::from_secs(at))).map(|opened| opened.0)
    }

    #[test]
    fn a_challenge_is_valid_through_its_last_second() {
        assert_eq!(opened(EXPIRES).unwrap().expires, EXPIRES);
        for late in [EXPIRES + 1, EXPIRES + 1_000_000, u64::MAX] {
            let refused = opened(late);
            assert!(
                matches!(refused, Err(ChallengeError::Expired { expires: EXPIRES, now }) if now == late),
                "{refused:?}"
            );
        }
    }
}
