//! Selects the parts of evidence that are kept with a decision about it.

use attest::protocol::Evidence;
use attest::{Challenge, Claims, Kind};
use attest_log::{Basis, DeltaBases, LargeParts, Likened, RequestDigests, Verdict};

use super::{DecidedCase, DecisionBasis};
use crate::api::decisions::Decided;

impl<T> DecidedCase<T> {
    /// Returns the decision with those of its inputs that may be kept.
    pub(in super::super) fn decided(self, mut evidence: Evidence, likenesses: &DeltaBases) -> Decided<T> {
        let Self {
            mut record,
            spent,
            made,
            begins_to_wait,
            outcome,
        } = self;
        let DecisionBasis {
            anchors,
            mut basis,
            claimed,
            ..
        } = made;
        let mut kept = LargeParts::new();
        // The evidence of a machine that begins to wait is what the administrator reads.
        let proven = record.claims.is_some() || is_activated(spent.challenge(), &evidence, begins_to_wait);
        // Whoever reads the document of an instance that belongs to nobody could claim it.
        let exposes = evidence.aws_identity_document.is_some() && !claimed;
        if proven && !exposes && evidence.too_large().is_none() {
            basis.challenge = Some(spent.into_challenge());
            kept = anchors.into_large_parts();
            let is_trusted = record.verdict == Verdict::Trusted;
            if let Some(claims) = &record.claims {
                leave_out_proven_pcrs(&mut evidence, claims);
            }
            kept.extend(keep_evidence(evidence, &mut basis, likenesses, is_trusted));
        } else {
            basis = by_digest(&evidence);
        }
        record.basis = Some(basis);
        Decided {
            record,
            large_parts: kept,
            outcome,
        }
    }
}

/// Returns whether the evidence comes from the challenged TPM: a problem of an endorsed machine is worth a whole record. One that nobody
/// endorses is worth it only if it begins to wait.
fn is_activated(challenge: &Challenge, evidence: &Evidence, begins_to_wait: bool) -> bool {
    match (&challenge.subject.tpm, &evidence.tpm) {
        (Some(asked), Some(shown)) => asked.secret_sha256 == shown.secret_sha256 && (!asked.unendorsed || begins_to_wait),
        _ => false,
    }
}

/// Returns the basis of a refusal of evidence that has proven nothing, or would help a reader of the log: digests only.
pub(in super::super) fn by_digest(evidence: &Evidence) -> Box<Basis> {
    Box::new(Basis {
        digests: Some(RequestDigests::from_evidence(evidence)),
        ..Basis::default()
    })
}

/// Removes the values of PCRs that the claims, in the same record, have.
fn leave_out_proven_pcrs(evidence: &mut Evidence, claims: &Claims) {
    for (kind, quoted) in claims.quotes() {
        let shown = match kind {
            Kind::Tpm => evidence.tpm.as_mut().map(|tpm| &mut tpm.pcrs),
            Kind::AzureVtpm => evidence.azure_vtpm.as_mut().map(|vtpm| &mut vtpm.pcrs),
            _ => None,
        };
        if let Some(shown) = shown.filter(|shown| *shown == quoted.pcrs) {
            shown.clear();
        }
    }
}

/// Puts the evidence into the record without its secrets. Event logs are stored separately: once for all machines with the same log, or as
/// the difference from a stored one.
fn keep_evidence(mut evidence: Evidence, basis: &mut Basis, likenesses: &DeltaBases, is_trusted: bool) -> LargeParts {
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
