//! A provisioning token together with evidence.

use serde::{Deserialize, Serialize};

use crate::kinds::{MachineCloud, Messages, Parts};
use crate::values::{Blob, Nothing, SecretText};

/// Evidence that consists of a provisioning token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEvidence {
    pub token: SecretText,
}

/// A provisioning token, together with evidence of another kind.
#[derive(Debug)]
pub enum Token {}

impl Messages for Token {
    type Offer = Nothing;
    type Task = Nothing;
    type Evidence = TokenEvidence;

    const CLOUD: Option<MachineCloud> = None;
    const SIGNS_PURPOSE: bool = false;

    fn shown_parts(_: &TokenEvidence) -> Parts<'_> {
        Vec::new()
    }

    fn size(evidence: &TokenEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.token.reveal().len())
    }

    fn forget_secrets(evidence: &mut TokenEvidence) {
        evidence.token = SecretText::default();
    }
}
