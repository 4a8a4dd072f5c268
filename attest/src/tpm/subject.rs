use serde::{Deserialize, Serialize};

use super::TpmAttester;
use super::pcr::PcrSelection;
use crate::values::HexDigest;

/// Expected values of a TPM's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmSubject {
    /// EK and AK as presented.
    pub attester: TpmAttester,
    /// SHA-256 of the secret in the credential.
    pub secret_sha256: HexDigest,
    /// The PCRs asked for.
    pub selection: PcrSelection,
    /// Nobody endorses the EK: whoever answers has proven nothing to anybody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unendorsed: bool,
}
