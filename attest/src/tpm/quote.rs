//! Verification of the TPM's signature, and that it covers what was asked for.

use super::ak::AkPublic;
use super::error::TpmEvidenceError;
use super::pcr::{PcrSelection, PcrValues, SignedSelection};
use super::wire::{ClockInfo, QuoteAttest};
use crate::nonce::SpkiSha256;

/// Expected values of a quote.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedQuote<'a> {
    /// The extraData for each key that the server may have shown ([`crate::nonce::qualifying_data`]).
    pub extra_data: &'a [(SpkiSha256, [u8; 32])],
    /// Selection of the PCRs that must be quoted.
    pub selection: &'a PcrSelection,
    pub pcrs: PcrValues<'a>,
}

/// Content of a verified quote, apart from the PCRs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedQuote {
    /// The TPM's clock and counters.
    pub clock: ClockInfo,
    /// The TPM's firmware version.
    pub firmware_version: u64,
    /// The key that the server has shown, by what was signed.
    pub server_key: SpkiSha256,
}

/// Verifies a TPMS_ATTEST: first its signature, then what the signed bytes say.
///
/// # Errors
/// [`TpmEvidenceError`]: one variant for each thing that can be wrong.
pub fn verify(ak: &AkPublic, quoted: &[u8], signature: &[u8], expected: &ExpectedQuote<'_>) -> Result<VerifiedQuote, TpmEvidenceError> {
    let signed = ak.verify(quoted, signature)?;
    let quoted = QuoteAttest::parse(signed.bytes()).map_err(|error| TpmEvidenceError::Wire {
        structure: "TPMS_ATTEST",
        error,
    })?;

    let (server_key, _) = expected
        .extra_data
        .iter()
        .find(|(_, data)| quoted.extra_data == data)
        .ok_or_else(|| TpmEvidenceError::ExtraData {
            found: data_encoding::HEXLOWER.encode(&quoted.extra_data),
            keys: expected.extra_data.len(),
        })?;
    if !expected.selection.is_exactly(&quoted.selection) {
        return Err(TpmEvidenceError::Selection {
            signed: SignedSelection(&quoted.selection).to_string(),
            asked: expected.selection.to_string(),
        });
    }
    let computed = expected.pcrs.digest(ak.hash());
    if quoted.pcr_digest != computed.as_ref() {
        let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
        return Err(TpmEvidenceError::PcrDigest {
            computed: hex(computed.as_ref()),
            signed: hex(&quoted.pcr_digest),
        });
    }
    ak.check_hierarchy(&quoted.qualified_signer)?;
    Ok(VerifiedQuote {
        clock: quoted.clock,
        firmware_version: quoted.firmware_version,
        server_key: *server_key,
    })
}
