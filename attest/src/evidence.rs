//! Evidence: from what a node sent to what it has proven.

use rustls_pki_types::UnixTime;

use crate::challenge::{Challenge, Subject};
use crate::claims::Claims;
use crate::endorsements::Endorsements;
use crate::nonce::SpkiSha256;
use crate::protocol::Evidence;
use crate::reject::Reject;
use crate::tpm;

/// Evidence, and what it answers.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The challenge, opened.
    pub challenge: &'a Challenge,
    /// The answer.
    pub evidence: &'a Evidence,
    /// Keys that the node may have seen this server use: the current one and, after a rotation, the one before.
    pub server_keys: &'a [SpkiSha256],
}

/// Verifies Evidence: a pure function of its arguments, so that the same record gives the same answer years later.
///
/// # Errors
/// [`Reject`]: one variant for each thing that can be wrong.
pub fn verify(submission: &Submission<'_>, endorsements: &Endorsements, now: UnixTime) -> Result<Claims, Reject> {
    let Submission {
        challenge,
        evidence,
        server_keys,
    } = *submission;
    if now.as_secs() > challenge.expires {
        return Err(Reject::ChallengeExpired {
            expires: challenge.expires,
            now: now.as_secs(),
        });
    }
    match (&challenge.subject, evidence) {
        (Subject::Tpm(subject), Evidence::Tpm(evidence)) => {
            tpm::verifier::verify(challenge, subject, evidence, server_keys, endorsements, now)
        }
    }
}
