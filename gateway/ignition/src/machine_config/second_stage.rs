//! The second stage: machine-config-daemon takes over a node that booted with its pool's pre-approved config.
//!
//! The daemon uses the MachineConfig that the node's annotations name, and the cluster must have it. So the pre-approved config becomes a
//! MachineConfig of its own: the node gets its name, the cluster gets the object. From then on the daemon moves the node to its pool's
//! config, like any node. For the daemon's checks that it must pass see `docs/how-to/second-stage.md`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::appended::{Appended, BootstrapKubeconfig, CONTENT, ENCAPSULATED, KUBECONFIG, NODE_ANNOTATIONS, OF_ANY_RELEASE};
use super::render::{self, Rendered};
use super::{ControllerConfig, KernelType, MachineConfigContent};
use crate::hashed::Hashed;
use crate::{Config, Inexpressible, data_url};

/// Largest MachineConfig, in bytes: what etcd takes in a request. machine-config-operator 7ff337a, pkg/controller/common/constants.go,
/// `MaxMachineConfigSize`.
pub const OBJECT_LIMIT_BYTES: usize = 1_572_864;
/// Files that a Machine Config Server appends and a MachineConfig does not have. The daemon changes or removes them, and would report them
/// as drift.
const APPENDED: [&str; 4] = [NODE_ANNOTATIONS, KUBECONFIG, CONTENT, ENCAPSULATED];
/// The labels of the object. They contain no role, so no pool includes it. Without an annotation of the operator's version, it is not
/// treated as generated (`oc adm prune renderedmachineconfigs` removes unused generated ones).
pub const LABELS: [(&str, &str); 2] = [
    ("app.kubernetes.io/managed-by", "attest-gateway"),
    ("app.kubernetes.io/component", "second-stage"),
];
/// The annotation with the SHA-256 of the object's `spec`. It distinguishes a change in the cluster from a difference to the served config.
pub const SPEC_DIGEST: &str = "attest-gateway.internal/spec-sha256";
/// Part of the object's name after the pool.
const OF_PRE_APPROVED: &str = "pre-approved";

/// Reason why a pool's pre-approved config cannot be a MachineConfig.
#[derive(Debug, thiserror::Error)]
pub enum SecondStageError {
    /// A pool of plain configs only.
    #[error("the pool has no MachineConfigs, which the second stage by machine-config-daemon requires")]
    NoMachineConfigs,
    /// Files that are in no MachineConfig of the cluster.
    #[error(
        "machine-config-daemon would remove the plain configs of pre-approved/ and full/, because no MachineConfig of the cluster has them: convert them to MachineConfigs"
    )]
    PlainConfigs,
    /// Another server's config without a MachineConfig, or with one that is not pre-approved.
    #[error(
        "upstream.include.files does not list {ENCAPSULATED}, from which the object is created: it has the node's image, kernel arguments and FIPS mode"
    )]
    NotIncluded,
    /// A file that should be plain JSON or YAML within the config.
    #[error("{path} is not inline in the config: it is fetched, compressed or without contents")]
    Elsewhere { path: &'static str },
    /// The encapsulated MachineConfig cannot be read.
    #[error("{ENCAPSULATED} is not a MachineConfig that this gateway can read, at {place}")]
    NotAMachineConfig { place: String },
    /// More than the cluster's API takes.
    #[error("its MachineConfig would have {found} bytes, and the cluster's API takes {OBJECT_LIMIT_BYTES}")]
    TooLarge { found: usize },
    /// Something that the operator has no words for.
    #[error("no release of the operator can read its MachineConfig: {0}")]
    Inexpressible(#[from] Inexpressible),
}

/// Turns a pre-approved MachineConfig into one with which the daemon takes over; `full` is the spec of the pool's full one.
///
/// The daemon refuses to change the FIPS mode of a node, and changes the image by a reboot. So both are the full config's from the start;
/// neither is a secret. An image of image mode is left out: it was not built for this MachineConfig, and comes with the pool's own.
#[must_use]
pub fn taken_over(pre_approved: Rendered, pool: &str, full: &MachineConfigContent) -> Rendered {
    let spec = MachineConfigContent {
        fips: full.fips,
        os_image_url: full.os_image_url.clone(),
        base_os_extensions_container_image: full.base_os_extensions_container_image.clone(),
        ..pre_approved.spec
    };
    Rendered {
        name: name(pool, &spec),
        spec,
        pre_built_image: None,
    }
}

/// Returns the object's name. It begins like those of rendered MachineConfigs, so that readers of the cluster's MachineConfigs do not
/// include it. A MachineConfigPool's own rendered ones cannot have it: after their pool's name comes the hash.
fn name(pool: &str, spec: &MachineConfigContent) -> String {
    render::name(&format!("{pool}-{OF_PRE_APPROVED}"), spec)
}

/// Returns whether the pre-approved MachineConfig of this pool can have this name.
#[must_use]
pub fn is_name(name: &str, pool: &str) -> bool {
    let hash = name
        .strip_prefix(super::RENDERED_PREFIX)
        .and_then(|rest| rest.strip_prefix(pool))
        .and_then(|rest| rest.strip_prefix('-')?.strip_prefix(OF_PRE_APPROVED)?.strip_prefix('-'));
    hash.is_some_and(|hash| {
        hash.len() == render::NAME_HASH_CHARACTERS && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Turns the chosen parts of another server's config into such a MachineConfig. Returns their Ignition config, and the files to append to
/// it.
///
/// # Errors
/// [`SecondStageError`].
pub fn from_chosen_parts(mut chosen: Config, pool: &str) -> Result<(Config, Appended), SecondStageError> {
    let mut appended = Vec::new();
    if !chosen.list(["storage", "files"]).is_empty()
        && let Some(files) = chosen.list_mut(["storage", "files"])
    {
        appended.extend(files.extract_if(.., |file| path(file).is_some_and(|path| APPENDED.contains(&path))));
    }
    let of = |wanted: &'static str| {
        let file = appended.iter().find(|file| path(file) == Some(wanted));
        file.map(|file| contents(file).ok_or(SecondStageError::Elsewhere { path: wanted }))
            .transpose()
    };
    let spec = read(&of(ENCAPSULATED)?.ok_or(SecondStageError::NotIncluded)?)?;
    let kubeconfig = of(KUBECONFIG)?.map(BootstrapKubeconfig);
    let mut spec = MachineConfigContent {
        config: Some(chosen),
        ..spec
    };
    let name = name(pool, &spec);
    let config = spec.config.take().unwrap_or_else(Config::empty);
    let appended = Appended {
        machine_config: Rendered {
            name,
            spec,
            pre_built_image: None,
        },
        controller: ControllerConfig::default(),
        kubeconfig,
        annotations: true,
        for_any_release: true,
    };
    Ok((config, appended))
}

/// Returns an error if the operator cannot read an object of this config.
///
/// # Errors
/// [`SecondStageError`].
pub fn check_readable(config: &Config) -> Result<(), SecondStageError> {
    let [.., newest] = OF_ANY_RELEASE;
    config.in_version(newest).map(|_| ()).map_err(SecondStageError::from)
}

/// A MachineConfig as another server encapsulates it. Unknown fields are left to the full one, to which the daemon moves the node.
#[derive(Deserialize)]
struct Encapsulated {
    spec: EncapsulatedSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EncapsulatedSpec {
    kernel_arguments: Option<Vec<String>>,
    extensions: Option<Vec<String>>,
    fips: Option<bool>,
    kernel_type: Option<KernelType>,
    #[serde(rename = "osImageURL")]
    os_image_url: Option<String>,
    #[serde(rename = "baseOSExtensionsContainerImage")]
    base_os_extensions_container_image: Option<String>,
}

fn read(json: &[u8]) -> Result<MachineConfigContent, SecondStageError> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let Encapsulated { spec } = serde_path_to_error::deserialize(&mut json).map_err(|error| SecondStageError::NotAMachineConfig {
        place: error.path().to_string(),
    })?;
    Ok(MachineConfigContent {
        config: None,
        kernel_arguments: spec.kernel_arguments.unwrap_or_default(),
        extensions: spec.extensions.unwrap_or_default(),
        fips: spec.fips.unwrap_or_default(),
        kernel_type: spec.kernel_type.unwrap_or_default(),
        os_image_url: spec.os_image_url.unwrap_or_default(),
        base_os_extensions_container_image: spec.base_os_extensions_container_image.unwrap_or_default(),
    })
}

fn path(file: &Value) -> Option<&str> {
    file.get("path")?.as_str()
}

/// Returns the contents of a file; `None` if they are not in the config, or compressed.
fn contents(file: &Value) -> Option<Vec<u8>> {
    let contents = file.get("contents")?;
    let compression = contents.get("compression").and_then(Value::as_str).unwrap_or_default();
    let source = contents.get("source")?.as_str()?;
    data_url::decode(source).filter(|_| compression.is_empty())
}

/// The object that the cluster is given: whole, but for what an API adds.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondStageObject {
    /// Name of the MachineConfig in the nodes' annotations.
    pub name: String,
    /// The MachineConfigPool that the nodes are of.
    pub pool: String,
    pub value: Value,
}

impl SecondStageObject {
    /// Builds the object from a MachineConfig's JSON, as found in [`CONTENT`]. Adds the labels that identify objects made by a gateway, and
    /// [`SPEC_DIGEST`].
    ///
    /// # Errors
    /// [`SecondStageError`].
    pub fn parse(content: &[u8], pool: &str) -> Result<Self, SecondStageError> {
        let wrong = |place: &str| SecondStageError::NotAMachineConfig { place: place.to_owned() };
        let mut value: Value = serde_json::from_slice(content).map_err(|_| wrong("$"))?;
        let digest = Hashed::json(value.get("spec").unwrap_or_default()).map_err(|_| wrong("spec"))?;
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or_else(|| wrong("metadata"))?;
        let labels = LABELS.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        metadata.insert("annotations".to_owned(), json!({SPEC_DIGEST: digest}));
        metadata.insert("labels".to_owned(), Value::Object(labels.collect()));
        let name = metadata.get("name").and_then(Value::as_str).ok_or_else(|| wrong("metadata.name"))?;
        Ok(Self {
            name: name.to_owned(),
            pool: pool.to_owned(),
            value,
        })
    }
}

#[cfg(test)]
mod tests;
