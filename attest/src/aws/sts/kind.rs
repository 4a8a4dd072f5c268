//! A signed request to STS as a kind of evidence.

use super::{StsError, StsEvidence, StsRules, VerifiedSts};
use crate::kinds::EvidenceKind;
use crate::values::Nothing;

/// A signed request to AWS STS.
#[derive(Debug)]
pub enum Sts {}

impl EvidenceKind for Sts {
    type Offer = Nothing;
    type Task = Nothing;
    type Subject = Nothing;
    type Evidence = StsEvidence;
    type Rules = StsRules;
    type Proof = VerifiedSts;
    type Error = StsError;
}
