//! The attested document's part of the wire messages.

use serde::{Deserialize, Serialize};

use crate::values::BearerText;

/// An attested document of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureEvidence {
    /// `signature` of the metadata server's answer: base64.
    pub signature: BearerText,
}
