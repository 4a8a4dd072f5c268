//! A signed request to STS as a kind of evidence.

use super::StsEvidence;
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing};

/// A signed request to AWS STS.
#[derive(Debug)]
pub enum Sts {}

impl Messages for Sts {
    type Offer = Nothing;
    type Task = Nothing;
    type Evidence = StsEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Amazon);

    fn shown_parts(evidence: &StsEvidence) -> Parts<'_> {
        let redacted = serde_json::to_vec(&evidence.request.redacted()).unwrap_or_default();
        vec![("request".into(), redacted.into())]
    }

    fn size(evidence: &StsEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.request.size())
    }

    fn forget_secrets(evidence: &mut StsEvidence) {
        evidence.request = evidence.request.redacted();
    }
}
