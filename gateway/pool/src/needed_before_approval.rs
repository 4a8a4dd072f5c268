//! The part of an upstream server's config that a node needs before it is approved, by the cluster's MachineConfigs.
//!
//! The server returns one config for all MachineConfigs of a pool, and does not say which of them are needed before approval. So those are
//! rendered here and compared with the server's config. It must have all of their entries, unchanged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use attest_ignition::Config;
use attest_ignition::machine_config::appended::REPLACED;
use attest_ignition::machine_config::manifest::ManifestError;
use attest_ignition::machine_config::render::{RenderError, render_pool};
use attest_ignition::machine_config::{GENERATED_ANNOTATION, Manifests, NEEDED_ANNOTATION, Selector};
use serde_json::Value;

use super::difference::{EntryDifference, differences};

/// The MachineConfigs needed before approval, as far as they are known.
#[derive(Debug, Clone, Default)]
pub enum NeededState {
    /// The cluster has not been read yet.
    #[default]
    Pending,
    Ready(Arc<Needed>),
    /// Reading them from the cluster failed, for this reason.
    Failed(String),
}

/// The MachineConfigs that nodes need before they are approved, and the MachineConfigPools, as the API has them. They are parsed for the
/// pool that has them: an invalid one does not affect other pools.
#[derive(Debug, Default)]
pub struct Needed {
    pools: Vec<Value>,
    machine_configs: Vec<Value>,
}

/// Reason why the parts that a pool's nodes need are not known.
#[derive(Debug, thiserror::Error)]
pub enum NeededError {
    /// The cluster has not been read yet, or the gateway reads none.
    #[error(
        "needed_before_node_approved: the list of these MachineConfigs is not read from the cluster yet; reading it needs [cluster] in gateway.toml"
    )]
    Pending,
    #[error("needed_before_node_approved: cannot read the list of these MachineConfigs from the cluster: {0}")]
    Failed(String),
    /// An object that cannot be used.
    #[error("needed_before_node_approved: {0}")]
    Manifest(#[from] ManifestError),
    #[error("needed_before_node_approved: {0}")]
    Render(#[from] RenderError),
    /// A node would boot from it unconfigured.
    #[error(
        "needed_before_node_approved: no MachineConfig of pool {pool} is needed before approval: none has the annotation {NEEDED_ANNOTATION}: \"true\""
    )]
    Nothing { pool: String },
    /// Another MachineConfig changes this entry, so it may contain what must not be given out before approval.
    #[error(
        "needed_before_node_approved: {kind} {name:?} of the full config differs from the MachineConfigs that are needed before approval: another MachineConfig changes it"
    )]
    Changed { kind: &'static str, name: String },
    /// The server renders another state of the cluster, or omits the entry.
    #[error("needed_before_node_approved: the full config lacks {kind} {name:?}, which a MachineConfig that is needed before approval has")]
    Missing { kind: &'static str, name: String },
}

/// Returns whether [`is_needed`] looks at this annotation.
#[must_use]
pub fn is_looked_at(annotation: &str) -> bool {
    [GENERATED_ANNOTATION, NEEDED_ANNOTATION].contains(&annotation)
}

/// Returns whether a node needs the MachineConfig before it is approved, by its annotations.
#[must_use]
pub fn is_needed(annotations: &BTreeMap<String, String>) -> bool {
    let generated = annotations.get(GENERATED_ANNOTATION).is_some_and(|version| !version.is_empty());
    match annotations.get(NEEDED_ANNOTATION).map(String::as_str) {
        Some("false") => false,
        // What is neither is refused when it is read, and not taken for the one or the other.
        Some(_) => true,
        None => generated,
    }
}

impl Needed {
    /// Creates it from MachineConfigs as the API returns them, and from MachineConfigPools for their selectors only. The server decides
    /// which rendered one they name.
    #[must_use]
    pub const fn new(pools: Vec<Value>, machine_configs: Vec<Value>) -> Self {
        Self { pools, machine_configs }
    }

    /// Returns the config that a pool's nodes need, if the full one has all of it.
    ///
    /// # Errors
    /// [`NeededError`]: nothing is left out, and nothing taken that another MachineConfig has changed.
    pub fn for_pool(&self, pool: &str, full: &Config) -> Result<Config, NeededError> {
        let mut manifests = Manifests::default();
        let named = |object: &&Value| object.pointer("/metadata/name").and_then(Value::as_str) == Some(pool);
        if let Some(object) = self.pools.iter().find(named) {
            read(&mut manifests, pool, object)?;
        }
        let selector = manifests
            .pools
            .first()
            .map_or_else(|| Selector::for_pool(pool), |pool| pool.selector.clone());
        for object in self.machine_configs.iter().filter(|object| selector.selects(&labels(object))) {
            let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            read(&mut manifests, name, object)?;
        }
        // Only their Ignition configs are asked for here; which extensions the operator knows, it has said by rendering.
        for config in &mut manifests.machine_configs {
            config.spec.extensions.clear();
        }
        let nothing = || NeededError::Nothing { pool: pool.to_owned() };
        let needed = render_pool(&manifests, pool)?.ok_or_else(nothing)?.pre_approved.config();
        if needed == Config::empty() {
            return Err(nothing());
        }
        let needed = with_replaced(needed, full);
        for difference in differences(&needed, full) {
            let (kind, name) = (difference.kind, difference.name);
            match difference.change {
                EntryDifference::Added => {}
                EntryDifference::Changed => return Err(NeededError::Changed { kind, name }),
                EntryDifference::Missing => return Err(NeededError::Missing { kind, name }),
            }
        }
        Ok(needed)
    }
}

/// The MachineConfigs needed before approval, for a pool that includes them.
impl NeededState {
    pub(super) fn for_pool(&self, pool: &str, full: &Config) -> Result<Config, NeededError> {
        match self {
            Self::Pending => Err(NeededError::Pending),
            Self::Failed(reason) => Err(NeededError::Failed(reason.clone())),
            Self::Ready(needed) => needed.for_pool(pool, full),
        }
    }
}

impl NeededError {
    /// Returns whether the cluster's API is the cause.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Pending | Self::Failed(_))
    }
}

/// Reads an object as if it were a file of its name.
fn read(manifests: &mut Manifests, name: &str, object: &Value) -> Result<(), ManifestError> {
    manifests.read(&Path::new("cluster").join(format!("{name}.json")), &object.to_string())
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let texts = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

/// Replaces the files that a server replaces by the cluster's current ones with those of its config.
fn with_replaced(mut needed: Config, full: &Config) -> Config {
    const FILES: [&str; 2] = ["storage", "files"];
    let is_at = |file: &Value, path: &str| file.get("path").and_then(Value::as_str) == Some(path);
    for path in REPLACED {
        let given = full.list(FILES).iter().find(|file| is_at(file, path));
        let own = needed
            .list_mut(FILES)
            .and_then(|files| files.iter_mut().find(|file| is_at(file, path)));
        if let (Some(given), Some(own)) = (given, own) {
            own.clone_from(given);
        }
    }
    needed
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;
