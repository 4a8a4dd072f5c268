//! Parser of `pool.toml`, with validation.

mod inventory;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::appraisal::{FirstUse, Rules};
use attest::aws::identity_document::IdentityDocumentRules;
use attest::aws::nitro_tpm::NitroTpmRules;
use attest::aws::sts::StsRules;
use attest::azure::attested_document::AttestedDocumentRules;
use attest::azure::vtpm::AzureVtpmRules;
use attest::condition::Condition;
use attest::protocol::{HOLD_DEFAULT_SECONDS, HOLD_LIMIT_SECONDS};
use attest::tpm::reference_values::{EventLogRule, PcrRule, PcrRulesError};
use attest::tpm::rules::Check;
use attest::{AppraisalPolicy, Combination, HashAlg, Kind, ReferenceValues, gcp};
use attest_certificates::kubelet::NamePatterns;
use attest_log::{Earns, Grants};
pub use inventory::MachineRules;
use inventory::{InventoryFile, inventory, nameable};
use serde::Deserialize;

use super::upstream::UpstreamSettings;
use super::{Endorsement, HistoryRules, PoolError, WaitingRules, exclusivity, misplaced, observed, waiting};

/// The headings of the file: one for each kind of evidence that has rules, and these before and after them; but for `[tpm.pcrs]`, which has no keys of
/// its own.
const BEFORE: [&str; 2] = ["grants", "attestation"];
const AFTER: [&str; 10] = [
    "history",
    "kubelet",
    "inventory",
    "reference_values",
    "waiting",
    "source",
    "pre_approved",
    "second_stage",
    "upstream",
    "upstream.include",
];

fn sections() -> Vec<&'static str> {
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Token);
    let (before, after) = (BEFORE.into_iter(), AFTER.into_iter());
    before.chain(kinds.map(Kind::section)).chain(after).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolTomlFile {
    #[serde(default)]
    observe: bool,
    grants: GrantsFile,
    #[serde(default)]
    attestation: AttestationSection,
    tpm: Option<TpmSection>,
    gcp: Option<gcp::GceRules>,
    aws_identity_document: Option<IdentityDocumentRules>,
    aws_nitro_tpm: Option<NitroTpmRules>,
    aws_sts: Option<StsRules>,
    azure: Option<AttestedDocumentRules>,
    azure_vtpm: Option<AzureVtpmRules>,
    #[serde(default)]
    history: HistoryRules,
    #[serde(default)]
    kubelet: KubeletFile,
    inventory: Option<InventoryFile>,
    reference_values: Option<ReferenceValuesFile>,
    waiting: Option<waiting::WaitingSection>,
    #[serde(default)]
    source: SourceFile,
    #[serde(default)]
    pre_approved: PreApproved,
    #[serde(default)]
    second_stage: SecondStagePoolSection,
    upstream: Option<UpstreamSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AttestationSection {
    accepts: Vec<Combination>,
    hold_seconds: u64,
    first_use: FirstUse,
    condition: Option<Condition>,
}

impl Default for AttestationSection {
    fn default() -> Self {
        Self {
            accepts: vec![Kind::Tpm.into()],
            hold_seconds: HOLD_DEFAULT_SECONDS,
            first_use: FirstUse::default(),
            condition: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KubeletFile {
    names: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferenceValuesFile {
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SourceFile {
    machine_configs: PathBuf,
    kubeconfig: Option<PathBuf>,
    extensions: BTreeSet<String>,
}

impl Default for SourceFile {
    fn default() -> Self {
        Self {
            machine_configs: "machine-configs".into(),
            kubeconfig: None,
            extensions: BTreeSet::new(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PreApproved {
    acknowledged: BTreeSet<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SecondStagePoolSection {
    machine_config_daemon: bool,
}

/// Contents of `pool.toml`, checked, and with its paths resolved.
#[derive(Debug)]
pub struct PoolFile {
    pub grants: Grants,
    /// Required endorsement of a TPM, if the file specifies it.
    pub endorsement: Option<Endorsement>,
    pub policy: AppraisalPolicy,
    /// Reactions to a TPM that has changed.
    pub history: HistoryRules,
    /// Maximum time for which a node of the pool retries when told to, in seconds.
    pub hold_seconds: u64,
    /// The names of the nodes that belong to the pool, for those that show a kubelet's certificate.
    pub kubelet_names: NamePatterns,
    /// The file that lists the machines that may join.
    pub inventory: Option<PathBuf>,
    /// The Machine objects of the cluster whose machines may join.
    pub machines: Option<MachineRules>,
    /// The folder with the pool's sets of reference values.
    pub reference_values: Option<PathBuf>,
    /// Rules for machines that wait for an answer.
    pub waiting: Option<WaitingRules>,
    /// Contents of the sets, in the order of the policy's digests; the policy has them already. Empty until they are read.
    pub reference_sets: Vec<Arc<[u8]>>,
    /// The folder with MachineConfigs; it need not be there.
    pub machine_configs: PathBuf,
    /// The kubelet's bootstrap kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Extensions of the operating system that the cluster's operator knows, and this release does not.
    pub extensions: BTreeSet<String>,
    /// Secrets in the pre-approved config that the administrator has acknowledged, by the names of the findings.
    pub acknowledged: BTreeSet<String>,
    /// Set if the cluster's machine-config-daemon takes over nodes with the pre-approved config.
    pub second_stage: bool,
    /// Source of the full config, if not the pool's folder.
    pub upstream: Option<UpstreamSettings>,
}

impl PoolFile {
    /// Returns whether machine-config-daemon takes over nodes with the pre-approved config, and there are such nodes.
    #[must_use]
    pub fn takes_over(&self) -> bool {
        self.second_stage && self.grants.earn(Earns::PreApproved)
    }
}

/// Grants, with safe defaults: only attestation earns the full config.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct GrantsFile {
    attested: Earns,
    token: Earns,
    kubelet: Earns,
    nothing: Earns,
}

impl Default for GrantsFile {
    fn default() -> Self {
        Self {
            attested: Earns::Full,
            token: Earns::Refuse,
            kubelet: Earns::Refuse,
            nothing: Earns::PreApproved,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TpmSection {
    #[serde(default = "sha256")]
    bank: HashAlg,
    endorsement: Option<Endorsement>,
    #[serde(default)]
    event_log: EventLogRule,
    #[serde(default)]
    only_while_booting: bool,
    #[serde(default)]
    boot: Vec<Check>,
    pcrs: BTreeMap<String, PcrRule>,
}

const fn sha256() -> HashAlg {
    HashAlg::Sha256
}

/// Reads `pool.toml`; its paths are relative to `folder`.
pub(super) fn parse(text: &str, path: &Path, folder: &Path) -> Result<PoolFile, PoolError> {
    let file: PoolTomlFile = toml::from_str(text).map_err(|source| PoolError::Toml {
        path: path.to_owned(),
        hint: misplaced::hint::<PoolTomlFile>(&source, &sections()),
        source: Box::new(source),
    })?;
    let endorsement = file.tpm.as_ref().and_then(|tpm| tpm.endorsement);
    let rules = Rules {
        tpm: file.tpm.map(reference_values).transpose().map_err(|error| PoolError::Pcrs {
            path: path.to_owned(),
            problem: error.to_string(),
        })?,
        gcp: file.gcp,
        aws_identity_document: file.aws_identity_document,
        aws_nitro_tpm: file.aws_nitro_tpm,
        aws_sts: file.aws_sts,
        azure: file.azure,
        azure_vtpm: file.azure_vtpm,
        first_use: file.attestation.first_use,
        condition: file.attestation.condition,
        observe: file.observe,
    };
    let wrong = |problem: String| PoolError::Attestation {
        path: path.to_owned(),
        problem,
    };
    let AttestationSection { accepts, hold_seconds, .. } = file.attestation;
    if hold_seconds > HOLD_LIMIT_SECONDS {
        return Err(wrong(format!("hold_seconds is {hold_seconds}; the most is {HOLD_LIMIT_SECONDS}")));
    }
    let policy = policy(accepts, rules, endorsement.unwrap_or_default()).map_err(wrong)?;
    let (inventory, machines) = inventory(file.inventory).map_err(|problem| PoolError::Machines {
        path: path.to_owned(),
        problem,
    })?;
    exclusivity::joined(&policy, endorsement.unwrap_or_default(), inventory.is_some()).map_err(wrong)?;
    exclusivity::somebodys(&policy, inventory.is_some()).map_err(wrong)?;
    observed::somebodys(&policy, inventory.is_some() || machines.is_some()).map_err(wrong)?;
    if machines.is_some() && inventory.is_none() {
        nameable(&policy, endorsement.unwrap_or_default()).map_err(wrong)?;
    }
    let GrantsFile {
        attested,
        token,
        kubelet,
        nothing,
    } = file.grants;
    let waiting = file.waiting.map(|section| section.rules(attested, hold_seconds));
    let waiting = waiting.transpose().map_err(|problem| PoolError::Waiting {
        path: path.to_owned(),
        problem,
    })?;
    let names = |problem: String| PoolError::Kubelet {
        path: path.to_owned(),
        problem,
    };
    let kubelet_names = NamePatterns::new(file.kubelet.names).map_err(|error| names(error.to_string()))?;
    // A certificate says no pool: without names, a worker could fetch the control plane's config.
    if kubelet != Earns::Refuse && kubelet_names.is_empty() {
        return Err(names(
            "grants.kubelet grants a config, so names must list this pool's nodes, such as names = [\"worker-*\"]".to_owned(),
        ));
    }
    Ok(PoolFile {
        grants: Grants {
            attested,
            token,
            kubelet,
            nothing,
        },
        kubelet_names,
        endorsement,
        policy,
        history: file.history,
        hold_seconds,
        inventory: inventory.map(|instances| folder.join(instances)),
        machines,
        reference_values: file.reference_values.map(|section| folder.join(section.folder)),
        waiting,
        reference_sets: Vec::new(),
        machine_configs: folder.join(file.source.machine_configs),
        kubeconfig: file.source.kubeconfig.map(|kubeconfig| folder.join(kubeconfig)),
        extensions: file.source.extensions,
        acknowledged: file.pre_approved.acknowledged,
        second_stage: file.second_stage.machine_config_daemon,
        upstream: file.upstream.map(|upstream| upstream.in_folder(folder)),
    })
}

fn reference_values(tpm: TpmSection) -> Result<ReferenceValues, PcrRulesError> {
    let values = ReferenceValues::from_rules(tpm.bank, tpm.pcrs)?.with_event_log(tpm.event_log);
    Ok(values.only_while_booting(tpm.only_while_booting).with_boot(tpm.boot)?)
}

/// Builds the policy; fails if the accepted kinds contradict the rules.
fn policy(accepts: Vec<Combination>, rules: Rules, endorsement: Endorsement) -> Result<AppraisalPolicy, String> {
    let (instance_rules, gcp) = (rules.gcp.is_some(), rules.gcp.clone());
    let policy = AppraisalPolicy::new(accepts, rules).map_err(|error| error.to_string())?;
    let tpm_alone = |kinds: &Combination| kinds.has(Kind::Tpm) && !kinds.has(Kind::Gcp);
    let by_certificate = endorsement == Endorsement::GcpInstance;
    if by_certificate && !instance_rules {
        return Err(
            "tpm.endorsement is \"gcp-instance\", so [gcp] must name the accepted instances; docs/how-to/gcp.md has an example".to_owned(),
        );
    }
    if instance_rules && !by_certificate && !policy.accepts_kind(Kind::Gcp) {
        return Err("there is a section [gcp], but accepts does not list \"gcp\": add it, or remove the section".to_owned());
    }
    // The certificate of a vTPM says less than an identity token.
    let unprovable = gcp.filter(|gcp| gcp.service_accounts.is_some() || gcp.licenses.is_some() || gcp.max_instance_age_seconds.is_some());
    if by_certificate && unprovable.is_some() && policy.accepts().iter().any(tpm_alone) {
        return Err(
            "service_accounts, licenses and max_instance_age_seconds of [gcp] cannot be proven by a TPM alone: accept [\"tpm\", \"gcp\"]"
                .to_owned(),
        );
    }
    Ok(policy)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn misplaced_key_error_names_its_section() {
        assert_eq!(misplaced::incomplete::<PoolTomlFile>(&sections()), Vec::<String>::new());
        let error = |text: &str| {
            let (path, folder) = (Path::new("pool.toml"), Path::new("worker"));
            parse(text, path, folder).unwrap_err().to_string()
        };
        for (text, expected) in [
            ("nothing = \"refuse\"", "nothing belongs under [grants]"),
            ("[grants]\n[tpm]\nfirst_use = \"x\"\n", "first_use belongs under [attestation]"),
            ("[grants]\naccepts = [[\"tpm\"]]", "accepts belongs under [attestation]"),
            ("[grants]\n[upstream]\nunits = []", "units belongs under [upstream.include]"),
            ("[grants]\nendorsement = \"allowlist\"", "endorsement belongs under [tpm]"),
            (
                "[grants]\n[tpm]\nobserve = true",
                "observe belongs under the top, before any heading",
            ),
        ] {
            let said = error(text);
            assert!(said.contains(expected) && said.contains("line"), "{text}: {said}");
        }
        assert!(!error("[grants]\nno_such = 1").contains("belongs"));
    }
}
