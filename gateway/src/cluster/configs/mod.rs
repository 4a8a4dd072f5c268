//! Refreshes configs from another server when the cluster has changed that server's inputs, and the MachineConfigs that nodes need before
//! they are approved.

mod needed;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use attest_cluster_api::failures::FailureLog;
use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, keep, resources};
use attest_ignition::machine_config::ROLE_LABEL;
use attest_pool::needed_before_approval::{NeededState, is_looked_at};
use futures_util::future::join_all;
use kube::Resource;
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PartialObjectMeta};
use kube::core::{ApiResource, Expression, Selector};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::needed::Had;
use self::snapshot::ConfigsSnapshot;
use crate::pools::live::{LivePools, UpstreamUpdates};

/// Time without a change before the server is asked: a rollout changes several objects one after the other.
const SETTLE: Duration = Duration::from_secs(1);
/// Maximum wait for that time.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// Time after which the server is asked again: its own watches may be later than this gateway's.
const ONCE_MORE: Duration = Duration::from_secs(15);
/// Pause after a failed request.
const RETRY: Duration = Duration::from_secs(10);

/// Selects MachineConfigs that are of a role; rendered ones are of none.
fn role_selector() -> Selector {
    Expression::Exists(ROLE_LABEL.to_owned()).into()
}

type Metas = WatchCache<PartialObjectMeta<DynamicObject>>;

/// Keeps of a MachineConfigPool its name, the selector of its MachineConfigs, and the rendered one that new nodes get. Its status lists all their sources.
fn trim_pool(pool: &mut DynamicObject) {
    const LOOKED_AT: [&str; 4] = [
        "/spec/machineConfigSelector",
        "/spec/configuration/name",
        "/status/configuration/name",
        "/status/updatedMachineCount",
    ];
    let [selector, wanted, has, updated] = LOOKED_AT.map(|place| pool.data.pointer(place).cloned().unwrap_or_default());
    pool.data = json!({
        "spec": {"machineConfigSelector": selector, "configuration": {"name": wanted}},
        "status": {"configuration": {"name": has}, "updatedMachineCount": updated},
    });
    trim_metadata(pool.meta_mut());
}

fn trim_meta(object: &mut PartialObjectMeta<DynamicObject>) {
    trim_metadata(&mut object.metadata);
}

/// Labels select at the API; of the annotations those count that say whether a MachineConfig is needed before approval.
fn trim_metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.labels = None;
    metadata.owner_references = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| is_looked_at(name));
    }
}

/// Watch caches of these objects.
struct Configs {
    cluster: Arc<ClusterClient>,
    pools: WatchCache<DynamicObject>,
    controllers: Metas,
    os_configs: Metas,
    os_builds: Metas,
    machine_configs: Metas,
}

/// Keeps pools up to date with the cluster, for as long as the tasks run.
pub(super) fn spawn(tasks: &mut JoinSet<()>, cluster: &Arc<ClusterClient>, live: &Arc<LivePools>) {
    let of = resources::machine_config_pools();
    let api = Api::all_with(cluster.client(), &of);
    let (pools, keeping) = keep(&api, of, &Selector::default(), "machineconfigpools", cluster.health());
    tasks.spawn(keeping.trimmed(trim_pool).run());
    let mut metas = |of: ApiResource, which: &Selector, what, optional| {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(cluster.client(), &of);
        let (kept, keeping) = keep(&api, of, which, what, cluster.health());
        let keeping = keeping.trimmed(trim_meta);
        tasks.spawn(if optional { keeping.optional() } else { keeping }.run());
        kept
    };
    let all = Selector::default();
    let configs = Configs {
        cluster: Arc::clone(cluster),
        pools,
        controllers: metas(resources::controller_configs(), &all, "controllerconfigs", false),
        // Older clusters have no such kinds.
        os_configs: metas(resources::machine_os_configs(), &all, "machineosconfigs", true),
        os_builds: metas(resources::machine_os_builds(), &all, "machineosbuilds", true),
        machine_configs: metas(resources::machine_configs(), &role_selector(), "machineconfigs", false),
    };
    let live = Arc::clone(live);
    tasks.spawn(async move { configs.publish_changes(&live).await });
}

/// Asks once for the MachineConfigs that are needed before approval.
pub(super) async fn ask(cluster: &ClusterClient) -> NeededState {
    match needed::ask(cluster).await {
        Ok(needed) => NeededState::Ready(Arc::new(needed)),
        Err(error) => NeededState::Failed(error.to_string()),
    }
}

/// Asks for one of each kind.
pub(super) async fn check_access(cluster: &ClusterClient) -> Vec<(&'static str, Result<(), ClusterError>)> {
    let kinds = [
        ("machineconfigpools", resources::machine_config_pools()),
        ("machineconfigs", resources::machine_configs()),
        ("controllerconfigs", resources::controller_configs()),
    ];
    let asked = kinds.map(|(what, of)| async move {
        let api: Api<DynamicObject> = Api::all_with(cluster.client(), &of);
        let one = ListParams::default().limit(1);
        (what, cluster.ask(what, api.list_metadata(&one)).await.map(drop))
    });
    join_all(asked).await
}

impl Configs {
    /// Tells of each change, when it is over.
    async fn publish_changes(mut self, live: &LivePools) {
        let (mut before, mut had, mut failures) = (None, Had::default(), FailureLog::default());
        let mut once_more: Option<(Instant, UpstreamUpdates)> = None;
        let mut retry: Option<Instant> = None;
        loop {
            let again = once_more.as_ref().map(|(at, _)| *at);
            tokio::select! {
                () = self.changed() => self.settle().await,
                () = at(again) => {
                    if let Some((_, news)) = once_more.take() {
                        live.mark_due(&news).await;
                    }
                    continue;
                }
                () = at(retry) => {}
            }
            if let Some(now) = self.snapshot() {
                if let Some(news) = now.news(before.as_ref()) {
                    live.mark_due(&news).await;
                    // Of those that were to be asked once more before, too.
                    let news = match once_more.take() {
                        Some((_, earlier)) => earlier.and(news),
                        None => news,
                    };
                    once_more = Some((Instant::now() + ONCE_MORE, news));
                }
                before = Some(now);
            }
            retry = self.need(&mut had, live, &mut failures).await;
        }
    }

    async fn changed(&mut self) {
        tokio::select! {
            () = self.pools.changed() => {}
            () = self.controllers.changed() => {}
            () = self.os_configs.changed() => {}
            () = self.os_builds.changed() => {}
            () = self.machine_configs.changed() => {}
        }
    }

    /// Waits until nothing changes any more.
    async fn settle(&mut self) {
        let limit = Instant::now() + SETTLE_LIMIT;
        while Instant::now() < limit && timeout_at(limit.min(Instant::now() + SETTLE), self.changed()).await.is_ok() {}
    }

    /// Returns the server's inputs; `None` until all of them were listed once.
    fn snapshot(&self) -> Option<ConfigsSnapshot> {
        Some(ConfigsSnapshot::new(
            &self.pools.all()?,
            &self.controllers.all()?,
            &self.os_configs.all()?,
            &self.os_builds.all()?,
        ))
    }

    /// Says which MachineConfigs nodes need, if that has changed; when to try again, if it could not be had.
    async fn need(&self, had: &mut Had, live: &LivePools, failures: &mut FailureLog) -> Option<Instant> {
        let (pools, metas) = (self.pools.all()?, self.machine_configs.all()?);
        let pools: Vec<Value> = pools.iter().map(|pool| needed::selecting(pool)).collect();
        if had.is(&pools, &metas) {
            return None;
        }
        match had.fetch(&self.cluster, &metas, pools).await {
            Ok(needed) => {
                live.needs(NeededState::Ready(Arc::new(needed)));
                failures.is_over();
                None
            }
            // What was known last is kept; the watches say what is wrong with the API, and this, what is wrong besides.
            Err(error) => {
                if failures.is_new(error.cause()) {
                    tracing::warn!("cluster: {error}; using the cached list of what nodes need before approval");
                }
                Some(Instant::now() + RETRY)
            }
        }
    }
}

/// Completes at that time; never, if it is `None`.
async fn at(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}
