//! The vTPM's part of the wire messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::VmId;
use crate::values::{Blob, HexDigest};

/// A vTPM's AK as the node presents it, and which machine it says to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureVtpmAttester {
    /// AK public area, TPMT_PUBLIC, of the object at [`super::AK_HANDLE`].
    pub ak_public: Blob,
    /// Azure's certificate for it, as read from [`super::AK_CERTIFICATE_NV_INDEX`] (DER, padding allowed).
    pub ak_certificate: Blob,
    /// Intermediate certificates (DER) between it and a root. Used to build the chain only; never trusted as such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ak_intermediates: Vec<Blob>,
    /// The vmId that the metadata service says. The quote has to prove it.
    pub vm_id: VmId,
}

/// Quote these PCRs with the AK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureVtpmTask {
    /// Bank to quote: `sha256` or `sha384`.
    pub pcr_bank: String,
    /// PCRs to quote, ascending.
    pub pcrs: Vec<u8>,
}

/// Evidence from an Azure vTPM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureVtpmEvidence {
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
