//! The attested document as a kind of evidence.

use super::AzureEvidence;
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing};

/// An attested document of Azure.
#[derive(Debug)]
pub enum AttestedDocument {}

impl Messages for AttestedDocument {
    type Offer = Nothing;
    type Task = Nothing;
    type Evidence = AzureEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Microsoft);

    fn shown_parts(evidence: &AzureEvidence) -> Parts<'_> {
        vec![("signature".into(), evidence.signature.0.as_bytes().into())]
    }

    fn size(evidence: &AzureEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.signature.0.len())
    }
}
