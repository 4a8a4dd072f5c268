//! What a gateway is made of. No endpoint has all of it: each takes its part when the router is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "cluster")]
use attest_cluster_api::Cluster;
use attest_log::Journal;
use attest_machines::objects::MachineObjects;
use attest_store::Store;
use attest_system::clock::Clock;

use super::endorsers::Endorsers;
use crate::admission::Admission;
use crate::credentials::seal::Seal;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::pools::live::LivePools;
use crate::recording::Recorder;
use crate::settings::Settings;
use crate::sightings::Sightings;

/// Everything that requests need, for whoever starts it and keeps it running.
#[derive(Debug)]
pub struct Gateway {
    /// What the administrator said.
    pub settings: Settings,
    /// The time.
    pub clock: Clock,
    /// Sealed challenges and tickets.
    pub seal: Arc<Seal>,
    /// What must be known again.
    pub store: Arc<dyn Store>,
    /// The attestation log.
    pub journal: Arc<Journal>,
    /// The recorder of decisions, with its budgets.
    pub recorder: Arc<Recorder>,
    /// Who vouches for EKs, and what the clouds sign with.
    pub endorsers: Arc<Endorsers>,
    /// The pools, as they are at the moment.
    pub pools: Arc<LivePools>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is shown to nodes at the moment.
    pub tls: Arc<LiveTls>,
    /// What sources share: who waits, and who is told to come again.
    pub admission: Arc<Admission>,
    /// Which pointers are in use.
    pub sightings: Arc<Sightings>,
    /// The machines that the cluster has made, as far as it is asked.
    pub machines: Arc<MachineObjects>,
    /// The cluster that this is a part of, if it asks one.
    #[cfg(feature = "cluster")]
    pub cluster: Option<Arc<Cluster>>,
    /// Whether the gateway is on its way out: new work should go elsewhere.
    pub draining: Arc<AtomicBool>,
}

impl Gateway {
    /// From now on new work should go elsewhere.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
