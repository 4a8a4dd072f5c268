//! Prometheus metrics of the controller.

use attest::release;
use attest_cluster_api::WatchObserver;
use attest_plain_http::{Metric, ProcessMetrics, Series};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

attest_plain_http::metrics! {
    /// All metrics of the program, but those of the process.
    pub(crate) struct ControllerTable {
        build: Series<Gauge, 2> = "attest_controller_build_info", ["version", "revision"], "1, with the release and its commit";
        leader: Gauge = "attest_controller_leader", [], "1 while this controller is the leader";
        second_stage_missing: Gauge = "attest_controller_second_stage_missing", [], "1 while the cluster may lack MachineConfigs that pre-approved configs name";
        watch_broken: Series<Gauge, 1> = "attest_controller_cluster_watch_broken", ["what"], "1 while a watch of the cluster's API fails and its cached state is used";
    }
}

/// Table of the metrics.
pub const METRICS: &[Metric] = ControllerTable::TABLE;

/// All metrics of the program.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    registry: Registry,
    process: ProcessMetrics,
    all: ControllerTable,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let all = ControllerTable::register(&mut registry);
        let process = ProcessMetrics::register(&mut registry);
        all.build.with([release::release().into(), release::commit().into()]).set(1);
        Self { registry, process, all }
    }
}

impl ControllerMetrics {
    /// Sets whether this controller is the leader.
    pub(crate) fn leads(&self, leads: bool) {
        self.all.leader.set(i64::from(leads));
    }

    /// Sets whether the cluster may lack a MachineConfig of the second stage.
    pub(crate) fn second_stage_missing(&self, missing: bool) {
        self.all.second_stage_missing.set(i64::from(missing));
    }

    /// Measures the process, and returns all metrics, for their exposition.
    pub(crate) fn registry(&self) -> &Registry {
        self.process.read();
        &self.registry
    }
}

impl WatchObserver for ControllerMetrics {
    fn watch_broken(&self, what: &'static str, broken: bool) {
        self.all.watch_broken.with([what.into()]).set(i64::from(broken));
    }
}
