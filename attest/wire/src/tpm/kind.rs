//! A TPM's quote as a kind of evidence.

use super::{INTERMEDIATES_LIMIT, TpmAttester, TpmEvidence, TpmTask};
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::Blob;

/// Evidence from a TPM: a quote.
#[derive(Debug)]
pub enum Tpm {}

impl Messages for Tpm {
    type Offer = TpmAttester;
    type Task = TpmTask;
    type Evidence = TpmEvidence;

    const CLOUD: Option<MachineCloud> = None;
    const IS_OF_A_TPM: bool = true;

    fn offered_parts(offer: &TpmAttester) -> Parts<'_> {
        let mut parts: Parts<'_> = vec![
            ("ek_public".into(), offer.ek_public.as_ref().into()),
            ("ak_public".into(), offer.ak_public.as_ref().into()),
        ];
        let certificate = offer.ek_certificate.iter();
        parts.extend(certificate.map(|certificate| ("ek_certificate".into(), certificate.as_ref().into())));
        // As many as a TPM may present.
        for (index, certificate) in offer.ek_intermediates.iter().take(INTERMEDIATES_LIMIT).enumerate() {
            parts.push((format!("ek_intermediates.{index}").into(), certificate.as_ref().into()));
        }
        parts
    }

    fn shown_parts(evidence: &TpmEvidence) -> Parts<'_> {
        let mut parts: Parts<'_> = vec![
            ("quoted".into(), evidence.quoted.as_ref().into()),
            ("signature".into(), evidence.signature.as_ref().into()),
        ];
        parts.extend(evidence.event_log.iter().map(|log| ("event_log".into(), log.as_ref().into())));
        parts
    }

    /// Its event log has a limit of its own.
    fn size(_: &TpmEvidence, _: Option<&Blob>) -> Option<usize> {
        None
    }
}
