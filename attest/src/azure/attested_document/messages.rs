//! The attested document's part of the wire messages, and of the challenge.

use serde::{Deserialize, Serialize};

use super::nonce::NonceForm;
use crate::values::Text;

/// Which nonce an attested document has to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureSubject {
    /// How it follows from the challenge. Challenges of before say nothing of it.
    #[serde(default)]
    pub nonce: NonceForm,
}

/// An attested document of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureEvidence {
    /// `signature` of the metadata server's answer: base64.
    pub signature: Text,
}
