//! Appraisal: whether what was proven is what the pool accepts.

use serde::Serialize;

use crate::claims::Claims;
use crate::reference_values::{Accepted, ReferenceValues};
use crate::reject::Reject;

/// Claims that a pool's reference values accept. Only [`appraise`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct AttestationResult {
    claims: Claims,
}

impl AttestationResult {
    /// What was proven.
    #[must_use]
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// Compares every quoted PCR with the pool's reference values.
///
/// # Errors
/// [`Reject::ReferenceSelection`] if the quote covers other PCRs than the values speak of (the pool was changed since the
/// challenge), [`Reject::PcrMismatch`] for the first PCR whose value is not accepted.
pub fn appraise(claims: Claims, reference_values: &ReferenceValues) -> Result<AttestationResult, Reject> {
    let tpm = &claims.tpm;
    if tpm.pcr_bank != reference_values.bank() || !tpm.pcrs.keys().eq(reference_values.pcrs().keys()) {
        let list = |bank: crate::HashAlg, pcrs: Vec<String>| format!("{bank}:{}", pcrs.join(","));
        return Err(Reject::ReferenceSelection {
            quoted: list(tpm.pcr_bank, tpm.pcrs.keys().map(u8::to_string).collect()),
            wanted: list(reference_values.bank(), reference_values.pcrs().keys().map(u8::to_string).collect()),
        });
    }
    for ((&index, quoted), accepted) in tpm.pcrs.iter().zip(reference_values.pcrs().values()) {
        match accepted {
            Accepted::NotChecked => {}
            Accepted::AnyOf(digests) if digests.contains(quoted) => {}
            Accepted::AnyOf(digests) => {
                return Err(Reject::PcrMismatch {
                    index,
                    bank: tpm.pcr_bank,
                    quoted: quoted.to_string(),
                    accepted: digests.iter().map(ToString::to_string).collect(),
                });
            }
        }
    }
    Ok(AttestationResult { claims })
}
