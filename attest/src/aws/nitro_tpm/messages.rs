//! The NitroTPM document's part of the wire messages, and of the challenge.

use serde::{Deserialize, Serialize};

use super::document::Shape;
use crate::values::Blob;

/// Which of AWS's documents is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NitroTpmSubject {
    /// The document's shape: there is one.
    pub shape: Shape,
}

/// A NitroTPM attestation document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NitroTpmEvidence {
    /// The COSE_Sign1 message.
    pub document: Blob,
}
