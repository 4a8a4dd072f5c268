//! What a pool accepts of NitroTPM documents.

use std::collections::BTreeMap;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::document::{Shape, VerifiedNitroTpm};
use super::error::NitroTpmError;
use crate::HashAlg;
use crate::aws::names::{is_account, is_instance, is_region};
use crate::protocol::HexDigest;
use crate::reference_values::{Accepted, ReferenceValues, ReferenceValuesError};

/// PCRs that every pool must speak of, as for a TPM: the firmware's and the boot loader's.
const MUST_BE_NAMED: std::ops::RangeInclusive<u8> = 0..=7;

/// The rules. Every one that is given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct NitroTpmRules {
    shape: Shape,
    /// `None`: the administrator has said that any account will do.
    accounts: Option<Vec<String>>,
    regions: Option<Vec<String>>,
    instances: Option<Vec<String>>,
    age_limit_seconds: Option<u64>,
    pcrs: ReferenceValues,
}

/// As it stands in `pool.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    /// An enclave's document is about the enclave, and not about what the instance has booted.
    #[serde(default = "nitro_tpm")]
    shape: Shape,
    accounts: Rule<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regions: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instances: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age_limit_seconds: Option<u64>,
    pcrs: BTreeMap<String, Rule<Vec<HexDigest>>>,
}

const fn nitro_tpm() -> Shape {
    Shape::NitroTpm
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list, or \"not checked\"")]
enum Rule<T> {
    AnyOf(T),
    Word(NotChecked),
}

#[derive(Serialize, Deserialize)]
enum NotChecked {
    #[serde(rename = "not checked")]
    NotChecked,
}

/// Rules that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// A value that nothing could ever be.
    #[error("{field}: {found:?} is no {field} of AWS's")]
    Form {
        /// Which rule.
        field: &'static str,
        /// The value.
        found: String,
    },
    /// A key that is no PCR.
    #[error("{0:?} is no PCR and no range such as \"0-7\"")]
    Key(String),
    /// A list for several PCRs.
    #[error("{0:?}: a range cannot share one list of digests")]
    Range(String),
    /// A PCR twice.
    #[error("PCR {0} is named twice")]
    Repeated(u8),
    /// A PCR is left out.
    #[error("PCR {0} is not named: list its accepted digests, or say {0} = \"not checked\"")]
    NotNamed(u8),
    /// The values cannot be compared with.
    #[error(transparent)]
    ReferenceValues(#[from] ReferenceValuesError),
}

impl TryFrom<Raw> for NitroTpmRules {
    type Error = RulesError;

    fn try_from(raw: Raw) -> Result<Self, RulesError> {
        let accounts = match raw.accounts {
            Rule::Word(NotChecked::NotChecked) => None,
            Rule::AnyOf(accounts) => Some(accounts),
        };
        check_form("account", accounts.as_deref(), is_account)?;
        check_form("region", raw.regions.as_deref(), is_region)?;
        check_form("instance", raw.instances.as_deref(), is_instance)?;
        Ok(Self {
            shape: raw.shape,
            accounts,
            regions: raw.regions,
            instances: raw.instances,
            age_limit_seconds: raw.age_limit_seconds,
            pcrs: reference_values(raw.pcrs)?,
        })
    }
}

impl From<NitroTpmRules> for Raw {
    fn from(rules: NitroTpmRules) -> Self {
        let accepted = |accepted: &Accepted| match accepted {
            Accepted::NotChecked => Rule::Word(NotChecked::NotChecked),
            Accepted::AnyOf(digests) => Rule::AnyOf(digests.clone()),
        };
        Self {
            shape: rules.shape,
            accounts: rules.accounts.map_or(Rule::Word(NotChecked::NotChecked), Rule::AnyOf),
            regions: rules.regions,
            instances: rules.instances,
            age_limit_seconds: rules.age_limit_seconds,
            pcrs: rules
                .pcrs
                .pcrs()
                .iter()
                .map(|(index, values)| (index.to_string(), accepted(values)))
                .collect(),
        }
    }
}

fn check_form(field: &'static str, values: Option<&[String]>, is_one: fn(&str) -> bool) -> Result<(), RulesError> {
    match values.unwrap_or_default().iter().find(|value| !is_one(value)) {
        None => Ok(()),
        Some(found) => Err(RulesError::Form {
            field,
            found: found.clone(),
        }),
    }
}

fn reference_values(raw: BTreeMap<String, Rule<Vec<HexDigest>>>) -> Result<ReferenceValues, RulesError> {
    let mut pcrs = BTreeMap::new();
    for (key, rule) in raw {
        let (first, last) = range(&key).ok_or_else(|| RulesError::Key(key.clone()))?;
        let accepted = match rule {
            Rule::Word(NotChecked::NotChecked) => Accepted::NotChecked,
            Rule::AnyOf(_) if first != last => return Err(RulesError::Range(key)),
            Rule::AnyOf(digests) => Accepted::AnyOf(digests),
        };
        for pcr in first..=last {
            if pcrs.insert(pcr, accepted.clone()).is_some() {
                return Err(RulesError::Repeated(pcr));
            }
        }
    }
    if let Some(missing) = MUST_BE_NAMED.into_iter().find(|pcr| !pcrs.contains_key(pcr)) {
        return Err(RulesError::NotNamed(missing));
    }
    Ok(ReferenceValues::new(HashAlg::Sha384, pcrs)?)
}

fn range(key: &str) -> Option<(u8, u8)> {
    let (first, last) = key.split_once('-').unwrap_or((key, key));
    let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

impl NitroTpmRules {
    /// Whether the account is checked. If it is, the node has to send evidence of it beside the document.
    #[must_use]
    pub const fn checks_account(&self) -> bool {
        self.accounts.is_some()
    }

    /// Which of the two kinds of documents is accepted.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// What is accepted in the PCRs: SHA-384.
    #[must_use]
    pub const fn reference_values(&self) -> &ReferenceValues {
        &self.pcrs
    }
}

/// Appraises what was verified against a pool's rules.
///
/// # Errors
/// [`NitroTpmError`] with both values, for the first rule that does not hold.
pub fn appraise(verified: &VerifiedNitroTpm, rules: &NitroTpmRules, now: UnixTime) -> Result<(), NitroTpmError> {
    let document = verified.document();
    if let Some(accepted) = &rules.accounts {
        let found = verified.account().ok_or_else(|| NitroTpmError::AccountUnknown {
            instance: document.instance().to_owned(),
            accepted: accepted.clone(),
        })?;
        one_of(found, accepted, |found, accepted| NitroTpmError::Account { found, accepted })?;
    }
    if let Some(accepted) = &rules.regions {
        one_of(document.region(), accepted, |found, accepted| NitroTpmError::Region {
            found,
            accepted,
        })?;
    }
    if let Some(accepted) = &rules.instances {
        one_of(document.instance(), accepted, |found, accepted| NitroTpmError::Instance {
            found,
            accepted,
        })?;
    }
    if let Some(limit_seconds) = rules.age_limit_seconds {
        let (made_ms, now_ms) = (document.timestamp_ms(), now.as_secs().saturating_mul(1000));
        if made_ms.abs_diff(now_ms) > limit_seconds.saturating_mul(1000) {
            return Err(NitroTpmError::Age {
                made_ms,
                now_ms,
                limit_seconds,
            });
        }
    }
    for (&index, accepted) in rules.pcrs.pcrs() {
        let found = document.pcrs().get(&index).ok_or(NitroTpmError::PcrMissing { index })?;
        let Accepted::AnyOf(accepted) = accepted else { continue };
        if !accepted.contains(found) {
            return Err(NitroTpmError::PcrMismatch {
                index,
                found: found.clone(),
                accepted: accepted.iter().map(ToString::to_string).collect(),
            });
        }
    }
    Ok(())
}

fn one_of(found: &str, accepted: &[String], refusal: impl FnOnce(String, Vec<String>) -> NitroTpmError) -> Result<(), NitroTpmError> {
    if accepted.iter().any(|accepted| accepted == found) {
        return Ok(());
    }
    Err(refusal(found.to_owned(), accepted.to_vec()))
}
