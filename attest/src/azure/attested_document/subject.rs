use attest_wire::azure::attested_document::NonceForm;
use serde::{Deserialize, Serialize};

/// Which nonce an attested document has to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureSubject {
    /// The form of the nonce that follows from the challenge.
    pub nonce: NonceForm,
}
