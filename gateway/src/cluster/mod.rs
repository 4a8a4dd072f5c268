//! The cluster's API: the state that the gateway reads there, and its own writes.
//!
//! Watch caches keep the state ([`Kept`]): a decision needs no request, and knows how old the state may be. If the API is away, the cached
//! state stays. The log, a metric and `check` report how long it has been away.

pub mod attested_nodes;
mod bootstrap_kubeconfig;
mod bootstrap_tokens;
mod client_ca;
mod configs;
mod copies;
mod machines;
mod mcs_certificate;

use std::sync::Arc;

use attest_cluster_api::{ClusterClient, ClusterError, WatchObserver};
use attest_log::Durable;
use attest_log::admin::By;
use attest_store::Store;
use attest_system::clock::Clock;
use attest_system::files;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use attested_nodes::LogPlaces;
pub use bootstrap_kubeconfig::keep_bootstrap_kubeconfig;
pub use bootstrap_tokens::follow_bootstrap_tokens;
pub use client_ca::keep_client_ca;
pub use machines::{failing_since, keep_machines};
pub use mcs_certificate::keep_mcs_certificate;

use crate::metrics::Metrics;
use crate::pki::ServingCertificate;
use crate::pools::live::LivePools;
use crate::settings::{AttestedNodes, ClusterSettings, Settings};
use attest_pool::needed_before_approval::NeededState;

/// Parts of the gateway that work with the cluster's API.
pub(crate) struct ClusterTasks<'a> {
    pub clock: Clock,
    pub metrics: &'a Arc<Metrics>,
    pub pools: &'a Arc<LivePools>,
    pub store: &'a Arc<dyn Store>,
    /// Actor of what the gateway does there, in the log.
    pub by: By,
    /// The attestation log, and how far it is on disk.
    pub log: LogPlaces,
    pub durable: watch::Receiver<Durable>,
}

impl WatchObserver for Metrics {
    fn watch_broken(&self, what: &'static str, broken: bool) {
        self.cluster_watch_broken(what, broken);
    }
}

/// Begins what the settings want of the cluster's API; it ends with the tasks.
pub(crate) fn spawn(tasks: &mut JoinSet<()>, cluster: &Arc<ClusterClient>, settings: &ClusterSettings, parts: &ClusterTasks<'_>) {
    if settings.configs {
        configs::spawn(tasks, cluster, parts.pools);
    }
    if settings.attested_nodes != AttestedNodes::Off {
        attested_nodes::spawn(tasks, cluster, settings.attested_nodes, parts);
    }
}

/// Asks once which MachineConfigs nodes need before they are approved, if the settings want that to be known.
pub async fn needed(cluster: &ClusterClient, settings: &ClusterSettings) -> NeededState {
    if settings.configs {
        configs::ask(cluster).await
    } else {
        NeededState::Pending
    }
}

/// Asks once for each kind of object that the settings want to be watched, and returns the answers.
pub async fn check_access(cluster: &ClusterClient, settings: &ClusterSettings) -> Vec<(&'static str, Result<(), ClusterError>)> {
    let mut found = Vec::new();
    let namespace = &settings.machine_namespace;
    if settings.configs {
        found.extend(configs::check_access(cluster).await);
    }
    if settings.machines {
        found.extend(machines::check_access(cluster, namespace).await);
    }
    if settings.client_ca {
        found.push(client_ca::check_access(cluster).await);
    }
    if settings.attested_nodes != AttestedNodes::Off {
        found.push(attested_nodes::check_access(cluster).await);
    }
    if !settings.bootstrap_tokens.is_empty() {
        found.push(bootstrap_tokens::check_access(cluster).await);
    }
    if settings.mcs_certificate {
        found.extend(mcs_certificate::check_access(cluster).await);
    }
    if settings.bootstrap_kubeconfig {
        found.extend(bootstrap_kubeconfig::check_access(cluster).await);
    }
    found
}

/// Makes copies that are missing or unusable, by asking once for each; returns the problems, in words.
pub async fn first_copies(cluster: &ClusterClient, settings: &Settings, clock: Clock) -> Vec<String> {
    let mut wrong = Vec::new();
    let tls = &settings.tls;
    if tls.serving_of_cluster && ServingCertificate::load(tls, clock.now()).is_err() {
        wrong.extend(mcs_certificate::first(cluster, &tls.certificate, clock).await.err());
    }
    let kubeconfig = settings.bootstrap_kubeconfig();
    let wants_kubeconfig = settings.cluster.as_ref().is_some_and(|settings| settings.bootstrap_kubeconfig);
    if wants_kubeconfig && !kubeconfig.exists() {
        // Pools that name the file watch its folder, which has to be there before they are read. What keeps it from being made keeps the file from it, too.
        drop(files::make_private_folder(files::folder(&kubeconfig)));
        wrong.extend(bootstrap_kubeconfig::first(cluster, &kubeconfig).await.err());
    }
    wrong
}
