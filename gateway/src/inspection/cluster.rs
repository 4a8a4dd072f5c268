//! Inspection of the cluster's API.

use std::sync::Arc;

use attest_cluster_api::ClusterClient;
use attest_system::clock::Clock;

use super::{Depth, InspectionFinding};
use crate::cluster;
use crate::metrics::Metrics;
use crate::settings::Settings;
use attest_pool::needed_before_approval::NeededState;

/// The cluster's API, as it was found by the inspection.
pub(super) struct ClusterInspection {
    pub cluster: ClusterClient,
    /// True if it answers. One that does not is asked nothing else: each answer would be the same.
    pub answers: bool,
}

/// Opens the API, and asks for what a gateway cannot begin without and has no copy of.
pub(super) async fn open(
    settings: &Settings,
    clock: Clock,
    metrics: &Arc<Metrics>,
    depth: Depth,
    findings: &mut Vec<InspectionFinding>,
) -> Option<ClusterInspection> {
    let wanted = settings.cluster.as_ref()?;
    let cluster = match ClusterClient::open(&wanted.access, clock, Arc::<Metrics>::clone(metrics)).await {
        Ok(cluster) => cluster,
        Err(error) => {
            findings.push(InspectionFinding::Error(format!("cluster: {error}")));
            return None;
        }
    };
    if let Err(error) = cluster.version().await
        && error.cause().concerns_all()
    {
        // It may be back at any time, and what was known is kept meanwhile.
        findings.push(InspectionFinding::Degraded(format!(
            "cluster: the API does not serve this gateway: {}; a running gateway uses cached state",
            error.reason()
        )));
        return Some(ClusterInspection { cluster, answers: false });
    }
    let api = ClusterInspection { cluster, answers: true };
    let cluster = &api.cluster;
    // Who only looks may be another user than who will serve, and makes no state for him.
    if depth == Depth::Thorough && !settings.state.exists() {
        if wanted.mcs_certificate || wanted.bootstrap_kubeconfig {
            findings.push(InspectionFinding::Degraded(format!(
                "cluster: {} does not exist yet; the gateway reads the cluster when it starts",
                settings.state.display()
            )));
        }
        return Some(api);
    }
    let wrong = cluster::first_copies(cluster, settings, clock).await;
    findings.extend(
        wrong
            .into_iter()
            .map(|problem| InspectionFinding::Degraded(format!("cluster: {problem}"))),
    );
    Some(api)
}

/// Asks for what is read once: the MachineConfigs that nodes need before they are approved.
pub(super) async fn inspect(settings: &Settings, api: Option<&ClusterInspection>, findings: &mut Vec<InspectionFinding>) -> NeededState {
    let (Some(settings), Some(ClusterInspection { cluster, answers: true })) = (&settings.cluster, api) else {
        return NeededState::Pending;
    };
    let mut told = Vec::new();
    for (what, found) in cluster::check_access(cluster, settings).await {
        match found {
            Ok(()) => told.push(what),
            Err(error) => findings.push(InspectionFinding::Degraded(format!(
                "cluster: {error}; a running gateway uses cached state"
            ))),
        }
    }
    if told.is_empty() {
        // Nobody waits once more for an API that is away.
        return NeededState::Pending;
    }
    findings.push(InspectionFinding::Good(format!("cluster: the API serves {}", told.join(", "))));
    cluster::needed(cluster, settings).await
}

/// Returns the MachineConfigs that nodes need before they are approved, as the cluster states them, for commands that inspect a pool.
pub async fn needed(settings: &Settings, clock: Clock) -> NeededState {
    let Some(settings) = &settings.cluster else {
        return NeededState::Pending;
    };
    match ClusterClient::open(&settings.access, clock, Arc::new(())).await {
        Ok(cluster) => cluster::needed(&cluster, settings).await,
        Err(error) => NeededState::Failed(error.to_string()),
    }
}
