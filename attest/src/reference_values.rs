//! Reference values: the PCR values that a pool accepts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::HexDigest;
use crate::tpm::pcr::{PcrSelection, SelectionError};
use crate::tpm::wire::HashAlg;

/// What a pool accepts in one PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// Any value: the administrator has said so.
    NotChecked,
    /// One of these.
    AnyOf(Vec<HexDigest>),
}

/// The PCRs that a pool has quoted, and what it accepts in each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct ReferenceValues {
    bank: HashAlg,
    pcrs: BTreeMap<u8, Accepted>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    bank: HashAlg,
    pcrs: BTreeMap<u8, Accepted>,
}

impl TryFrom<Raw> for ReferenceValues {
    type Error = ReferenceValuesError;

    fn try_from(raw: Raw) -> Result<Self, Self::Error> {
        Self::new(raw.bank, raw.pcrs)
    }
}

/// Why values are none that a quote could be compared with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceValuesError {
    /// The PCRs cannot be quoted.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A PCR with an empty list: nothing would ever be accepted.
    #[error("PCR {0} accepts no value; list the accepted digests, or say \"not checked\"")]
    NothingAccepted(u8),
    /// A digest of another length than the bank's.
    #[error("PCR {index}: {digest} has {} bytes, a {bank} digest has {}", .digest.as_bytes().len(), .bank.digest_bytes())]
    Length {
        /// The PCR.
        index: u8,
        /// The bank.
        bank: HashAlg,
        /// The digest.
        digest: HexDigest,
    },
}

impl ReferenceValues {
    /// Reference values for `pcrs` of `bank`. Every PCR named is quoted, whether its value is checked or not.
    ///
    /// # Errors
    /// [`ReferenceValuesError`].
    pub fn new(bank: HashAlg, pcrs: BTreeMap<u8, Accepted>) -> Result<Self, ReferenceValuesError> {
        PcrSelection::new(bank, pcrs.keys().copied())?;
        for (&index, accepted) in &pcrs {
            let Accepted::AnyOf(digests) = accepted else { continue };
            if digests.is_empty() {
                return Err(ReferenceValuesError::NothingAccepted(index));
            }
            if let Some(digest) = digests.iter().find(|digest| digest.as_bytes().len() != bank.digest_bytes()) {
                return Err(ReferenceValuesError::Length {
                    index,
                    bank,
                    digest: digest.clone(),
                });
            }
        }
        Ok(Self { bank, pcrs })
    }

    /// The bank.
    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// What is accepted, for each PCR quoted.
    #[must_use]
    pub const fn pcrs(&self) -> &BTreeMap<u8, Accepted> {
        &self.pcrs
    }

    /// Whether no PCR is checked: the pool then knows which machine it is, and nothing about what it booted.
    #[must_use]
    pub fn checks_nothing(&self) -> bool {
        self.pcrs.values().all(|accepted| *accepted == Accepted::NotChecked)
    }

    /// What a challenge has to ask for.
    ///
    /// # Errors
    /// None that [`ReferenceValues::new`] would not have given already.
    pub fn selection(&self) -> Result<PcrSelection, SelectionError> {
        PcrSelection::new(self.bank, self.pcrs.keys().copied())
    }
}
