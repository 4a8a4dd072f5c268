//! A pool's rules for NitroTPM documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::document::{DocumentKind, VerifiedNitroTpm};
use super::error::NitroTpmError;
use crate::HashAlg;
use crate::aws::names::{is_account, is_instance, is_region};
use crate::observation::Observation;
use crate::reference_sets::ReferenceSets;
use crate::tpm::boot_complete;
use crate::tpm::reference_values::{NotChecked, PcrRule, PcrRulesError, ReferenceValues};
use crate::tpm::requirements::Requirement;
use crate::withheld::Withheld;

/// The rules. Every one that is given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawNitroTpmRules", into = "RawNitroTpmRules")]
pub struct NitroTpmRules {
    shape: DocumentKind,
    /// `None`: the administrator has said that any account will do.
    accounts: Option<Vec<String>>,
    regions: Option<Vec<String>>,
    instances: Option<Vec<String>>,
    age_limit_seconds: Option<u64>,
    pcrs: ReferenceValues,
}

/// Serialized form of the rules in `pool.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNitroTpmRules {
    #[serde(default)]
    shape: DocumentKind,
    accounts: CheckedRule<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regions: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instances: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age_limit_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    only_while_booting: bool,
    pcrs: BTreeMap<String, PcrRule>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list, or \"not checked\"")]
enum CheckedRule<T> {
    AnyOf(T),
    Word(NotChecked),
}

/// Rules that are invalid or contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NitroTpmRulesError {
    /// A value that nothing could ever be.
    #[error("{field}: {found:?} is not a valid AWS {field}")]
    Form { field: &'static str, found: String },
    /// The rules of the PCRs are invalid.
    #[error(transparent)]
    Pcrs(#[from] PcrRulesError),
}

impl TryFrom<RawNitroTpmRules> for NitroTpmRules {
    type Error = NitroTpmRulesError;

    fn try_from(raw: RawNitroTpmRules) -> Result<Self, NitroTpmRulesError> {
        let accounts = match raw.accounts {
            CheckedRule::Word(NotChecked::NotChecked) => None,
            CheckedRule::AnyOf(accounts) => Some(accounts),
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
            pcrs: ReferenceValues::from_rules(HashAlg::Sha384, raw.pcrs)?.only_while_booting(raw.only_while_booting),
        })
    }
}

impl From<NitroTpmRules> for RawNitroTpmRules {
    fn from(rules: NitroTpmRules) -> Self {
        Self {
            shape: rules.shape,
            accounts: rules.accounts.map_or(CheckedRule::Word(NotChecked::NotChecked), CheckedRule::AnyOf),
            regions: rules.regions,
            instances: rules.instances,
            age_limit_seconds: rules.age_limit_seconds,
            only_while_booting: rules.pcrs.is_only_while_booting(),
            pcrs: rules.pcrs.to_rules(),
        }
    }
}

fn check_form(field: &'static str, values: Option<&[String]>, is_one: fn(&str) -> bool) -> Result<(), NitroTpmRulesError> {
    match values.unwrap_or_default().iter().find(|value| !is_one(value)) {
        None => Ok(()),
        Some(found) => Err(NitroTpmRulesError::Form {
            field,
            found: found.clone(),
        }),
    }
}

impl NitroTpmRules {
    /// Returns whether the account is checked. If it is, the node has to send evidence of it with the document.
    #[must_use]
    pub const fn checks_account(&self) -> bool {
        self.accounts.is_some()
    }

    /// Returns whether these rules alone accept any of AWS's instances: they check no account and name no instance.
    #[must_use]
    pub const fn accepts_any_instance(&self) -> bool {
        self.accounts.is_none() && self.instances.is_none()
    }

    /// Accepts a machine that has finished its boot, too.
    pub(super) const fn allow_after_boot(&mut self) {
        self.pcrs.allow_after_boot();
    }

    /// Sets the pool's sets of reference values.
    pub(super) fn use_reference_sets(&mut self, sets: &Arc<ReferenceSets>) {
        self.pcrs.use_sets(sets);
    }

    /// Returns the rules for the PCRs (SHA-384).
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
    appraise_machine(verified, rules, now)?;
    appraise_boot(verified, rules, now, &mut Observation::off())
}

/// Checks the machine's identity and the age of the document.
pub(super) fn appraise_machine(verified: &VerifiedNitroTpm, rules: &NitroTpmRules, now: UnixTime) -> Result<(), NitroTpmError> {
    let document = &verified.document;
    if let Some(accepted) = &rules.accounts {
        let found = verified.account.as_deref().ok_or_else(|| NitroTpmError::AccountUnknown {
            instance: document.instance.clone(),
            accepted: Withheld::one_of(accepted),
        })?;
        one_of(found, accepted, |found, accepted| NitroTpmError::Account { found, accepted })?;
    }
    if let Some(accepted) = &rules.regions {
        one_of(document.region.as_str(), accepted, |found, accepted| NitroTpmError::Region {
            found,
            accepted,
        })?;
    }
    if let Some(accepted) = &rules.instances {
        one_of(document.instance.as_str(), accepted, |found, accepted| NitroTpmError::Instance {
            found,
            accepted,
        })?;
    }
    if let Some(limit_seconds) = rules.age_limit_seconds {
        let (made_ms, now_ms) = (document.timestamp_ms, now.as_secs().saturating_mul(1000));
        if made_ms.abs_diff(now_ms) > limit_seconds.saturating_mul(1000) {
            return Err(NitroTpmError::Age {
                made_ms,
                now_ms,
                accepted: Withheld::at_most_seconds(limit_seconds),
            });
        }
    }
    Ok(())
}

/// Checks what the machine has booted, and that it is still booting.
pub(super) fn appraise_boot(
    verified: &VerifiedNitroTpm,
    rules: &NitroTpmRules,
    now: UnixTime,
    observation: &mut Observation<NitroTpmError>,
) -> Result<(), NitroTpmError> {
    requirements(rules).try_for_each(|requirement| match meets(requirement, verified, rules, now) {
        // A PCR that is not there is nothing that could be observed.
        found @ Err(NitroTpmError::PcrMismatch { .. }) => observation.heed(found),
        found => found,
    })
}

/// Returns the requirements on the PCRs. A document has all PCRs, and no event log comes with it.
fn requirements(rules: &NitroTpmRules) -> impl Iterator<Item = Requirement> {
    let of_pcrs = |requirement: &Requirement| matches!(requirement, Requirement::Pcr(_) | Requirement::OnlyWhileBooting);
    rules.pcrs.requirements().filter(of_pcrs)
}

fn meets(requirement: Requirement, verified: &VerifiedNitroTpm, rules: &NitroTpmRules, now: UnixTime) -> Result<(), NitroTpmError> {
    let pcrs = &verified.document.pcrs;
    match requirement {
        Requirement::Pcr(index) => {
            let found = pcrs.get(&index).ok_or(NitroTpmError::PcrMissing { index })?;
            let accepted = rules.pcrs.accept_pcr(index, found, now);
            accepted.map_err(|accepted| NitroTpmError::PcrMismatch {
                index,
                found: found.clone(),
                accepted,
            })
        }
        Requirement::OnlyWhileBooting => Ok(boot_complete::check_open(rules.pcrs.bank(), pcrs, None)?),
        Requirement::Selection | Requirement::EventLog | Requirement::Boot(_) => Ok(()),
    }
}

/// Each requirement in words, and whether it is met.
pub(super) fn by_requirement(
    verified: &VerifiedNitroTpm,
    rules: &NitroTpmRules,
    now: UnixTime,
) -> Vec<(String, Result<(), NitroTpmError>)> {
    let one = |requirement| (rules.pcrs.description(requirement), meets(requirement, verified, rules, now));
    requirements(rules).map(one).collect()
}

fn one_of(found: &str, accepted: &[String], refusal: impl FnOnce(String, Withheld) -> NitroTpmError) -> Result<(), NitroTpmError> {
    if accepted.iter().any(|accepted| accepted == found) {
        return Ok(());
    }
    Err(refusal(found.to_owned(), Withheld::one_of(accepted)))
}
