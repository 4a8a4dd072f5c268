//! The NitroTPM document as a kind of evidence.

use super::{NitroTpmError, NitroTpmEvidence, NitroTpmRules, NitroTpmSubject, VerifiedNitroTpm};
use crate::kinds::EvidenceKind;
use crate::values::Nothing;

/// A NitroTPM attestation document of AWS.
#[derive(Debug)]
pub enum NitroTpm {}

impl EvidenceKind for NitroTpm {
    type Offer = Nothing;
    type Task = Nothing;
    type Subject = NitroTpmSubject;
    type Evidence = NitroTpmEvidence;
    type Rules = NitroTpmRules;
    type Proof = VerifiedNitroTpm;
    type Error = NitroTpmError;
}
