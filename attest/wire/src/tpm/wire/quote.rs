use super::{HashAlg, TpmReader, WireError, put_sized};

/// First bytes of every `TPMS_ATTEST` (`TPM_GENERATED_VALUE`), which a restricted key never signs for others.
const GENERATED: u32 = 0xff54_4347;
/// Structure tag of a quote (`TPM_ST_ATTEST_QUOTE`).
const ATTEST_QUOTE: u16 = 0x8018;
/// A Name: algorithm and the longest digest.
const NAME_LIMIT_BYTES: usize = 2 + 64;
/// TPM2B_DATA holds a TPMT_HA.
const DATA_LIMIT_BYTES: usize = 2 + 64;
/// Length of the longest digest, SHA-512's.
const DIGEST_LIMIT_BYTES: usize = 64;
/// HASH_COUNT of the largest implementations.
const BANK_LIMIT: usize = 16;
/// 32 PCRs; PC Clients have 24.
const SELECT_LIMIT_BYTES: usize = 4;

/// Clock and counters of a TPM (`TPMS_CLOCK_INFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockInfo {
    /// Milliseconds that the TPM has been powered, over its life.
    pub clock_ms: u64,
    /// TPM Resets since the last TPM2_Clear.
    pub reset_count: u32,
    /// TPM Restarts and Resumes since the last Reset.
    pub restart_count: u32,
    /// `true` if no higher clock value can have been reported before.
    pub safe: bool,
}

/// TPMS_PCR_SELECTION. The bank stays a TPM_ALG_ID, so that a refusal can say which one was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedBank {
    /// TPM_ALG_ID of the bank.
    pub bank: u16,
    /// Bit n of byte m stands for PCR 8m+n.
    pub bitmap: Vec<u8>,
}

impl SelectedBank {
    /// The selected PCRs, ascending.
    pub fn pcrs(&self) -> impl Iterator<Item = u8> + '_ {
        (0_u8..=u8::MAX)
            .zip(self.bitmap.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)))
            .filter_map(|(pcr, selected)| selected.then_some(pcr))
    }
}

/// TPMS_ATTEST of a quote (Part 2, 10.12.12 and 10.12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuoteAttest {
    /// Qualified Name of the key that signed.
    pub qualified_signer: Vec<u8>,
    /// Caller's qualifyingData of `TPM2_Quote`.
    pub extra_data: Vec<u8>,
    /// The TPM's clock and counters.
    pub clock: ClockInfo,
    /// The TPM's firmware version, as its maker counts.
    pub firmware_version: u64,
    /// Selected PCRs, by bank (`TPML_PCR_SELECTION`).
    pub selection: Vec<SelectedBank>,
    /// Digest over the selected PCRs, by the hash of the signing scheme.
    pub pcr_digest: Vec<u8>,
}

impl QuoteAttest {
    /// Reads a TPMS_ATTEST that is a quote, all of `bytes`. Give it only bytes whose signature was verified.
    ///
    /// # Errors
    /// [`WireError`]; [`WireError::Magic`] and [`WireError::NotAQuote`] for data that no TPM made, or that is not a quote.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        TpmReader::all(bytes, Self::read)
    }

    fn read(reader: &mut TpmReader<'_>) -> Result<Self, WireError> {
        match reader.u32("magic")? {
            GENERATED => {}
            found => return Err(WireError::Magic { found }),
        }
        match reader.u16("type")? {
            ATTEST_QUOTE => {}
            found => return Err(WireError::NotAQuote { found }),
        }
        let qualified_signer = reader.sized("qualifiedSigner", NAME_LIMIT_BYTES)?.to_vec();
        let extra_data = reader.sized("extraData", DATA_LIMIT_BYTES)?.to_vec();
        let clock_ms = reader.u64("clock")?;
        let reset_count = reader.u32("resetCount")?;
        let restart_count = reader.u32("restartCount")?;
        let safe = match reader.u8("safe")? {
            0 => false,
            1 => true,
            found => {
                return Err(WireError::Unsupported {
                    field: "safe",
                    found: found.into(),
                });
            }
        };
        let firmware_version = reader.u64("firmwareVersion")?;
        let selection = read_selection(reader)?;
        let pcr_digest = reader.sized("pcrDigest", DIGEST_LIMIT_BYTES)?.to_vec();
        let clock = ClockInfo {
            clock_ms,
            reset_count,
            restart_count,
            safe,
        };
        Ok(Self {
            qualified_signer,
            extra_data,
            clock,
            firmware_version,
            selection,
            pcr_digest,
        })
    }

    /// Encodes the structure as `TPMS_ATTEST`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&GENERATED.to_be_bytes());
        out.extend_from_slice(&ATTEST_QUOTE.to_be_bytes());
        put_sized(&mut out, &self.qualified_signer);
        put_sized(&mut out, &self.extra_data);
        out.extend_from_slice(&self.clock.clock_ms.to_be_bytes());
        out.extend_from_slice(&self.clock.reset_count.to_be_bytes());
        out.extend_from_slice(&self.clock.restart_count.to_be_bytes());
        out.push(u8::from(self.clock.safe));
        out.extend_from_slice(&self.firmware_version.to_be_bytes());
        let banks = u32::try_from(self.selection.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&banks.to_be_bytes());
        for SelectedBank { bank, bitmap } in &self.selection {
            out.extend_from_slice(&bank.to_be_bytes());
            out.push(u8::try_from(bitmap.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(bitmap);
        }
        put_sized(&mut out, &self.pcr_digest);
        out
    }
}

fn read_selection(reader: &mut TpmReader<'_>) -> Result<Vec<SelectedBank>, WireError> {
    let count = usize::try_from(reader.u32("pcrSelect count")?).unwrap_or(usize::MAX);
    if count > BANK_LIMIT {
        return Err(WireError::TooLarge {
            field: "pcrSelect count",
            found: count,
            limit: BANK_LIMIT,
        });
    }
    (0..count)
        .map(|_| {
            let bank = reader.u16("pcrSelect hash")?;
            let size = usize::from(reader.u8("sizeofSelect")?);
            if size > SELECT_LIMIT_BYTES {
                return Err(WireError::TooLarge {
                    field: "sizeofSelect",
                    found: size,
                    limit: SELECT_LIMIT_BYTES,
                });
            }
            Ok(SelectedBank {
                bank,
                bitmap: reader.bytes("pcrSelect", size)?.to_vec(),
            })
        })
        .collect()
}

impl SelectedBank {
    /// The selection of `pcrs` in one bank, three bytes wide as PC Clients write it.
    #[must_use]
    pub fn new(bank: HashAlg, pcrs: impl IntoIterator<Item = u8>) -> Self {
        let mut bitmap = vec![0_u8; 3];
        for pcr in pcrs {
            if let Some(byte) = bitmap.get_mut(usize::from(pcr / 8)) {
                *byte |= 1 << (pcr % 8);
            }
        }
        Self { bank: bank.id(), bitmap }
    }
}
