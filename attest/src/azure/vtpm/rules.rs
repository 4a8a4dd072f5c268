//! A pool's rules for Azure's vTPMs.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::{AzureVtpmError, VerifiedAzureVtpm, VmId};
use crate::azure::attested_document::{AttestedDocumentError, AzureValueRule};
use crate::observation::Observation;
use crate::reference_sets::ReferenceSets;
use crate::tpm::pcr::{PcrSelection, SelectionError};
use crate::tpm::reference_values::{EventLogRule, PcrRule, PcrRulesError, ReferenceValues};
use crate::tpm::rules::Check;
use crate::tpm::wire::HashAlg;
use crate::withheld::Withheld;

/// The rules. Every one that is given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawVtpmRules", into = "RawVtpmRules")]
pub struct AzureVtpmRules {
    vm_ids: Option<Vec<VmId>>,
    accept_any_subscription: bool,
    reference_values: ReferenceValues,
}

/// Serialized form of the rules in `pool.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVtpmRules {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vm_ids: Option<Vec<VmId>>,
    #[serde(default)]
    accept_any_subscription: bool,
    #[serde(default = "sha256")]
    bank: HashAlg,
    #[serde(default)]
    event_log: EventLogRule,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    only_while_booting: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    boot: Vec<Check>,
    pcrs: BTreeMap<String, PcrRule>,
}

const fn sha256() -> HashAlg {
    HashAlg::Sha256
}

/// Rules that are invalid or contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VtpmRulesError {
    /// A bank for which it is not known what Azure's firmware extends into PCR 6, nor that nothing else is extended earlier.
    #[error("bank: {0} cannot be used with Azure vTPMs, which are identified by their sha256 bank: set sha256, or remove bank")]
    Bank(HashAlg),
    /// The rules of the PCRs are invalid.
    #[error(transparent)]
    Pcrs(#[from] PcrRulesError),
}

impl TryFrom<RawVtpmRules> for AzureVtpmRules {
    type Error = VtpmRulesError;

    fn try_from(raw: RawVtpmRules) -> Result<Self, VtpmRulesError> {
        if raw.bank != HashAlg::Sha256 {
            return Err(VtpmRulesError::Bank(raw.bank));
        }
        Ok(Self {
            vm_ids: raw.vm_ids,
            accept_any_subscription: raw.accept_any_subscription,
            reference_values: ReferenceValues::from_rules(raw.bank, raw.pcrs)?
                .with_event_log(raw.event_log)
                .only_while_booting(raw.only_while_booting)
                .with_boot(raw.boot)
                .map_err(PcrRulesError::from)?,
        })
    }
}

impl From<AzureVtpmRules> for RawVtpmRules {
    fn from(rules: AzureVtpmRules) -> Self {
        Self {
            vm_ids: rules.vm_ids,
            accept_any_subscription: rules.accept_any_subscription,
            bank: rules.reference_values.bank(),
            event_log: rules.reference_values.event_log(),
            only_while_booting: rules.reference_values.is_only_while_booting(),
            boot: rules.reference_values.boot().to_vec(),
            pcrs: rules.reference_values.to_rules(),
        }
    }
}

impl AzureVtpmRules {
    /// Returns whether a vTPM may attest alone: its machine is named, or the administrator has said that any subscription will do.
    /// Otherwise the attested document has to come with it.
    #[must_use]
    pub const fn stands_alone(&self) -> bool {
        self.vm_ids.is_some() || self.accept_any_subscription
    }

    /// Returns whether these rules alone accept any of Azure's machines: they name none, and any subscription will do.
    #[must_use]
    pub const fn accepts_any_machine(&self) -> bool {
        self.vm_ids.is_none() && self.accept_any_subscription
    }

    /// Accepts a machine that has finished its boot, too.
    pub(super) const fn allow_after_boot(&mut self) {
        self.reference_values.allow_after_boot();
    }

    /// Sets the pool's sets of reference values.
    pub(super) fn use_reference_sets(&mut self, sets: &Arc<ReferenceSets>) {
        self.reference_values.use_sets(sets);
    }

    /// Returns the rules for the PCRs.
    #[must_use]
    pub const fn reference_values(&self) -> &ReferenceValues {
        &self.reference_values
    }

    /// The PCRs that a vTPM has to quote: 0 to 7, of which one holds the vmId, and what else the pool names.
    ///
    /// # Errors
    /// None that reading the rules would not have given already.
    pub fn selection(&self) -> Result<PcrSelection, SelectionError> {
        self.reference_values.selection()
    }
}

/// Appraises what was verified against a pool's rules.
///
/// # Errors
/// [`AzureVtpmError::Machine`] and [`AzureVtpmError::Tpm`].
pub fn appraise(verified: &VerifiedAzureVtpm, rules: &AzureVtpmRules, now: UnixTime) -> Result<(), AzureVtpmError> {
    appraise_machine(verified, rules)?;
    appraise_boot(verified, rules, now, &mut Observation::off())
}

/// Checks the identity of the machine.
pub(super) fn appraise_machine(verified: &VerifiedAzureVtpm, rules: &AzureVtpmRules) -> Result<(), AzureVtpmError> {
    if let Some(accepted) = rules.vm_ids.as_ref().filter(|accepted| !accepted.contains(verified.vm_id())) {
        return Err(AzureVtpmError::Machine(AttestedDocumentError::NotAccepted {
            rule: AzureValueRule::Vm,
            found: format!("{:?}", verified.vm_id().as_str()),
            accepted: Withheld::one_of(accepted),
        }));
    }
    Ok(())
}

/// Checks what the machine has booted.
pub(super) fn appraise_boot(
    verified: &VerifiedAzureVtpm,
    rules: &AzureVtpmRules,
    now: UnixTime,
    observation: &mut Observation<AzureVtpmError>,
) -> Result<(), AzureVtpmError> {
    rules.reference_values.appraise(&verified.quoted(), now, observation)
}
