//! A TPM's quote as a kind of evidence.

use super::claims::TpmClaims;
use super::error::TpmEvidenceError;
use super::messages::{TpmAttester, TpmEvidence, TpmSubject, TpmTask};
use super::reference_values::ReferenceValues;
use crate::kinds::EvidenceKind;

/// A TPM's quote.
#[derive(Debug)]
pub enum Tpm {}

impl EvidenceKind for Tpm {
    type Offer = TpmAttester;
    type Task = TpmTask;
    type Subject = TpmSubject;
    type Evidence = TpmEvidence;
    type Rules = ReferenceValues;
    type Proof = TpmClaims;
    type Error = TpmEvidenceError;
}
