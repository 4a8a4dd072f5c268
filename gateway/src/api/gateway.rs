//! Parts of a gateway. No endpoint has all of them: each takes its own when the router is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "cluster")]
use attest_cluster_api::ClusterClient;
use attest_log::Journal;
use attest_machines::objects::MachineObjects;
use attest_store::Store;
use attest_system::clock::Clock;

use super::endorsers::Endorsers;
use crate::admission::Admission;
use crate::credentials::seal::SealKeyRing;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::pools::live::LivePools;
use crate::recording::Recorder;
use crate::settings::Settings;
use crate::sightings::Sightings;

/// All state that requests need, for the code that starts the gateway and keeps it running.
#[derive(Debug)]
pub struct Gateway {
    /// Settings from the administrator's configuration.
    pub settings: Settings,
    pub clock: Clock,
    /// Sealed challenges and tickets.
    pub seal: Arc<SealKeyRing>,
    /// State that must survive a restart.
    pub store: Arc<dyn Store>,
    /// Attestation log, open for appending.
    pub journal: Arc<Journal>,
    /// The recorder of decisions, with its budgets.
    pub recorder: Arc<Recorder>,
    /// Endorsers of EKs, and trust anchors of the clouds.
    pub endorsers: Arc<Endorsers>,
    /// The pools that are currently served.
    pub pools: Arc<LivePools>,
    pub metrics: Arc<Metrics>,
    /// TLS configuration that nodes currently get.
    pub tls: Arc<LiveTls>,
    /// Limits on shared resources: fair queues, rate limits and load shedding.
    pub admission: Arc<Admission>,
    /// Records of which pointer configs are in use.
    pub sightings: Arc<Sightings>,
    /// The machines that the cluster has made, as far as it is asked.
    pub machines: Arc<MachineObjects>,
    /// The cluster that this is a part of, if it asks one.
    #[cfg(feature = "cluster")]
    pub cluster: Option<Arc<ClusterClient>>,
    /// Set if the gateway is shutting down: new work should go elsewhere.
    pub draining: Arc<AtomicBool>,
}

impl Gateway {
    /// Marks the gateway as shutting down: new work should go elsewhere.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
