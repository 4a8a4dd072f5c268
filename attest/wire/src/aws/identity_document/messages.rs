//! The identity document's part of the wire messages.

use serde::{Deserialize, Serialize};

use crate::values::{Blob, HexDigest, Text};

/// An identity document, which by itself could come from anybody who has a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentAttester {
    /// [`crate::protocol::Attester::claimant_sha256`], in messages of older nodes and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimant_sha256: Option<HexDigest>,
}

/// An instance identity document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentEvidence {
    /// The PKCS#7 message, as the metadata server gives it: base64, in lines.
    pub pkcs7: Text,
    /// [`crate::protocol::Evidence::claimant`], of older nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimant: Option<Blob>,
}
