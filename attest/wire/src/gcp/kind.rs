//! The identity token as a kind of evidence.

use super::{GcpEvidence, GcpTask};
use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing};

/// An identity token of Google Compute Engine.
#[derive(Debug)]
pub enum Gcp {}

impl Messages for Gcp {
    type Offer = Nothing;
    type Task = GcpTask;
    type Evidence = GcpEvidence;

    const CLOUD: Option<MachineCloud> = Some(MachineCloud::Google);

    fn shown_parts(evidence: &GcpEvidence) -> Parts<'_> {
        vec![("token".into(), evidence.token.0.as_bytes().into())]
    }

    fn size(evidence: &GcpEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.token.0.len())
    }
}
