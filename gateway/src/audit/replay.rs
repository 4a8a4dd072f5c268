//! A recorded decision, made again: what an auditor does months later.

use std::sync::Arc;

use attest::protocol::{Blob, Evidence};
use attest::{AttestationResult, Endorsements, Reject, Subject, Submission, UnixTime};
use serde::Deserialize;

use super::blobs::{BlobError, Blobs};
use super::record::Basis;
use crate::ek_roots;

/// What a line has to have to be replayed.
#[derive(Debug, Deserialize)]
struct Line {
    at: u64,
    basis: Basis,
}

/// Why a line cannot be replayed, or how the decision comes out now.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Not a line of the attestation log, or one without evidence.
    #[error("this line holds no evidence: {0}")]
    Line(#[from] serde_json::Error),
    /// A part is missing from the line.
    #[error("this line has no {0}")]
    Missing(&'static str),
    /// A large part is missing or altered.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The evidence is refused.
    #[error(transparent)]
    Reject(#[from] Reject),
}

/// Verifies and appraises recorded evidence with the recorded endorsements, reference values, keys and time.
///
/// # Errors
/// [`ReplayError::Reject`] if it is refused (again), the other variants if the record is not whole.
pub fn replay(line: &str, blobs: &Blobs) -> Result<AttestationResult, ReplayError> {
    let Line { at, basis } = serde_json::from_str(line)?;
    let challenge = basis.challenge.ok_or(ReplayError::Missing("challenge"))?;
    let reference_values = basis.reference_values.ok_or(ReplayError::Missing("reference values"))?;
    let mut evidence = basis.evidence.ok_or(ReplayError::Missing("evidence"))?;
    if let Some(name) = basis.event_log_sha256 {
        let Evidence::Tpm(tpm) = &mut evidence;
        tpm.event_log = Some(Blob(blobs.get(&name)?));
    }
    let certificates = basis.ek_roots.iter().map(|name| blobs.get(name)).collect::<Result<Vec<_>, _>>()?;
    let (roots, _) = ek_roots::sorted(certificates.into_iter().map(Into::into));
    let mut endorsements = Endorsements::new(Arc::new(roots));
    if basis.allowlisted {
        let Subject::Tpm(subject) = &challenge.subject;
        endorsements = endorsements.allow(subject.attester.ek_digest()?);
    }
    let submission = Submission {
        challenge: &challenge,
        evidence: &evidence,
        server_keys: &basis.server_keys,
    };
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at));
    let claims = attest::verify(&submission, &endorsements, now)?;
    Ok(attest::appraise(claims, &reference_values)?)
}
