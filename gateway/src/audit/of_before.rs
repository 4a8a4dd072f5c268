//! Refusals in the words of earlier releases: a record that one of them has written is compared with these, too.

use attest::Reject;
use attest::azure::vtpm::AzureVtpmError;
use attest::tpm::TpmEvidenceError;

/// A refusal as earlier releases said it, if that was otherwise.
#[must_use]
pub fn of_before(reject: &Reject) -> Option<Reject> {
    match reject {
        Reject::Tpm(error) => tpm(error).map(Reject::from),
        Reject::AzureVtpm(AzureVtpmError::Tpm(error)) => tpm(error).map(AzureVtpmError::from).map(Reject::from),
        _ => None,
    }
}

fn tpm(error: &TpmEvidenceError) -> Option<TpmEvidenceError> {
    match error {
        TpmEvidenceError::Boot(refusal) => refusal.of_before().map(TpmEvidenceError::from),
        _ => None,
    }
}
