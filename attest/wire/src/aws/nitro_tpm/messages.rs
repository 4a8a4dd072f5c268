//! The NitroTPM document's part of the wire messages.

use serde::{Deserialize, Serialize};

use crate::values::Blob;

/// A NitroTPM attestation document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NitroTpmEvidence {
    /// Attestation document, a `COSE_Sign1` message.
    pub document: Blob,
}
