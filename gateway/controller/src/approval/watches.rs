//! Watches of nodes and machines, and of the CSRs.

use std::collections::BTreeMap;
use std::sync::Arc;

use attest_cluster_api::resources::machines;
use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, WatchStatus, keep};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::Selector;

use super::csr::{CLIENT_SIGNER, CsrPurpose, SERVING_SIGNER};
use super::egress::{self, EGRESS_IPS};
use super::facts::{MachineApiMachine, NodeFacts};
use super::reason::Reason;
use super::request_cache::RequestCache;
use super::request_watch::{self, CLIENT_REQUESTS, SERVING_REQUESTS};
use crate::settings::ApprovalSettings;

/// Names of the watches, in messages and metrics.
pub(super) const NODES: &str = "nodes for approval";
const MACHINES: &str = "machines for approval";

/// All that is watched.
pub(super) struct ApprovalWatches {
    pub(super) requests: Arc<RequestCache>,
    nodes: WatchCache<PartialObjectMeta<Node>>,
    machines: Option<WatchCache<DynamicObject>>,
}

/// Objects that the API has reported.
pub(super) struct ApprovalUpdate {
    pub(super) machines: Vec<MachineApiMachine>,
    pub(super) nodes: BTreeMap<String, NodeFacts>,
}

/// Returns the API of Machine objects in the one namespace that has them: rights to those of others are not needed.
fn machine_api(cluster: &ClusterClient, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client(), namespace, &machines())
}

/// Asks once for each kind of object that is watched.
pub async fn check_access(
    cluster: &ClusterClient,
    settings: &ApprovalSettings,
    machine_namespace: &str,
) -> Vec<(&'static str, Result<(), ClusterError>)> {
    let one = ListParams::default().limit(1);
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.client());
    let nodes: Api<Node> = Api::all(cluster.client());
    let mut found = Vec::new();
    let signers = [(CLIENT_REQUESTS, CLIENT_SIGNER), (SERVING_REQUESTS, SERVING_SIGNER)];
    for (what, signer) in signers.into_iter().take(if settings.serving { 2 } else { 1 }) {
        let of_signer = one.clone().fields(&format!("spec.signerName={signer}"));
        let mut asked = cluster.ask(what, requests.list_metadata(&of_signer)).await.map(drop);
        if asked.is_ok() {
            // Before one is approved it is read whole. This one is not there.
            asked = cluster
                .ask(what, requests.get_metadata_opt("attest-controller-check"))
                .await
                .map(drop);
        }
        found.push((what, asked));
    }
    found.push((NODES, cluster.ask(NODES, nodes.list_metadata(&one)).await.map(drop)));
    if settings.machine_objects {
        let machines = machine_api(cluster, machine_namespace);
        found.push((MACHINES, cluster.ask(MACHINES, machines.list_metadata(&one)).await.map(drop)));
    }
    if settings.serving {
        found.push((EGRESS_IPS, egress::list(cluster).await.map(drop)));
    }
    found
}

impl ApprovalWatches {
    /// Begins the watches; returns them with the future that runs them.
    pub(super) fn begin(
        cluster: &ClusterClient,
        settings: &ApprovalSettings,
        machine_namespace: &str,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (health, all) = (cluster.health(), Selector::default());
        let requests = Arc::new(RequestCache::new(&settings.requester));
        let client = request_watch::watch(cluster, CsrPurpose::Client, &requests);
        let serving = settings
            .serving
            .then(|| request_watch::watch(cluster, CsrPurpose::Serving, &requests));
        let (nodes, keep_nodes) = keep(&Api::all(cluster.client()), (), &all, NODES, health);
        let with_machines = settings.machine_objects.then(|| {
            let (machines, keeping) = keep(&machine_api(cluster, machine_namespace), machines(), &all, MACHINES, health);
            (machines, keeping.without_managed_fields())
        });
        let (machines, keep_machines) = with_machines.unzip();
        let serving = async {
            if let Some(serving) = serving {
                serving.run().await;
            }
        };
        let keep_machines = async {
            if let Some(keeping) = keep_machines {
                keeping.run().await;
            }
        };
        let keeping = async {
            tokio::join!(client.run(), serving, keep_nodes.without_managed_fields().run(), keep_machines);
        };
        (Self { requests, nodes, machines }, keeping)
    }

    /// Returns the machines and nodes, if the watches are current.
    ///
    /// # Errors
    /// [`Reason::WatchFailed`], for a watch that is not current.
    pub(super) fn current_update(&self, cluster: &ClusterClient) -> Result<ApprovalUpdate, Reason> {
        let watches = cluster.health().watches();
        let is_well = |what| watches.get(what) == Some(&WatchStatus::Well);
        let well = |what| if is_well(what) { Ok(()) } else { Err(Reason::WatchFailed { what }) };
        well(CLIENT_REQUESTS)?;
        well(NODES)?;
        let nodes = self.nodes.all().ok_or(Reason::WatchFailed { what: NODES })?;
        let machines = match &self.machines {
            None => Vec::new(),
            Some(machines) => {
                well(MACHINES)?;
                machines.all().ok_or(Reason::WatchFailed { what: MACHINES })?
            }
        };
        let named = nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.clone()?, NodeFacts::from_metadata(&node.metadata))));
        Ok(ApprovalUpdate {
            machines: machines
                .iter()
                .filter_map(|machine| MachineApiMachine::from_object(machine))
                .collect(),
            nodes: named.collect(),
        })
    }
}
