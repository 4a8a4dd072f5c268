//! Prometheus metrics of the controller.

use attest_cluster_api::WatchObserver;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A watch of the cluster's API.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    what: &'static str,
}

/// All metrics of the program.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    registry: Registry,
    leader: Gauge,
    second_stage_missing: Gauge,
    watch_broken: Family<WatchLabels, Gauge>,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("attest_controller");
        let (leader, second_stage_missing, watch_broken) = (Gauge::default(), Gauge::default(), Family::default());
        registry.register("leader", "1 while this controller is the leader", leader.clone());
        registry.register(
            "second_stage_missing",
            "1 while the cluster may lack MachineConfigs that pre-approved configs name",
            second_stage_missing.clone(),
        );
        registry.register(
            "cluster_watch_broken",
            "1 while a watch of the cluster's API fails and its cached state is used",
            watch_broken.clone(),
        );
        Self {
            registry,
            leader,
            second_stage_missing,
            watch_broken,
        }
    }
}

impl ControllerMetrics {
    /// Sets whether this controller is the leader.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets whether the cluster may lack a MachineConfig of the second stage.
    pub(crate) fn second_stage_missing(&self, missing: bool) {
        self.second_stage_missing.set(i64::from(missing));
    }

    /// Returns all metrics, for their exposition.
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }
}

impl WatchObserver for ControllerMetrics {
    fn watch_broken(&self, what: &'static str, broken: bool) {
        self.watch_broken.get_or_create(&WatchLabels { what }).set(i64::from(broken));
    }
}
