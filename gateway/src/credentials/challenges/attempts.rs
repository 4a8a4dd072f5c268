//! Attempts to answer challenges that this process knows of. A copy of evidence is then refused without a verification, while its challenge
//! is still to be spent and afterwards.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use attest::protocol::HexDigest;
use attest::{Challenge, UnixTime};

/// Number of attempts that are known at most: those of 1,000 boots a second for the lifetime of a challenge, in some 15 MB.
const ATTEMPTS_LIMIT: usize = 131_072;

/// Attempts whose challenges are valid yet.
#[derive(Debug)]
pub struct AnswerAttempts {
    known: Mutex<KnownAttempts>,
    limit: usize,
}

#[derive(Debug, Default)]
struct KnownAttempts {
    /// Challenges, with the last second of their lifetime.
    begun: HashMap<HexDigest, u64>,
    /// Number of attempts at which those that are over are forgotten.
    full: usize,
    /// Second in which that was done last.
    looked: u64,
}

/// Place of an answer among all answers to its challenge, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// This is the first answer.
    First,
    /// There was an answer before.
    Repeated,
    /// Too many attempts are known. The store tells whether there was another.
    Unknown,
}

impl Default for AnswerAttempts {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            limit: ATTEMPTS_LIMIT,
        }
    }
}

impl AnswerAttempts {
    /// Begins an attempt, until [`Self::undo`] or the end of the challenge's lifetime.
    pub fn begin(&self, challenge: &Challenge, now: UnixTime) -> Attempt {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.begun.contains_key(&challenge.id) {
            return Attempt::Repeated;
        }
        if known.begun.len() >= known.full {
            if known.looked != now.as_secs() {
                known.looked = now.as_secs();
                known.begun.retain(|_, expires| *expires >= now.as_secs());
            }
            if known.begun.len() >= self.limit {
                return Attempt::Unknown;
            }
            // So as many come until the next look as it goes through.
            known.full = (2 * known.begun.len()).clamp(1, self.limit);
        }
        known.begun.insert(challenge.id.clone(), challenge.expires);
        Attempt::First
    }

    /// Takes back an attempt of which nothing came: the gateway could not answer.
    pub fn undo(&self, challenge: &Challenge) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .begun
            .remove(&challenge.id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use attest::challenge::Subject;
    use attest::protocol::Blob;

    use super::*;

    const LIFETIME: u64 = 120;

    fn at(second: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(second))
    }

    fn challenge(number: u32, issued: u64) -> Challenge {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&number.to_be_bytes());
        Challenge {
            id: HexDigest::from(id),
            issued,
            expires: issued + LIFETIME,
            purpose: "ignition-config".to_owned(),
            pool: "worker".to_owned(),
            name: None,
            nonce: Blob(Vec::new()),
            subject: Subject::default(),
        }
    }

    #[test]
    fn one_of_many_concurrent_answers_is_the_first() {
        let (attempts, asked) = (AnswerAttempts::default(), challenge(1, 0));
        let begin = || {
            std::thread::scope(|scope| {
                let begun: Vec<_> = (0..16).map(|_| scope.spawn(|| attempts.begin(&asked, at(0)))).collect();
                begun.into_iter().map(|begun| begun.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let firsts = |begun: &[Attempt]| begun.iter().filter(|attempt| **attempt == Attempt::First).count();
        let begun = begin();
        assert_eq!((firsts(&begun), begun.contains(&Attempt::Unknown)), (1, false));
        assert_eq!(begin(), [Attempt::Repeated; 16]);
        attempts.undo(&asked);
        assert_eq!(firsts(&begin()), 1);
    }

    #[test]
    fn attempts_are_known_until_their_challenges_expire() {
        let attempts = AnswerAttempts::default();
        for second in 0..1000 {
            for number in 0..10 {
                assert_eq!(
                    attempts.begin(&challenge(second * 10 + number, second.into()), at(second.into())),
                    Attempt::First
                );
            }
            let oldest = second.saturating_sub(u32::try_from(LIFETIME).unwrap());
            let again = attempts.begin(&challenge(oldest * 10, oldest.into()), at(second.into()));
            assert_eq!(again, Attempt::Repeated, "{second}");
        }
        // Those of two lifetimes, as long as only half of what is looked through may be over.
        let known = attempts.known.lock().unwrap().begun.len();
        assert!(known <= usize::try_from(2 * LIFETIME + 2).unwrap() * 10, "{known}");
    }

    #[test]
    fn number_of_known_attempts_is_limited() {
        let attempts = AnswerAttempts {
            limit: 100,
            ..AnswerAttempts::default()
        };
        let begin = |numbers: std::ops::Range<u32>, second| {
            numbers
                .map(|number| attempts.begin(&challenge(number, 0), at(second)))
                .collect::<Vec<_>>()
        };
        assert_eq!(begin(0..100, 0), [Attempt::First; 100]);
        assert_eq!(begin(100..200, LIFETIME), [Attempt::Unknown; 100]);
        assert_eq!(begin(0..100, LIFETIME), [Attempt::Repeated; 100]);
        // Whatever comes, the challenges of these are over.
        assert_eq!(begin(200..300, LIFETIME + 1), [Attempt::First; 100]);
    }
}
