//! The vTPM's quote as a kind of evidence.

use super::{AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmTask};
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::tpm::INTERMEDIATES_LIMIT;
use crate::values::Blob;

/// A quote by the AK of a vTPM of Azure's.
#[derive(Debug)]
pub enum AzureVtpm {}

impl Messages for AzureVtpm {
    type Offer = AzureVtpmAttester;
    type Task = AzureVtpmTask;
    type Evidence = AzureVtpmEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Microsoft);
    const IS_OF_A_TPM: bool = true;

    fn offered_parts(offer: &AzureVtpmAttester) -> Parts<'_> {
        let mut parts: Parts<'_> = vec![
            ("ak_public".into(), offer.ak_public.as_ref().into()),
            ("ak_certificate".into(), offer.ak_certificate.as_ref().into()),
        ];
        for (index, certificate) in offer.ak_intermediates.iter().take(INTERMEDIATES_LIMIT).enumerate() {
            parts.push((format!("ak_intermediates.{index}").into(), certificate.as_ref().into()));
        }
        parts
    }

    fn shown_parts(evidence: &AzureVtpmEvidence) -> Parts<'_> {
        let mut parts: Parts<'_> = vec![
            ("quoted".into(), evidence.quoted.as_ref().into()),
            ("signature".into(), evidence.signature.as_ref().into()),
        ];
        parts.extend(evidence.event_log.iter().map(|log| ("event_log".into(), log.as_ref().into())));
        parts
    }

    /// Its event log has a limit of its own.
    fn size(_: &AzureVtpmEvidence, _: Option<&Blob>) -> Option<usize> {
        None
    }
}
