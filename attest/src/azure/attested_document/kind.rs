//! The attested document as a kind of evidence.

use super::{AttestedDocumentError, AttestedDocumentRules, AzureEvidence, AzureSubject, VerifiedAttestedDocument};
use crate::kinds::EvidenceKind;
use crate::values::Nothing;

/// An attested document of Azure.
#[derive(Debug)]
pub enum AttestedDocument {}

impl EvidenceKind for AttestedDocument {
    type Offer = Nothing;
    type Task = Nothing;
    type Subject = AzureSubject;
    type Evidence = AzureEvidence;
    type Rules = AttestedDocumentRules;
    type Proof = VerifiedAttestedDocument;
    type Error = AttestedDocumentError;
}
