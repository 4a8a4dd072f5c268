//! Platform Configuration Registers: which are asked for, and what they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::TpmEvidenceError;
use super::wire::{Digest, HashAlg, SelectedBank};
use crate::values::HexDigest;

/// The highest PCR that only a reboot can reset. Any software can reset 16 and 23, a dynamic launch 17 to 22 (TCG PC Client Platform TPM
/// Profile, PCR attributes). A value in any higher one proves nothing about the boot.
pub const PCR_LAST: u8 = 15;

/// The PCRs of one bank that a quote has to cover: at least one, none of them resettable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawSelection")]
pub struct PcrSelection {
    bank: HashAlg,
    pcrs: BTreeSet<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSelection {
    bank: HashAlg,
    pcrs: BTreeSet<u8>,
}

impl TryFrom<RawSelection> for PcrSelection {
    type Error = SelectionError;

    fn try_from(raw: RawSelection) -> Result<Self, Self::Error> {
        Self::new(raw.bank, raw.pcrs)
    }
}

/// Reason why PCRs cannot be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The selection names no PCR.
    #[error("no PCR is named")]
    Empty,
    /// A PCR can be reset without a reboot.
    #[error("PCR {0} can be reset without a reboot; use PCRs 0 to {PCR_LAST}")]
    Resettable(u8),
}

impl PcrSelection {
    /// A selection of `pcrs` in `bank`.
    ///
    /// # Errors
    /// [`SelectionError`] for an empty selection and for resettable PCRs.
    pub fn new(bank: HashAlg, pcrs: impl IntoIterator<Item = u8>) -> Result<Self, SelectionError> {
        let pcrs: BTreeSet<u8> = pcrs.into_iter().collect();
        match pcrs.last() {
            None => Err(SelectionError::Empty),
            Some(&last) if last > PCR_LAST => Err(SelectionError::Resettable(last)),
            Some(_) => Ok(Self { bank, pcrs }),
        }
    }

    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// Returns the PCRs in ascending order.
    #[must_use]
    pub const fn pcrs(&self) -> &BTreeSet<u8> {
        &self.pcrs
    }

    /// Returns whether a signed selection is exactly this one: one bank, once, and the same PCRs. Otherwise other registers could replace
    /// the requested ones.
    #[must_use]
    pub fn is_exactly(&self, signed: &[SelectedBank]) -> bool {
        matches!(signed, [only] if only.bank == self.bank.id() && only.pcrs().eq(self.pcrs.iter().copied()))
    }
}

impl fmt::Display for PcrSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bank(f, format_args!("{}", self.bank), self.pcrs.iter().copied())
    }
}

fn write_bank(f: &mut fmt::Formatter<'_>, bank: fmt::Arguments<'_>, pcrs: impl Iterator<Item = u8>) -> fmt::Result {
    write!(f, "{bank}:")?;
    for (position, pcr) in pcrs.enumerate() {
        write!(f, "{}{pcr}", if position == 0 { "" } else { "," })?;
    }
    Ok(())
}

/// A signed selection, as refusals show it.
pub(super) struct SignedSelection<'a>(pub &'a [SelectedBank]);

impl fmt::Display for SignedSelection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("empty");
        }
        for (position, selected) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("+")?;
            }
            match HashAlg::from_id(selected.bank) {
                Some(bank) => write_bank(f, format_args!("{bank}"), selected.pcrs())?,
                None => write_bank(f, format_args!("{:#06x}", selected.bank), selected.pcrs())?,
            }
        }
        Ok(())
    }
}

/// The values of exactly the selected PCRs, each as long as the bank's digests. That they are what the TPM holds is proven only
/// when their digest is the one quoted.
#[derive(Debug, Clone, Copy)]
pub struct PcrValues<'a> {
    values: &'a BTreeMap<u8, HexDigest>,
}

impl<'a> PcrValues<'a> {
    /// Takes the values presented for `selection`.
    ///
    /// # Errors
    /// [`TpmEvidenceError::PcrNotQuoted`] for a value too many, [`TpmEvidenceError::PcrMissing`] for one too few, [`TpmEvidenceError::PcrLength`].
    pub fn presented(values: &'a BTreeMap<u8, HexDigest>, selection: &PcrSelection) -> Result<Self, TpmEvidenceError> {
        if let Some(&index) = values.keys().find(|pcr| !selection.pcrs.contains(pcr)) {
            return Err(TpmEvidenceError::PcrNotQuoted { index });
        }
        for &index in &selection.pcrs {
            let value = values.get(&index).ok_or(TpmEvidenceError::PcrMissing { index })?.as_bytes();
            if value.len() != selection.bank.digest_bytes() {
                return Err(TpmEvidenceError::PcrLength {
                    index,
                    bank: selection.bank,
                    found: value.len(),
                });
            }
        }
        Ok(Self { values })
    }

    /// Digest over the values in ascending order of their PCRs: TPML_DIGEST as TPM2_Quote hashes it, with the hash of the signing
    /// scheme and not of the bank.
    #[must_use]
    pub fn digest(&self, hash: HashAlg) -> Digest {
        let mut all = Vec::with_capacity(self.values.len() * 64);
        self.values.values().for_each(|value| all.extend_from_slice(value.as_bytes()));
        hash.digest(&[&all])
    }
}
