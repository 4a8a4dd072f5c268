//! Facts about both configs of a pool that are needed when it is loaded, and later. They are computed once, while the configs are unpacked.

use std::collections::BTreeSet;

use attest_ignition::lint::{self, SecretFinding};
use attest_ignition::machine_config::{MachineConfigContent, appended};
use attest_ignition::{Config, Hashed, Inexpressible, SpecVersion};
use serde_json::Value;

use super::difference::{self, ConfigDifference};
use super::missing_files::{MissingFile, missing_files};
use super::reapply;
use super::taken_over::{self, TakeoverObstacle};
use super::versions::Conversion;

/// Path of the list of files in a config.
const FILES: [&str; 2] = ["storage", "files"];
/// The folder of Kubernetes credentials on a node.
const OF_KUBERNETES: &str = "/etc/kubernetes/";

/// Both configs with everything that their kinds add, except the contents that only repeat the rest.
pub(super) struct Outlines {
    pub pre_approved: Config,
    full: Config,
    /// The contents left out of the configs.
    left_out: [Option<Vec<u8>>; 2],
    /// Set if both have the same MachineConfig settings, or none.
    same_kind: bool,
}

/// Facts about both configs.
#[derive(Debug)]
pub(super) struct ConfigOutline {
    /// Set if both are the same.
    pub same: bool,
    /// Reason why a node with the pre-approved one cannot apply the full one.
    pub obstacle: Option<String>,
    /// Reasons why machine-config-daemon cannot take over, if it should.
    pub not_taken_over: Vec<TakeoverObstacle>,
    /// Files that the pre-approved one refers to, and only the full one has.
    pub missing_files: Vec<MissingFile>,
    /// Set if the full one has kernel arguments.
    pub kernel_arguments: bool,
    /// Their sizes, as text.
    pub summary: String,
}

impl Outlines {
    /// Builds the outlines; `sizes` are the approximate sizes of the configs, in bytes.
    pub(crate) fn new(pre_approved: (Config, &Conversion), full: (Config, &Conversion), sizes: [usize; 2]) -> Result<Self, Inexpressible> {
        let [size, size_of_full] = sizes;
        let left_out = [
            pre_approved.1.left_out(&pre_approved.0, size)?,
            full.1.left_out(&full.0, size_of_full)?,
        ];
        let same_kind = match (pre_approved.1, full.1) {
            (Conversion::Operator(pre_approved), Conversion::Operator(full)) => pre_approved.machine_config == full.machine_config,
            _ => true,
        };
        Ok(Self {
            pre_approved: pre_approved.1.outline(pre_approved.0)?,
            full: full.1.outline(full.0)?,
            left_out,
            same_kind,
        })
    }

    /// Returns the SHA-256 of both configs, complete, in the newest version.
    pub(crate) fn digests(self) -> [Result<String, Inexpressible>; 2] {
        let [of_pre_approved, of_full] = self.left_out;
        [(self.pre_approved, of_pre_approved), (self.full, of_full)].map(|(mut config, left_out)| {
            let Some(content) = left_out else { return digest(&config) };
            if let Some(digest) = digest_with(&config, &content)? {
                return Ok(digest);
            }
            appended::fill(&mut config, &content);
            digest(&config)
        })
    }

    /// Returns an entry of the pre-approved config that the full one does not have.
    pub(crate) fn missing(&self) -> Option<ConfigDifference> {
        difference::missing(&self.pre_approved, &self.full)
    }

    /// Returns whether the pre-approved config has a credential by which a kubelet requests its certificate. It may be a kubeconfig with a
    /// credential, OpenShift's file for it, or a token among the files of Kubernetes. `found` are the lint's findings in the config.
    pub(crate) fn has_bootstrap_credential(&self, found: &BTreeSet<SecretFinding>) -> bool {
        let files = self.pre_approved.list(FILES);
        let is_kubeconfig = |file: &Value| file.get("path").and_then(Value::as_str) == Some(appended::KUBECONFIG);
        let is_credential = |finding: &SecretFinding| match finding.kind {
            lint::SecretKind::KubeconfigCredential => true,
            lint::SecretKind::Token => finding.place.starts_with(OF_KUBERNETES),
            _ => false,
        };
        files.iter().any(is_kubeconfig) || found.iter().any(is_credential)
    }

    /// Returns the size of the pre-approved config's MachineConfig in bytes, as sent to the API; `None` if it has none.
    pub(crate) fn object_size(&self) -> Option<usize> {
        let [content, _] = &self.left_out;
        let content: serde_json::Value = serde_json::from_slice(content.as_ref()?).ok()?;
        Some(content.to_string().len())
    }

    /// Computes the facts. `spec` is that of the pre-approved MachineConfig, if machine-config-daemon is to take over with it.
    pub(crate) fn compute(&self, spec: Option<&MachineConfigContent>) -> ConfigOutline {
        let arguments = ["shouldExist", "shouldNotExist"].map(|list| self.full.list(["kernelArguments", list]));
        ConfigOutline {
            same: self.same_kind && self.pre_approved == self.full,
            obstacle: reapply::obstacle(&self.pre_approved, &self.full),
            not_taken_over: spec.map_or_else(Vec::new, |spec| taken_over::obstacles(&self.pre_approved, spec, &self.full)),
            missing_files: missing_files(&self.pre_approved, &self.full),
            kernel_arguments: arguments.iter().any(|arguments| !arguments.is_empty()),
            summary: format!("full: {}; pre-approved: {}", sizes(&self.full), sizes(&self.pre_approved)),
        }
    }
}

fn digest(config: &Config) -> Result<String, Inexpressible> {
    Hashed::json(&config.in_version(SpecVersion::NEWEST)?).map_err(|error| inexpressible(&error))
}

/// Returns the digest of the config that [`appended::fill`] would make of an outline, without building it: it would be twice as large.
/// `None` if the position of the content cannot be found.
fn digest_with(outline: &Config, content: &[u8]) -> Result<Option<String>, Inexpressible> {
    // The content has the config in it, and is longer.
    let mut said = Vec::with_capacity(content.len());
    serde_json::to_writer(&mut said, &outline.in_version(SpecVersion::NEWEST)?).map_err(|error| inexpressible(&error))?;
    let Some((before, after)) = appended::gap(outline, &said).and_then(|gap| said.split_at_checked(gap)) else {
        return Ok(None);
    };
    let mut hashed = Hashed::default();
    hashed.put(before);
    hashed.put_escaped(content);
    hashed.put(after);
    Ok(Some(hashed.hex()))
}

fn inexpressible(error: &serde_json::Error) -> Inexpressible {
    Inexpressible {
        version: SpecVersion::NEWEST,
        place: "$".to_owned(),
        problem: error.to_string(),
    }
}

fn sizes(config: &Config) -> String {
    let count = |place, what: &str| match config.list(place).len() {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    };
    format!("{}, {}", count(["storage", "files"], "file"), count(["systemd", "units"], "unit"))
}
