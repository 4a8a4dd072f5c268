//! MachineConfigs: the objects of the Machine Config Operator, and what it makes of them.
//!
//! [`manifest`] reads them from files, [`render`] makes one of many, [`appended`] adds what a Machine Config Server adds; [`second_stage`] makes one of a
//! pre-approved config.

pub mod appended;
mod locate;
pub mod manifest;
pub mod render;
pub mod second_stage;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

use crate::Config;

/// The label that says which pools a MachineConfig is for.
pub const ROLE_LABEL: &str = "machineconfiguration.openshift.io/role";
/// The annotation of MachineConfigs that the operator has made itself.
pub const GENERATED_ANNOTATION: &str = "machineconfiguration.openshift.io/generated-by-controller-version";
/// The annotation that replaces `neededBeforeNodeApproved` where the cluster's CRD would prune the field.
pub const NEEDED_ANNOTATION: &str = "machineconfiguration.openshift.io/needed-before-node-approved";
/// The annotation that names the image which nodes of a pool in image mode run from the start.
pub const PRE_BUILT_IMAGE_ANNOTATION: &str = "machineconfiguration.openshift.io/pre-built-image";
/// The extensions that the operator's releases up to August 2026 know; it refuses a MachineConfig with any other. machine-config-operator
/// 7ff337a, `SupportedExtensions`; `wasm` was removed with 28f9c72.
pub const EXTENSIONS: [&str; 8] = [
    "ipsec",
    "kerberos",
    "kernel-devel",
    "sandboxed-containers",
    "sysstat",
    "two-node-ha",
    "usbguard",
    "wasm",
];
/// The pool whose MachineConfigs every custom pool builds on.
pub const WORKER: &str = "worker";
/// Prefix of the names of rendered MachineConfigs.
pub const RENDERED_PREFIX: &str = "rendered-";

/// File and line that an object was read from, for errors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectOrigin {
    pub file: PathBuf,
    /// The line it begins on, from 1; 0 if that is not known.
    pub line: u64,
}

impl fmt::Display for ObjectOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Its name: what MachineConfigs are ordered by.
    pub name: String,
    /// Its labels, the role among them.
    pub labels: BTreeMap<String, String>,
    /// Set if the operator itself generated it.
    pub generated: bool,
    /// Set if a node needs it before the node is approved.
    pub needed_before_node_approved: bool,
    /// The image that nodes run from the start, in image mode.
    pub pre_built_image: Option<String>,
    pub spec: MachineConfigContent,
    pub origin: ObjectOrigin,
}

impl MachineConfig {
    #[must_use]
    pub fn role(&self) -> Option<&str> {
        self.labels.get(ROLE_LABEL).map(String::as_str)
    }
}

/// Spec of a MachineConfig.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineConfigContent {
    /// The Ignition config, if there is one.
    pub config: Option<Config>,
    pub kernel_arguments: Vec<String>,
    /// Extensions of the operating system.
    pub extensions: Vec<String>,
    pub fips: bool,
    /// The kernel's type; `None` is the default.
    pub kernel_type: KernelType,
    /// The operating system's image; empty if not set.
    pub os_image_url: String,
    /// The extensions' image; empty if not set.
    pub base_os_extensions_container_image: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum KernelType {
    #[default]
    #[serde(rename = "default", alias = "")]
    Default,
    #[serde(rename = "realtime")]
    Realtime,
    /// The kernel with pages of 64 KiB.
    #[serde(rename = "64k-pages")]
    Pages64k,
}

impl KernelType {
    /// Returns the value as written in a MachineConfig.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Realtime => "realtime",
            Self::Pages64k => "64k-pages",
        }
    }
}

/// A MachineConfigPool, reduced to the selection of its MachineConfigs.
#[derive(Debug, Clone)]
pub struct MachineConfigPool {
    pub name: String,
    /// Selector of its MachineConfigs.
    pub selector: Selector,
    /// The rendered MachineConfig that new nodes get, if the pool names one.
    pub rendered: Option<String>,
    pub origin: ObjectOrigin,
}

/// A Kubernetes label selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels that must have these values.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
    #[serde(default)]
    pub match_expressions: Vec<Expression>,
}

/// A condition of a label selector.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Returns the selector of a pool without a MachineConfigPool object: its own role and, unless it is `master` or `arbiter`, the role
    /// `worker`.
    #[must_use]
    pub fn for_pool(pool: &str) -> Self {
        let mut values = vec![pool.to_owned()];
        if ![WORKER, "master", "arbiter"].contains(&pool) {
            values.push(WORKER.to_owned());
        }
        Self {
            match_labels: BTreeMap::new(),
            match_expressions: vec![Expression {
                key: ROLE_LABEL.to_owned(),
                operator: Operator::In,
                values,
            }],
        }
    }

    /// Returns whether the selector matches these labels. Like in Kubernetes, a selector without conditions selects everything.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let expressions = self.match_expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|value| expression.values.contains(value));
            match expression.operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        });
        expressions && self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// The parts of a ControllerConfig that end up in configs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerConfig {
    /// The image that nodes run unless a MachineConfig names another.
    pub os_image_url: String,
    /// The extensions' image, unless a MachineConfig names another.
    pub base_os_extensions_container_image: String,
    /// CA certificates by which the kubelet verifies the API server's client certificates.
    pub kubelet_ca: Option<Vec<u8>>,
    /// CA certificates by which nodes verify the cloud's API.
    pub cloud_ca: Option<Vec<u8>>,
}

/// Everything that was read.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    /// The MachineConfigs, in no order.
    pub machine_configs: Vec<MachineConfig>,
    pub pools: Vec<MachineConfigPool>,
    /// The ControllerConfig, if there is one.
    pub controller: Option<ControllerConfig>,
    /// Known extensions in addition to [`EXTENSIONS`].
    pub extensions: BTreeSet<String>,
}

/// Returns a MachineConfig object, for display and for nodes: `config` is its Ignition config.
fn object(name: &str, spec: &MachineConfigContent, config: Value) -> Value {
    serde_json::json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": { "name": name },
        "spec": {
            "baseOSExtensionsContainerImage": spec.base_os_extensions_container_image,
            "config": config,
            "extensions": spec.extensions,
            "fips": spec.fips,
            "kernelArguments": spec.kernel_arguments,
            "kernelType": spec.kernel_type.as_str(),
            "osImageURL": spec.os_image_url,
        }
    })
}

/// An object whose config is written from where it is.
struct WithConfig<'o, C> {
    object: &'o Value,
    config: C,
}

/// Its fields; in `spec` the config has its place.
struct MachineConfigMembers<'o, C> {
    fields: &'o Map<String, Value>,
    config: &'o C,
    within: bool,
}

impl<C: Serialize> Serialize for WithConfig<'_, C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.object {
            Value::Object(fields) => MachineConfigMembers {
                fields,
                config: &self.config,
                within: false,
            }
            .serialize(serializer),
            other => other.serialize(serializer),
        }
    }
}

impl<C: Serialize> Serialize for MachineConfigMembers<'_, C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (field, value) in self.fields {
            match (self.within, field.as_str(), value) {
                (false, "spec", Value::Object(fields)) => map.serialize_entry(
                    field,
                    &MachineConfigMembers {
                        fields,
                        config: self.config,
                        within: true,
                    },
                )?,
                (true, "config", _) => map.serialize_entry(field, self.config)?,
                _ => map.serialize_entry(field, value)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_object_equals_the_whole_object() {
        let spec = MachineConfigContent {
            kernel_arguments: vec!["config".to_owned()],
            ..MachineConfigContent::default()
        };
        let config = serde_json::json!({"spec": {"config": 1}, "ignition": {"version": "3.4.0"}, "storage": {"files": []}});
        let whole = object("a", &spec, config.clone());
        let written = WithConfig {
            object: &object("a", &spec, Value::Null),
            config: &config,
        };
        assert_eq!(serde_json::to_string(&written).unwrap(), whole.to_string());
        assert_eq!(serde_json::to_string_pretty(&written).unwrap(), format!("{whole:#}"));
    }

    fn labels(role: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(ROLE_LABEL.to_owned(), role.to_owned())])
    }

    #[test]
    fn custom_pool_selects_its_own_and_worker_configs() {
        let check = |pool: &str, role: &str, expected: bool| {
            assert_eq!(Selector::for_pool(pool).selects(&labels(role)), expected, "{role} in {pool}");
        };
        check("worker", "worker", true);
        check("worker", "master", false);
        check("worker", "infra", false);
        check("master", "master", true);
        check("master", "worker", false);
        check("infra", "worker", true);
        check("infra", "infra", true);
        check("infra", "gpu", false);
    }

    #[test]
    fn label_selectors_follow_kubernetes() {
        let check = |selector: Value, expected: bool| {
            let selector: Selector = serde_json::from_value(selector).unwrap();
            assert_eq!(selector.selects(&labels("worker")), expected, "{selector:?}");
        };
        let expression = |operator: &str, values: Value| serde_json::json!({"matchExpressions": [{"key": ROLE_LABEL, "operator": operator, "values": values}]});
        check(serde_json::json!({}), true);
        check(serde_json::json!({"matchLabels": {ROLE_LABEL: "worker"}}), true);
        check(serde_json::json!({"matchLabels": {ROLE_LABEL: "infra"}}), false);
        check(serde_json::json!({"matchLabels": {"other": "worker"}}), false);
        check(expression("In", serde_json::json!(["worker", "infra"])), true);
        check(expression("In", serde_json::json!([])), false);
        check(expression("NotIn", serde_json::json!(["infra"])), true);
        check(expression("NotIn", serde_json::json!(["worker"])), false);
        check(expression("Exists", serde_json::json!([])), true);
        check(expression("DoesNotExist", serde_json::json!([])), false);
        assert!(serde_json::from_value::<Selector>(expression("Near", serde_json::json!([]))).is_err());
        assert!(serde_json::from_value::<Selector>(serde_json::json!({"matchLabel": {}})).is_err());
    }
}
