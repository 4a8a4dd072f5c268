//! The MachineConfigs by which machine-config-daemon takes over nodes that have a pre-approved config. They are made in the cluster, and
//! kept there for as long as a node may use them (`docs/how-to/second-stage.md`).
//!
//! The controller makes these objects from what the gateways give to a pool's nodes: it fetches the pre-approved config as an
//! unauthenticated client ([`Source`]). So it needs no source of configs, and no credential. A gateway is trusted for a name that no object
//! has yet, and for no other.

mod object_state;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_cluster_api::failures::FailureLog;
use attest_cluster_api::resources::{machine_config_pools, machine_configs};
use attest_cluster_api::{ClusterClient, ClusterError, RequestCause};
use attest_ignition::machine_config::second_stage::{LABELS, SPEC_DIGEST, SecondStageObject};
use attest_system::clock::{Clock, rfc3339};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
pub use object_state::{ObjectState, read_state};
use serde_json::Value;
pub use source::{FetchError, GatewayEndpoints};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::MissedTickBehavior;

use crate::metrics::ControllerMetrics;

/// Annotation with the time at which a controller last saw that the config of this object is served. An object without it was not made by a
/// controller, and is not removed.
const SERVED_AT: &str = "attest-gateway.internal/served-at";
/// Interval at which that time is written: long, since each time the whole object is written.
const SAY_EVERY: Duration = Duration::from_secs(12 * 3600);
/// Time for which an object stays after it was last served. A node that has booted with it waits for the approval of its CSR, and then for
/// its daemon to be scheduled. The controller does not learn of that.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Interval at which the pools' files are looked at, and pause after a conflict.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the configs are fetched, and the objects looked at. The daemon tries again after a minute at most.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Most objects for one pool: a limit for a gateway that gives another config each time.
const OBJECTS_LIMIT: usize = 100;
/// The annotations of a node that name the MachineConfigs which its daemon needs.
const OF_NODES: [&str; 2] = [
    "machineconfiguration.openshift.io/currentConfig",
    "machineconfiguration.openshift.io/desiredConfig",
];

/// Reason why the objects are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum SecondStageTaskError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An object of that name that was not made here.
    #[error(
        "MachineConfig {name} differs from the config that nodes get, and lacks the label of the second stage: delete it with `oc delete machineconfig {name}`"
    )]
    Foreign { name: String },
    /// A gateway serves another config under the name of an object than the one that it was made of.
    #[error(
        "MachineConfig {name} was created from another config than a gateway serves under its name now: left unchanged; compare the pool's files on each gateway"
    )]
    Ambiguous { name: String },
    #[error(
        "MachineConfig {name} is not created: the pool already has {OBJECTS_LIMIT} of the second stage, from configs served in the last 30 days"
    )]
    TooMany { name: String },
    /// The content is not an object.
    #[error("MachineConfig {name}: {problem}")]
    NotAnObject { name: String, problem: String },
}

/// The objects in the cluster, and what is known of them.
pub struct SecondStageObjects {
    cluster: Arc<ClusterClient>,
    clock: Clock,
    /// The resource version in which an object was found, or made, as it should be.
    verified: BTreeMap<String, String>,
}

/// Result of a pass over the objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SecondStagePass {
    pub made: BTreeSet<String>,
    /// Put back as they should be, or said to be served still.
    pub written: BTreeSet<String>,
    pub removed: BTreeSet<String>,
    /// Set if another client has changed something meanwhile: another pass is needed.
    pub needs_another_pass: bool,
}

impl SecondStageObjects {
    #[must_use]
    pub const fn new(cluster: Arc<ClusterClient>, clock: Clock) -> Self {
        Self {
            cluster,
            clock,
            verified: BTreeMap::new(),
        }
    }

    /// Makes missing objects, and restores changed ones. Removes objects that were made here, are no longer served, and that no node uses.
    ///
    /// # Errors
    /// [`SecondStageTaskError`]; what was done until then is done.
    pub async fn reconcile(&mut self, wanted: &[SecondStageObject]) -> Result<SecondStagePass, SecondStageTaskError> {
        let mut done = SecondStagePass::default();
        let there = self.make(wanted, &mut done).await?;
        let is_wanted = |name: &str| wanted.iter().any(|object| object.name == name);
        let superseded: Vec<_> = there
            .into_iter()
            .filter(|found| !is_wanted(&found.name_any()) && self.is_over(found))
            .collect();
        if !superseded.is_empty() {
            self.remove(&superseded, &mut done).await?;
        }
        Ok(done)
    }

    /// Like [`SecondStageObjects::reconcile`] while it is unknown what else is served: removes nothing. Returns the objects that were there.
    ///
    /// # Errors
    /// Like [`SecondStageObjects::reconcile`].
    async fn make(
        &mut self,
        wanted: &[SecondStageObject],
        done: &mut SecondStagePass,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, SecondStageTaskError> {
        let labels: Vec<String> = LABELS.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let ours = ListParams::default().labels(&labels.join(","));
        let metas: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.cluster.client(), &machine_configs());
        let there = self.cluster.list("MachineConfigs of the second stage", &metas, &ours).await?;
        let mut wrong = None;
        for object in wanted {
            match self.make_one(object, &there, done).await {
                Ok(()) => {}
                // It would not answer for the others either.
                Err(SecondStageTaskError::Cluster(error)) if error.cause().concerns_all() => return Err(error.into()),
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        wrong.map_or(Ok(there), Err)
    }

    async fn make_one(
        &mut self,
        wanted: &SecondStageObject,
        there: &[PartialObjectMeta<DynamicObject>],
        done: &mut SecondStagePass,
    ) -> Result<(), SecondStageTaskError> {
        let owners = self.owner(&wanted.pool).await?.map(|owner| vec![owner]);
        let found = there.iter().find(|found| found.name_any() == wanted.name);
        let of_wanted = |found: &PartialObjectMeta<DynamicObject>| {
            found.annotations().get(SPEC_DIGEST).map(String::as_str) == digest(&wanted.value) && found.metadata.owner_references == owners
        };
        if found.is_some_and(|found| self.is_well(found) && of_wanted(found)) {
            return Ok(());
        }
        let family = wanted.name.rsplit_once('-').map_or("", |(family, _)| family);
        let of_pool = there.iter().filter(|found| found.name_any().starts_with(family)).count();
        if found.is_none() && of_pool + done.made.len() >= OBJECTS_LIMIT {
            return Err(SecondStageTaskError::TooMany { name: wanted.name.clone() });
        }
        self.put(wanted, owners, done).await
    }

    fn machine_configs(&self) -> Api<DynamicObject> {
        Api::all_with(self.cluster.client(), &machine_configs())
    }

    /// Returns whether it is as it was found, or made, and its time was written lately.
    fn is_well(&self, found: &PartialObjectMeta<DynamicObject>) -> bool {
        let version = self.verified.get(&found.name_any());
        version.is_some() && version == found.metadata.resource_version.as_ref() && self.age(found).is_some_and(|age| age < SAY_EVERY)
    }

    /// Returns whether it was made here, and has not been served for long.
    fn is_over(&self, found: &PartialObjectMeta<DynamicObject>) -> bool {
        self.age(found).is_some_and(|age| age > KEPT)
    }

    /// Returns the time since a controller saw that it is served.
    fn age<K: Resource>(&self, object: &K) -> Option<Duration> {
        let said = object.meta().annotations.as_ref()?.get(SERVED_AT)?;
        let said = OffsetDateTime::parse(said, &Rfc3339).ok()?.unix_timestamp();
        let said = u64::try_from(said).ok()?;
        Some(Duration::from_secs(self.clock.now().as_secs().saturating_sub(said)))
    }

    async fn put(
        &mut self,
        wanted: &SecondStageObject,
        owners: Option<Vec<OwnerReference>>,
        done: &mut SecondStagePass,
    ) -> Result<(), SecondStageTaskError> {
        let api = self.machine_configs();
        let name = &wanted.name;
        let wrong = |error: serde_json::Error| SecondStageTaskError::NotAnObject {
            name: name.clone(),
            problem: error.to_string(),
        };
        let mut object: DynamicObject = serde_json::from_value(wanted.value.clone()).map_err(wrong)?;
        object.metadata.owner_references = owners;
        let now = rfc3339(self.clock.now().as_secs());
        object.annotations_mut().insert(SERVED_AT.to_owned(), now);
        let found = self.cluster.ask("a MachineConfig of the second stage", api.get_opt(name)).await?;
        let params = PostParams::default();
        let Some(found) = found else {
            let made = self
                .cluster
                .ask("creating a MachineConfig of the second stage", api.create(&params, &object));
            if self.settle(made.await, done)? {
                done.made.insert(name.clone());
            }
            return Ok(());
        };
        let as_wanted = found.data.get("spec") == object.data.get("spec");
        let labelled = |(key, value): &(&str, &str)| found.labels().get(*key).is_some_and(|found| found == value);
        if !LABELS.iter().all(labelled) {
            // Somebody else's that says the same does what is wanted. It is not the controller's to change.
            return if as_wanted {
                Ok(())
            } else {
                Err(SecondStageTaskError::Foreign { name: name.clone() })
            };
        }
        let as_made = found.annotations().get(SPEC_DIGEST).map(String::as_str) == digest(&wanted.value);
        if !as_wanted && !as_made {
            return Err(SecondStageTaskError::Ambiguous { name: name.clone() });
        }
        let owned = found.metadata.owner_references == object.metadata.owner_references;
        if as_wanted && as_made && owned && self.age(&found).is_some_and(|age| age < SAY_EVERY) {
            self.verified.insert(name.clone(), found.resource_version().unwrap_or_default());
            return Ok(());
        }
        // Of this version only: what has changed meanwhile is looked at first.
        object.metadata.resource_version = found.resource_version();
        let written = self
            .cluster
            .ask("writing a MachineConfig of the second stage", api.replace(name, &params, &object));
        if self.settle(written.await, done)? {
            done.written.insert(name.clone());
        }
        Ok(())
    }

    /// Returns whether it was written; `false` if another client was first.
    fn settle(&mut self, written: Result<DynamicObject, ClusterError>, done: &mut SecondStagePass) -> Result<bool, ClusterError> {
        match written {
            Ok(object) => {
                // As the API has it, which may drop what it does not know: so what it took is what is wanted.
                self.verified
                    .insert(object.name_any(), object.resource_version().unwrap_or_default());
                Ok(true)
            }
            Err(error) if error.is_status(CONFLICT) => {
                done.needs_another_pass = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the pool as owner of its objects. The operator then gives a node that boots into a custom pool the pool's labels, and the
    /// objects are deleted with the pool.
    async fn owner(&self, pool: &str) -> Result<Option<OwnerReference>, ClusterError> {
        let resource = machine_config_pools();
        let api: Api<DynamicObject> = Api::all_with(self.cluster.client(), &resource);
        let found = self.cluster.ask("a MachineConfigPool", api.get_metadata_opt(pool)).await?;
        Ok(found.and_then(|found| {
            Some(OwnerReference {
                api_version: resource.api_version,
                kind: resource.kind,
                name: found.metadata.name?,
                uid: found.metadata.uid?,
                controller: Some(true),
                block_owner_deletion: None,
            })
        }))
    }

    async fn remove(
        &self,
        superseded: &[PartialObjectMeta<DynamicObject>],
        done: &mut SecondStagePass,
    ) -> Result<(), SecondStageTaskError> {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.cluster.client());
        let page = ListParams::default().limit(METADATA_PAGE_OBJECTS);
        let nodes = self.cluster.list("nodes", &nodes, &page).await?;
        let named: BTreeSet<&str> = nodes
            .iter()
            .flat_map(|node| OF_NODES.iter().filter_map(|name| node.annotations().get(*name)))
            .map(String::as_str)
            .collect();
        for object in superseded.iter().filter(|object| !named.contains(object.name_any().as_str())) {
            let name = object.name_any();
            // Not if another controller has seen meanwhile that it is served.
            let as_seen = Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            };
            let params = DeleteParams::default().preconditions(as_seen);
            let api = self.machine_configs();
            match self
                .cluster
                .ask("removing a MachineConfig of the second stage", api.delete(&name, &params))
                .await
            {
                Ok(_) => {
                    done.removed.insert(name);
                }
                Err(error) if error.is_status(CONFLICT) => done.needs_another_pass = true,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns the digest of the `spec` that was served for an object.
fn digest(object: &Value) -> Option<&str> {
    object.pointer("/metadata/annotations")?.get(SPEC_DIGEST)?.as_str()
}

/// Objects of one page of a list of metadata, of which each has some kilobytes.
const METADATA_PAGE_OBJECTS: u32 = 500;
const CONFLICT: u16 = 409;

/// The task that keeps the objects.
pub(crate) struct SecondStageTask {
    pub cluster: Arc<ClusterClient>,
    pub source: GatewayEndpoints,
    /// The pools whose nodes the daemon takes over, with the MachineConfigPool of each.
    pub pools: Arc<dyn Fn() -> BTreeMap<String, String> + Send + Sync>,
    pub clock: Clock,
    pub metrics: Arc<ControllerMetrics>,
}

/// A failure that leaves a pass incomplete.
#[derive(Debug, thiserror::Error)]
enum SecondStagePassError {
    #[error("pool {pool}: {source}")]
    Source { pool: String, source: FetchError },
    #[error(transparent)]
    Objects(#[from] SecondStageTaskError),
}

impl SecondStagePassError {
    fn cause(&self) -> RequestCause {
        match self {
            Self::Objects(SecondStageTaskError::Cluster(error)) => error.cause(),
            other => RequestCause::Other(other.to_string()),
        }
    }
}

impl SecondStageTask {
    /// Keeps them for as long as it is polled.
    pub(crate) async fn run(&self) {
        let mut second_stage = SecondStageObjects::new(Arc::clone(&self.cluster), self.clock);
        let mut served = None;
        let mut due = Instant::now();
        let mut failures = FailureLog::default();
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let pools = (self.pools)();
            if served.as_ref() != Some(&pools) {
                served = Some(pools.clone());
                due = Instant::now();
                self.metrics.second_stage_missing(!pools.is_empty());
            }
            // Without a second stage nothing is asked, so no right is needed.
            if pools.is_empty() || Instant::now() < due {
                continue;
            }
            let passed = self.pass(&mut second_stage, &pools).await;
            let wait = match &passed {
                Ok(SecondStagePass {
                    needs_another_pass: false, ..
                }) => CHECK_EVERY,
                Ok(SecondStagePass {
                    needs_another_pass: true, ..
                }) => LOOK_EVERY,
                Err(_) => RETRY_AFTER,
            };
            due = Instant::now() + wait;
            self.metrics.second_stage_missing(!matches!(
                passed,
                Ok(SecondStagePass {
                    needs_another_pass: false,
                    ..
                })
            ));
            match passed {
                Ok(done) => {
                    if failures.is_over() {
                        tracing::info!("second stage: the cluster's MachineConfigs are up to date again");
                    }
                    done.log();
                }
                Err(error) => {
                    if failures.is_new(error.cause()) {
                        tracing::warn!(
                            "second stage: {error}; nodes with a pre-approved config wait if the cluster lacks their MachineConfig"
                        );
                    }
                }
            }
        }
    }

    /// Fetches what is served, and updates the objects. A pool whose config cannot be fetched delays no other; its objects stay as they
    /// are.
    async fn pass(
        &self,
        second_stage: &mut SecondStageObjects,
        pools: &BTreeMap<String, String>,
    ) -> Result<SecondStagePass, SecondStagePassError> {
        let (mut wanted, mut failed) = (Vec::new(), None);
        for (pool, machine_config_pool) in pools {
            match self.source.objects(pool, machine_config_pool).await {
                Ok(objects) => wanted.extend(objects),
                Err(source) => {
                    let pool = pool.clone();
                    failed = failed.or(Some(SecondStagePassError::Source { pool, source }));
                }
            }
        }
        let Some(failed) = failed else {
            return Ok(second_stage.reconcile(&wanted).await?);
        };
        let mut done = SecondStagePass::default();
        let made = second_stage.make(&wanted, &mut done).await;
        done.log();
        made.map_err(SecondStagePassError::from).and(Err(failed))
    }
}

impl SecondStagePass {
    fn log(&self) {
        for name in &self.made {
            tracing::info!("second stage: created MachineConfig {name}");
        }
        for name in &self.written {
            tracing::info!("second stage: rewrote MachineConfig {name}");
        }
        for name in &self.removed {
            tracing::info!(
                "second stage: removed MachineConfig {name}: not served for {} days, and used by no node",
                KEPT.as_secs() / (24 * 3600)
            );
        }
    }
}
