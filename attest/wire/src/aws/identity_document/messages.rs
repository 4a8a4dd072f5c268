//! The identity document's part of the wire messages.

use serde::{Deserialize, Serialize};

use crate::values::BearerText;

/// An instance identity document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentEvidence {
    /// The PKCS#7 message, as the metadata server gives it: base64, in lines.
    pub pkcs7: BearerText,
}
