//! A TPM's part of the wire messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ek::{EkAreaError, EkDigest, EkPublic};
use crate::values::{Blob, HexDigest};

/// A TPM's keys as the node presents them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmAttester {
    /// EK public area, TPMT_PUBLIC.
    pub ek_public: Blob,
    /// EK certificate as read from NV (DER, padding allowed), if the TPM has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_certificate: Option<Blob>,
    /// `true` if the TPM has a certificate that the node could not read. It only affects the text of a refusal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ek_certificate_unread: bool,
    /// Intermediate certificates (DER) that the TPM carries. Used to build the chain only; never trusted as such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_intermediates: Vec<Blob>,
    /// AK public area, TPMT_PUBLIC.
    pub ak_public: Blob,
}

impl TpmAttester {
    /// Computes the digest that names the presented EK in allowlists. Says nothing about trust.
    ///
    /// # Errors
    /// [`EkAreaError`].
    pub fn ek_digest(&self) -> Result<EkDigest, EkAreaError> {
        EkPublic::parse(self.ek_public.as_ref()).map(|ek| ek.digest())
    }
}

/// Activate this credential, then quote these PCRs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmTask {
    /// Input of `TPM2_ActivateCredential`, a `TPM2B_ID_OBJECT`.
    pub credential_blob: Blob,
    /// Input of `TPM2_ActivateCredential`, a `TPM2B_ENCRYPTED_SECRET`.
    pub encrypted_secret: Blob,
    /// Bank to quote: `sha256`, `sha384` or `sha512`.
    pub pcr_bank: String,
    /// PCRs to quote, ascending.
    pub pcrs: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmEvidence {
    /// SHA-256 of the result of `TPM2_ActivateCredential`: only the TPM that holds the EK and the AK can know it.
    pub secret_sha256: HexDigest,
    /// TPMS_ATTEST that the AK signed.
    pub quoted: Blob,
    /// Signature over it, a `TPMT_SIGNATURE`.
    pub signature: Blob,
    /// PCR index → value, in the bank asked for: exactly the PCRs asked for.
    pub pcrs: BTreeMap<u8, HexDigest>,
    /// The firmware's TCG event log, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log: Option<Blob>,
}
