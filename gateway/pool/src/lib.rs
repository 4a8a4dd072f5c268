//! Pools: what their nodes must show, and the two configs they can get.
//!
//! A pool comes from a [`folder`] or from [`upstream`]; [`versions`] renders its configs. Nothing here contacts a server.

#![deny(unreachable_pub)]

mod difference;
mod endorsement;
mod error;
mod exclusivity;
mod file;
pub mod file_stamps;
pub mod folder;
mod history;
mod instances;
pub mod inventory;
mod load;
pub mod misplaced;
mod missing_files;
pub mod needed_before_approval;
mod observed;
mod outline;
mod packed;
mod reapply;
mod taken_over;
pub mod upstream;
mod versions;
mod waiting;
mod warnings;

use std::collections::BTreeSet;
use std::sync::Arc;

use attest::AppraisalPolicy;
use attest_certificates::kubelet::NamePatterns;
use attest_ignition::machine_config::second_stage::{SecondStageError, SecondStageObject};
use attest_ignition::{Inexpressible, SpecVersion};
use attest_log::{ConfigSet, Earns, Grants};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
pub use difference::{ConfigDifference, EntryDifference, differences};
pub use endorsement::Endorsement;
pub use error::PoolError;
pub use file::{MachineRules, PoolFile};
pub use history::{HistoryPolicy, HistoryRules};
pub use instances::{by_its_own_tpm, is_by_its_own_tpm};
pub use inventory::PoolInventory;
pub use load::{PoolFolders, folders, grants, policy, policy_of, pool_file, reference_set_files, rules};
use serde_json::{Value, json};
pub use versions::{RenderedConfig, Versions};
pub use waiting::{UnknownMachines, WaitingRules};

/// The sample that `init` writes.
pub const SAMPLE: &str = include_str!("../../dist/pool.toml");

#[derive(Debug)]
pub struct Pool {
    /// Config that each kind of proof earns.
    pub grants: Grants,
    /// Required endorsement of a TPM.
    pub endorsement: Endorsement,
    /// Policy for the accepted evidence.
    pub policy: AppraisalPolicy,
    /// Reactions to a TPM that has changed.
    pub history: HistoryRules,
    /// The policy's sets of reference values, in the order of its digests.
    pub reference_sets: Vec<Arc<[u8]>>,
    /// The machines that may join, if not all that the policy accepts.
    pub inventory: Option<PoolInventory>,
    /// The Machine objects whose machines may join; either this or `inventory` suffices.
    pub machines: Option<MachineRules>,
    /// Rules for machines that wait for an administrator's answer; without them, machines are refused.
    pub waiting: Option<WaitingRules>,
    /// Maximum time for which a node retries when told to, in seconds.
    pub hold_seconds: u64,
    /// The names of its nodes, for those that show a kubelet's certificate.
    pub kubelet_names: NamePatterns,
    name: String,
    pre_approved: Versions,
    full: Versions,
    outline: outline::ConfigOutline,
    /// True if the pre-approved config has a credential by which a kubelet asks for its certificate.
    bootstrap_credential: bool,
    /// Set if machine-config-daemon takes over nodes with the pre-approved config.
    second_stage: bool,
    /// Set if it should, but no grant earns that config.
    second_stage_of_nobody: bool,
    /// The pool's name in the cluster.
    machine_config_pool: String,
    /// Acknowledged secrets that are not in the config.
    needless: BTreeSet<String>,
    /// Set if `pool.toml` does not specify the endorsement of a TPM.
    endorsement_unsaid: bool,
    /// Set if its upstream could be this gateway itself, unnoticed: neither an address nor keys are configured.
    unpinned: bool,
}

impl Pool {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether an unauthenticated client gets the credential by which kubelets ask for their certificates.
    #[must_use]
    pub const fn gives_bootstrap_credential(&self) -> bool {
        match self.grants.nothing {
            Earns::Full => true,
            Earns::PreApproved => self.bootstrap_credential,
            Earns::Refuse => false,
        }
    }

    /// Returns an error if a spec version cannot express one of its configs. Renders it for that, without giving it out.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn check_expressible(&self, set: ConfigSet, version: SpecVersion) -> Result<(), Inexpressible> {
        self.for_administrator(set).get(version).map(|_| ())
    }

    /// Returns one of its configs, for the administrator: `config render`, `config diff`, `check`, `log show-config`.
    #[must_use]
    pub const fn for_administrator(&self, set: ConfigSet) -> &Versions {
        match set {
            ConfigSet::PreApproved => &self.pre_approved,
            ConfigSet::Full => &self.full,
        }
    }

    /// Returns the part of the full config, if any, that reboots a node within its first boot, so that it fetches the config again. The
    /// kernel arguments then differ from the image's before Ignition has written anything.
    #[must_use]
    pub fn reboot_cause(&self) -> Option<&'static str> {
        if self.outline.kernel_arguments {
            return Some("kernelArguments");
        }
        self.full.spec().is_some_and(|spec| spec.fips).then_some("FIPS mode")
    }

    /// Returns the MachineConfig that the cluster must have so that machine-config-daemon takes over nodes with the pre-approved config;
    /// `None` if it does not.
    ///
    /// # Errors
    /// [`SecondStageError`].
    pub fn second_stage(&self) -> Result<Option<SecondStageObject>, SecondStageError> {
        if !self.second_stage {
            return Ok(None);
        }
        let content = self.pre_approved.machine_config()?;
        content
            .map(|content| SecondStageObject::parse(&content, &self.machine_config_pool))
            .transpose()
    }

    /// Returns what a node gets only after approval, or gets differently then.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn differences(&self) -> Result<Vec<ConfigDifference>, Inexpressible> {
        let mut differences = difference::differences(&self.pre_approved.complete()?, &self.full.complete()?);
        if let (Some(pre_approved), Some(full)) = (self.pre_approved.spec(), self.full.spec()) {
            differences.extend(difference::spec_differences(pre_approved, full));
        }
        differences.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        Ok(differences)
    }

    /// Returns the sizes of both configs, for the log.
    #[must_use]
    pub fn summary(&self) -> &str {
        &self.outline.summary
    }

    /// Returns the versions that cannot express a set, with reasons.
    #[must_use]
    pub fn inexpressible(&self, set: ConfigSet) -> Vec<Inexpressible> {
        self.for_administrator(set).inexpressible()
    }

    /// Returns whether any of its configs is rendered: it was requested lately.
    #[must_use]
    pub fn is_rendered(&self) -> bool {
        self.pre_approved.is_rendered() || self.full.is_rendered()
    }

    /// Returns whether both pools have the same configs, whatever else differs.
    #[must_use]
    pub fn has_configs_of(&self, other: &Self) -> bool {
        self.pre_approved == other.pre_approved && self.full == other.full
    }

    /// Drops rendered configs that were not requested since the last call.
    pub fn forget_unasked(&self) {
        for versions in [&self.pre_approved, &self.full] {
            versions.forget_unasked();
        }
    }

    /// Returns the pool's configuration without the contents of its configs, for the record of changes.
    #[must_use]
    pub fn configuration_snapshot(&self) -> Value {
        let config = |versions: &Versions| match versions.digest() {
            Ok(digest) => Value::from(digest.as_str()),
            Err(error) => Value::from(error.to_string()),
        };
        let mut standing = json!({
            "grants": self.grants,
            "endorsement": self.endorsement.label(),
            "hold_seconds": self.hold_seconds,
            "policy": sha256(&serde_json::to_vec(&self.policy).unwrap_or_default()),
            "inventory": self.inventory.as_ref().map(|inventory| sha256(inventory.text().as_bytes())),
            "kubelet_names": sha256(format!("{:?}", self.kubelet_names).as_bytes()),
            "full": config(&self.full),
            "pre_approved": config(&self.pre_approved),
        });
        // Not there where nobody says it.
        if let (Some(rules), Some(members)) = (&self.machines, standing.as_object_mut()) {
            members.insert("machines".to_owned(), sha256(format!("{rules:?}").as_bytes()).into());
        }
        if let (true, Some(members)) = (self.history != HistoryRules::default(), standing.as_object_mut()) {
            members.insert("history".to_owned(), json!(self.history));
        }
        if let (true, Some(members)) = (self.policy.observes(), standing.as_object_mut()) {
            members.insert("observe".to_owned(), true.into());
        }
        if let (Some(rules), Some(members)) = (&self.waiting, standing.as_object_mut()) {
            members.insert("waiting".to_owned(), sha256(format!("{rules:?}").as_bytes()).into());
        }
        standing
    }

    /// Returns whether nodes would notice no difference.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.grants == other.grants
            && self.endorsement == other.endorsement
            && self.policy == other.policy
            && self.history == other.history
            && self.inventory == other.inventory
            && self.machines == other.machines
            && self.waiting == other.waiting
            && self.hold_seconds == other.hold_seconds
            && self.kubelet_names == other.kubelet_names
            && self.needless == other.needless
            && self.second_stage == other.second_stage
            && self.second_stage_of_nobody == other.second_stage_of_nobody
            && self.machine_config_pool == other.machine_config_pool
            && self.unpinned == other.unpinned
            && self.pre_approved == other.pre_approved
            && self.full == other.full
    }
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests;
