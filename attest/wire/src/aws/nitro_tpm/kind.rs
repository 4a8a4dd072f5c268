//! The NitroTPM document as a kind of evidence.

use super::NitroTpmEvidence;
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing};

/// A NitroTPM attestation document of AWS.
#[derive(Debug)]
pub enum NitroTpm {}

impl Messages for NitroTpm {
    type Offer = Nothing;
    type Task = Nothing;
    type Evidence = NitroTpmEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Amazon);
    const IS_OF_A_TPM: bool = true;

    fn shown_parts(evidence: &NitroTpmEvidence) -> Parts<'_> {
        vec![("document".into(), evidence.document.as_ref().into())]
    }

    fn size(evidence: &NitroTpmEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.document.0.len())
    }
}
