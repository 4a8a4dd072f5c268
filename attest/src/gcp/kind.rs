//! The identity token as a kind of evidence.

use super::{GcpError, GcpEvidence, GcpTask, Rules, VerifiedIdentity};
use crate::kinds::EvidenceKind;
use crate::values::Nothing;

/// An identity token of Google Compute Engine.
#[derive(Debug)]
pub enum Gcp {}

impl EvidenceKind for Gcp {
    type Offer = Nothing;
    type Task = GcpTask;
    type Subject = GcpTask;
    type Evidence = GcpEvidence;
    type Rules = Rules;
    type Proof = VerifiedIdentity;
    type Error = GcpError;
}
