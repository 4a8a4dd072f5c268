//! Reading PCRs and quoting them.

use std::collections::BTreeMap;

use attest_wire::tpm::wire::HashAlg;
use tss_esapi::constants::CapabilityType;
use tss_esapi::handles::KeyHandle;
use tss_esapi::structures::{AttestInfo, CapabilityData, Data, PcrSelectionList, PcrSelectionListBuilder, PcrSlot, SignatureScheme};
use tss_esapi::traits::Marshall as _;

use super::attester::Attester;
use super::error::Doing as _;
use super::hash::hashing_algorithm;
use super::retry::{EMPTY_PASSWORD, UNAUTHORIZED};
use super::{TpmDevice, TpmError};

/// Number of attempts to read and quote if PCRs change in between. Nothing should extend PCRs 0 to 15 while a node waits for its config; a
/// late driver or systemd may once or twice.
const ATTEMPTS: u32 = 5;

/// A quote and the PCR values that it covers.
#[derive(Debug, Clone)]
pub struct QuoteWithPcrs {
    /// Signed structure (`TPMS_ATTEST`), marshalled.
    pub quoted: Vec<u8>,
    /// Signature over it (`TPMT_SIGNATURE`), marshalled.
    pub signature: Vec<u8>,
    /// PCR values, by PCR index.
    pub pcrs: BTreeMap<u8, Vec<u8>>,
}

impl Attester<'_> {
    /// Quotes exactly these PCRs of one bank.
    ///
    /// # Arguments
    /// `extra_data` becomes the quote's extraData; `pcrs` are indexes below 32.
    ///
    /// # Errors
    /// [`TpmError::NoBank`], [`TpmError::PcrsChanging`], [`TpmError::Command`].
    pub fn quote(&mut self, extra_data: &[u8], bank: HashAlg, pcrs: &[u8]) -> Result<QuoteWithPcrs, TpmError> {
        let (ak, hash) = (self.ak, self.kind.hash());
        self.tpm.quote_by(ak, hash, extra_data, bank, pcrs)
    }
}

impl TpmDevice {
    /// Quotes exactly these PCRs of one bank with a loaded AK, whose scheme has this hash.
    pub(super) fn quote_by(
        &mut self,
        ak: KeyHandle,
        hash: HashAlg,
        extra_data: &[u8],
        bank: HashAlg,
        pcrs: &[u8],
    ) -> Result<QuoteWithPcrs, TpmError> {
        const DOING: &str = "quoting the PCRs";
        let selection = selection(bank, pcrs)?;
        for _ in 0..ATTEMPTS {
            let values = self.read_pcrs(bank, pcrs)?;
            let data = Data::try_from(extra_data).doing(DOING)?;
            let (attest, signature) = self.run(DOING, EMPTY_PASSWORD, |context| {
                context.quote(ak, data.clone(), SignatureScheme::Null, selection.clone())
            })?;
            let AttestInfo::Quote { info } = attest.attested() else {
                return Err(TpmError::Unexpected {
                    what: "an attestation of another kind than a quote",
                });
            };
            // TPM2_Quote does not say which values it signed: they are right if their digest is.
            if info.pcr_digest().value() == pcr_digest(hash, &values).as_slice() {
                let (quoted, signature) = (attest.marshall().doing(DOING)?, signature.marshall().doing(DOING)?);
                return Ok(QuoteWithPcrs {
                    quoted,
                    signature,
                    pcrs: values,
                });
            }
        }
        Err(TpmError::PcrsChanging { attempts: ATTEMPTS })
    }

    /// Values of exactly these PCRs.
    ///
    /// # Errors
    /// [`TpmError::NoBank`] if the TPM does not have all of them in this bank, [`TpmError::Command`].
    pub fn read_pcrs(&mut self, bank: HashAlg, pcrs: &[u8]) -> Result<BTreeMap<u8, Vec<u8>>, TpmError> {
        const DOING: &str = "reading the PCRs";
        let mut values = BTreeMap::new();
        let mut missing = pcrs.to_vec();
        while !missing.is_empty() {
            // One TPM2_PCR_Read returns eight values at the most (TPML_DIGEST), and says which.
            let wanted = selection(bank, &missing)?;
            let (_, returned, digests) = self.run(DOING, UNAUTHORIZED, |context| context.pcr_read(wanted.clone()))?;
            let slots = returned
                .get_selections()
                .iter()
                .flat_map(|selected| selected.selected())
                .map(index_of);
            let before = missing.len();
            for (index, digest) in slots.zip(digests.value()) {
                if missing.contains(&index) && digest.value().len() == bank.digest_bytes() {
                    values.insert(index, digest.value().to_vec());
                    missing.retain(|other| *other != index);
                }
            }
            if missing.len() == before {
                return Err(TpmError::NoBank {
                    wanted: bank.to_string(),
                    available: self.banks()?,
                });
            }
        }
        Ok(values)
    }

    /// The PCR banks in use, for a message.
    pub(crate) fn banks(&mut self) -> Result<String, TpmError> {
        let (data, _) = self.run("listing the PCR banks", UNAUTHORIZED, |context| {
            context.get_capability(CapabilityType::AssignedPcr, 0, 1)
        })?;
        let CapabilityData::AssignedPcr(banks) = data else {
            return Err(TpmError::Unexpected {
                what: "another capability than asked for",
            });
        };
        let names: Vec<String> = banks
            .get_selections()
            .iter()
            .filter(|bank| !bank.is_empty())
            .map(|bank| format!("{:?}", bank.hashing_algorithm()).to_lowercase())
            .collect();
        Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    }
}

fn selection(bank: HashAlg, pcrs: &[u8]) -> Result<PcrSelectionList, TpmError> {
    let bank = hashing_algorithm(bank);
    // Three bytes of selection: what PC Client TPMs, which have 24 PCRs, take.
    let slots: Result<Vec<PcrSlot>, _> = pcrs
        .iter()
        .map(|index| PcrSlot::try_from(1_u32.checked_shl(u32::from(*index)).unwrap_or(0)))
        .collect();
    slots
        .and_then(|slots| {
            PcrSelectionListBuilder::new()
                .with_size_of_select(tss_esapi::structures::PcrSelectSize::ThreeOctets)
                .with_selection(bank, &slots)
                .build()
        })
        .doing("selecting the PCRs")
}

fn index_of(slot: PcrSlot) -> u8 {
    u8::try_from(u32::from(slot).trailing_zeros()).unwrap_or(u8::MAX)
}

/// Computes `TPMS_QUOTE_INFO.pcrDigest`: the values in ascending order, hashed with the hash of the AK's scheme.
fn pcr_digest(hash: HashAlg, values: &BTreeMap<u8, Vec<u8>>) -> Vec<u8> {
    let parts: Vec<&[u8]> = values.values().map(Vec::as_slice).collect();
    hash.digest(&parts).as_ref().to_vec()
}
