use attest_wire::azure::attested_document::NonceForm;
use serde::{Deserialize, Serialize};

/// Required form of an attested document's nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureSubject {
    /// The form of the nonce that follows from the challenge.
    pub nonce: NonceForm,
}
