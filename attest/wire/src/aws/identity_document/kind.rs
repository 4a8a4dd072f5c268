//! The identity document as a kind of evidence.

use super::{IdentityDocumentAttester, IdentityDocumentEvidence};
use crate::kinds::{Cloud, Messages, Parts};
use crate::values::{Blob, HexDigest, Nothing};

/// An instance identity document of AWS.
#[derive(Debug)]
pub enum IdentityDocument {}

impl Messages for IdentityDocument {
    type Offer = IdentityDocumentAttester;
    type Task = Nothing;
    type Evidence = IdentityDocumentEvidence;

    const CLOUD: Option<Cloud> = Some(Cloud::Amazon);
    const SIGNS_PURPOSE: bool = false;

    fn shown_parts(evidence: &IdentityDocumentEvidence) -> Parts<'_> {
        vec![("pkcs7".into(), evidence.pkcs7.0.as_bytes().into())]
    }

    fn size(evidence: &IdentityDocumentEvidence, claimant: Option<&Blob>) -> Option<usize> {
        let claimant = evidence.claimant.as_ref().or(claimant);
        Some(evidence.pkcs7.0.len() + claimant.map_or(0, |claimant| claimant.0.len()))
    }

    fn claimant_offered(offer: &IdentityDocumentAttester) -> Option<&HexDigest> {
        offer.claimant_sha256.as_ref()
    }

    fn claimant_shown(evidence: &IdentityDocumentEvidence) -> Option<&Blob> {
        evidence.claimant.as_ref()
    }

    fn forget_secrets(evidence: &mut IdentityDocumentEvidence) {
        evidence.claimant = None;
    }
}
