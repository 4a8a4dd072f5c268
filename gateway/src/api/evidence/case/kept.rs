//! What of evidence is kept with a decision about it.

use attest::Challenge;
use attest::protocol::Evidence;
use attest_log::{Basis, Digests, LargeParts, Likened, Likenesses, Verdict};
use axum::response::Response;

use super::{Judged, Made};
use crate::api::decisions::Decided;
use crate::api::problem::Refusal;
use crate::credentials::challenges::Spent;

impl Judged {
    /// The decision, whole: with what it was made from, as far as that may be kept.
    pub(in super::super) fn decided(self, spent: Spent, evidence: Evidence, likenesses: &Likenesses) -> Decided<Result<Response, Refusal>> {
        let Self { mut record, made, outcome } = self;
        let Made {
            anchors,
            mut basis,
            claimed,
            ..
        } = made;
        let mut kept = LargeParts::new();
        let proven = record.claims.is_some() || is_activated(spent.challenge(), &evidence);
        // Whoever reads the document of an instance that belongs to nobody could claim it.
        let exposes = evidence.aws_identity_document.is_some() && !claimed;
        if proven && !exposes && evidence.too_large().is_none() {
            basis.challenge = Some(spent.into_challenge());
            kept = anchors.into_kept();
            let is_trusted = record.verdict == Verdict::Trusted;
            kept.extend(keep_evidence(evidence, &mut basis, likenesses, is_trusted));
        } else {
            basis = by_digest(&evidence);
        }
        record.basis = Some(basis);
        Decided { record, kept, outcome }
    }
}

/// Whether the evidence comes from the TPM that was asked: what is wrong with a machine that somebody vouches for is worth a whole record.
fn is_activated(challenge: &Challenge, evidence: &Evidence) -> bool {
    match (&challenge.subject.tpm, &evidence.tpm) {
        (Some(asked), Some(shown)) => asked.secret_sha256 == shown.secret_sha256,
        _ => false,
    }
}

/// The basis of a refusal of what has proven nothing, or would help whoever reads it.
pub(in super::super) fn by_digest(evidence: &Evidence) -> Basis {
    Basis {
        digests: Some(Digests::of_evidence(evidence)),
        ..Basis::default()
    }
}

/// Puts the evidence into the record, without what is worth something to a reader; event logs go beside it, kept once for all who have the
/// same, or as what they have that one that is kept has not.
fn keep_evidence(mut evidence: Evidence, basis: &mut Basis, likenesses: &Likenesses, is_trusted: bool) -> LargeParts {
    // Whoever hears what the cloud says of the instance would be the node with it.
    basis.cloud.claimant_sha256 = evidence.claimant_sha256();
    evidence.forget_secrets();
    let of_tpm = evidence.tpm.as_mut().map(|tpm| tpm.event_log.take());
    let of_vtpm = evidence.azure_vtpm.as_mut().and_then(|vtpm| vtpm.event_log.take());
    // A machine has one log, and it is that of its TPM; whoever sends another with the vTPM's quote is recorded whole, too.
    let (log, second) = match of_tpm {
        Some(log) => (log, of_vtpm),
        None => (of_vtpm, None),
    };
    let [log, second] = [log, second].map(|log| log.map(|log| likenesses.liken(log.0, is_trusted)));
    let mut kept = LargeParts::new();
    if let Some(Likened { sha256, difference, blob }) = log {
        (basis.event_log_sha256, basis.event_log_difference) = (Some(sha256), difference);
        kept.push(blob);
    }
    if let Some(Likened { sha256, difference, blob }) = second {
        (basis.azure_vtpm_event_log_sha256, basis.azure_vtpm_event_log_difference) = (Some(sha256), difference);
        kept.push(blob);
    }
    basis.evidence = Some(evidence);
    kept
}
