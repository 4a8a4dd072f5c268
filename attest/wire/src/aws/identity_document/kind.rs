//! The identity document as a kind of evidence.

use super::IdentityDocumentEvidence;
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing};

/// An instance identity document of AWS.
#[derive(Debug)]
pub enum IdentityDocument {}

impl Messages for IdentityDocument {
    type Offer = Nothing;
    type Task = Nothing;
    type Evidence = IdentityDocumentEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Amazon);
    const SIGNS_PURPOSE: bool = false;

    fn shown_parts(evidence: &IdentityDocumentEvidence) -> Parts<'_> {
        vec![("pkcs7".into(), evidence.pkcs7.0.as_bytes().into())]
    }

    fn size(evidence: &IdentityDocumentEvidence, claimant: Option<&Blob>) -> Option<usize> {
        Some(evidence.pkcs7.0.len() + claimant.map_or(0, |claimant| claimant.0.len()))
    }
}
