//! Writes to the API: some objects each second, each for the version that it was made from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use attest_cluster_api::events::{About, EventText, Events};
use attest_cluster_api::{ClusterClient, ClusterError};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::WHAT;
use super::kind::KIND;
use super::object::{API_VERSION, AttestedNode};
use crate::machine_status::status::AttestedNodeStatus;

/// Pause between two writes: 50 in a second, so that 10,000 machines are written within minutes, and the API has room for others.
const PAUSE: Duration = Duration::from_millis(20);
/// Field manager of these writes at the API.
const MANAGER: &str = "attest-gateway";
const CONFLICT: u16 = 409;
const INVALID: u16 = 422;

/// Outcome of a write to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// It is as it should be.
    Yes,
    /// Another client has changed it meanwhile: the new version is looked at later.
    Later,
    /// The API takes no such status: its schema is another.
    Never,
}

pub(super) struct AttestedNodeWriter {
    cluster: Arc<ClusterClient>,
    events: Events,
    pace: Interval,
    /// Versions that were written over: a watch that reports one of them is behind.
    past: HashMap<String, Vec<String>>,
    /// Number of times in a row that the API has refused to write each of these, though it answers.
    failed: HashMap<String, u32>,
    /// Set if it was reported that the schema is another.
    schema_reported: bool,
    /// The log has a line that labels cannot be written.
    unlabelled: bool,
}

impl AttestedNodeWriter {
    pub(super) fn new(cluster: Arc<ClusterClient>) -> Self {
        let mut pace = interval(PAUSE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            cluster,
            events: Events::new("attest-gateway"),
            pace,
            past: HashMap::new(),
            failed: HashMap::new(),
            schema_reported: false,
            unlabelled: false,
        }
    }

    fn api(&self) -> Api<AttestedNode> {
        Api::all(self.cluster.client())
    }

    /// Returns whether this version was written over, and the watch has not reported that yet.
    pub(super) fn is_past(&mut self, node: &AttestedNode) -> bool {
        let is_past = self
            .past
            .get(node.name())
            .is_some_and(|versions| versions.iter().any(|version| version == node.resource_version()));
        if !is_past {
            self.past.remove(node.name());
        }
        is_past
    }

    /// Returns the number of failed writes in a row, though the API answers. Others come first.
    pub(super) fn failures(&self, name: &str) -> u32 {
        self.failed.get(name).copied().unwrap_or_default()
    }

    /// Notes whether one could be written. One that the API has something against, such as its size, is in no other's way.
    pub(super) fn note(&mut self, name: &str, failed: bool) {
        if failed {
            *self.failed.entry(name.to_owned()).or_default() += 1;
        } else {
            self.failed.remove(name);
        }
    }

    /// Reads the object as it is at this moment, with the clients that have written it.
    pub(super) async fn read(&self, name: &str) -> Result<Option<AttestedNode>, ClusterError> {
        self.cluster.ask(WHAT, self.api().get_opt(name)).await
    }

    /// Makes an object; returns `None` if it exists.
    pub(super) async fn create(&mut self, name: &str) -> Result<Option<AttestedNode>, ClusterError> {
        self.pace.tick().await;
        let (node, params) = (AttestedNode::new(name.to_owned()), params());
        match self.cluster.ask(WHAT, self.api().create(&params, &node)).await {
            Ok(made) => Ok(Some(made)),
            Err(error) if error.is_status(CONFLICT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes labels and status, if they are others than they were.
    pub(super) async fn write(&mut self, node: &AttestedNode, status: &mut AttestedNodeStatus) -> Result<Written, ClusterError> {
        status.sum_up();
        let mut versions = vec![node.resource_version().to_owned()];
        match self.label(node, status).await {
            Ok(version) => versions.extend(version),
            Err(error) if error.is_status(CONFLICT) || error.is_not_found() => return Ok(Written::Later),
            Err(error) => return Err(error),
        }
        if let Some(changes) = status.patch(&node.status()) {
            self.pace.tick().await;
            let patch = json!({"metadata": {"resourceVersion": versions.last()}, "status": changes});
            match self
                .cluster
                .ask(WHAT, self.api().patch_status(node.name(), &patched(), &Patch::Merge(&patch)))
                .await
            {
                Ok(_) => {}
                Err(error) if error.is_status(CONFLICT) || error.is_not_found() => return Ok(Written::Later),
                Err(error) if error.is_status(INVALID) => {
                    if !std::mem::replace(&mut self.schema_reported, true) {
                        tracing::warn!(
                            "cluster: {error}; check that the CustomResourceDefinition is this release's: `attest-gateway manifests render --with attested-nodes`"
                        );
                    }
                    return Ok(Written::Never);
                }
                Err(error) => return Err(error),
            }
        } else if versions.len() == 1 {
            return Ok(Written::Yes);
        } else {
            versions.pop();
        }
        self.past.insert(node.name().to_owned(), versions);
        Ok(Written::Yes)
    }

    /// Returns whether labels differ from the status, unless the API has refused the last ones that were written.
    pub(super) fn is_to_label(&self, node: &AttestedNode, status: &AttestedNodeStatus) -> bool {
        !self.unlabelled && status.labels().into_iter().any(|(name, value)| node.label(name) != value)
    }

    /// Writes the labels by which the object is found, if they are others, and returns the version that it has then.
    async fn label(&mut self, node: &AttestedNode, status: &AttestedNodeStatus) -> Result<Option<String>, ClusterError> {
        let changed = status.labels().into_iter().filter(|(name, value)| node.label(name) != *value);
        let changed: serde_json::Map<String, Value> = changed.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        if changed.is_empty() {
            return Ok(None);
        }
        self.pace.tick().await;
        let patch = json!({"metadata": {"resourceVersion": node.resource_version(), "labels": changed}});
        match self
            .cluster
            .ask(WHAT, self.api().patch(node.name(), &patched(), &Patch::Merge(&patch)))
            .await
        {
            Ok(labelled) => {
                self.unlabelled = false;
                Ok(Some(labelled.resource_version().to_owned()))
            }
            // What the objects say is worth more than that they are found by it: a role without this right, or a spec that the schema refuses, keeps no status away.
            Err(error) if !error.cause().concerns_all() && !error.is_status(CONFLICT) && !error.is_not_found() => {
                if !std::mem::replace(&mut self.unlabelled, true) {
                    tracing::warn!("cluster: {error}; writing no labels: check that the role allows patch on attestednodes");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reports it as an event of the object, if the limit of this minute allows that.
    pub(super) async fn post_event(
        &mut self,
        node: &AttestedNode,
        reason: &'static str,
        warning: bool,
        text: &str,
        now: u64,
    ) -> Result<(), ClusterError> {
        let about = About {
            api_version: API_VERSION,
            kind: KIND,
            name: node.name(),
            uid: node.uid(),
        };
        self.events
            .post(&self.cluster, about, EventText { reason, warning }, text, now)
            .await
            .map(drop)
    }
}

fn patched() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    }
}
