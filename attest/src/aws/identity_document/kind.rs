//! The identity document as a kind of evidence.

use super::{ClaimedDocument, IdentityDocumentAttester, IdentityDocumentError, IdentityDocumentEvidence, IdentityDocumentRules};
use crate::kinds::EvidenceKind;
use crate::values::Nothing;

/// An instance identity document of AWS.
#[derive(Debug)]
pub enum IdentityDocument {}

impl EvidenceKind for IdentityDocument {
    type Offer = IdentityDocumentAttester;
    type Task = Nothing;
    type Subject = IdentityDocumentAttester;
    type Evidence = IdentityDocumentEvidence;
    type Rules = IdentityDocumentRules;
    type Proof = ClaimedDocument;
    type Error = IdentityDocumentError;
}
