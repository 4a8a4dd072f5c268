//! What the API tells of requests, nodes and machines, and what of the requests was seen before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::Selector;

use super::csr::Csr;
use super::facts::{Machine, NodeFacts};
use super::reason::Reason;
use crate::cluster::resources::machines;
use crate::cluster::{Cluster, ClusterError, Heard, Kept, keep};
use crate::settings::ApprovalSettings;

/// What is watched, as messages and metrics call it.
pub(super) const REQUESTS: &str = "certificate signing requests";
pub(super) const NODES: &str = "nodes for approval";
const MACHINES: &str = "machines for approval";

/// What this gateway has seen of one request.
pub(super) struct Seen {
    pub(super) since: Instant,
    pub(super) judged: Option<Instant>,
    /// What an event says of it.
    pub(super) said: Option<String>,
    read: (Option<String>, Option<Arc<Csr>>),
}

/// All that is watched.
pub(super) struct Watched {
    requests: Kept<CertificateSigningRequest>,
    nodes: Kept<PartialObjectMeta<Node>>,
    machines: Option<Kept<DynamicObject>>,
}

/// A request, and the object that it is.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) csr: Arc<Csr>,
    pub(super) object: Arc<CertificateSigningRequest>,
}

/// What was told by the API.
pub(super) struct Told {
    pub(super) machines: Vec<Machine>,
    pub(super) nodes: BTreeMap<String, NodeFacts>,
}

/// The Machine objects of the one namespace that has them: a right to those of others is not asked for.
fn machine_api(cluster: &Cluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client(), &cluster.settings().machine_namespace, &machines())
}

/// Asks once for each kind of object that is watched.
pub(in crate::cluster) async fn look(cluster: &Cluster, settings: &ApprovalSettings) -> Vec<(&'static str, Result<(), ClusterError>)> {
    let one = ListParams::default().limit(1);
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.client());
    let nodes: Api<Node> = Api::all(cluster.client());
    let mut found = vec![
        (REQUESTS, cluster.ask(REQUESTS, requests.list_metadata(&one)).await.map(drop)),
        (NODES, cluster.ask(NODES, nodes.list_metadata(&one)).await.map(drop)),
    ];
    if settings.machine_objects {
        let machines = machine_api(cluster);
        found.push((MACHINES, cluster.ask(MACHINES, machines.list_metadata(&one)).await.map(drop)));
    }
    found
}

impl Watched {
    /// Begins to watch, and what does so for as long as it is polled.
    pub(super) fn begin(cluster: &Cluster, settings: &ApprovalSettings) -> (Self, impl Future<Output = ()> + use<>) {
        let (health, all) = (cluster.health(), Selector::default());
        let (requests, keep_requests) = keep(&Api::all(cluster.client()), (), &all, REQUESTS, health);
        let (nodes, keep_nodes) = keep(&Api::all(cluster.client()), (), &all, NODES, health);
        let with_machines = settings.machine_objects.then(|| {
            let (machines, keeping) = keep(&machine_api(cluster), machines(), &all, MACHINES, health);
            (machines, keeping.without_managed_fields())
        });
        let (machines, keep_machines) = with_machines.unzip();
        let keep_machines = async {
            match keep_machines {
                Some(keeping) => keeping.run().await,
                None => std::future::pending().await,
            }
        };
        let keeping = async {
            tokio::join!(keep_requests.run(), keep_nodes.without_managed_fields().run(), keep_machines);
        };
        (Self { requests, nodes, machines }, keeping)
    }

    /// The requests, those read that were not read yet; what is gone is forgotten. Nothing until they were listed once.
    pub(super) fn requests(&self, seen: &mut HashMap<String, Seen>) -> Option<Vec<Asked>> {
        let objects = self.requests.all()?;
        let uids: BTreeSet<&str> = objects.iter().filter_map(|object| object.metadata.uid.as_deref()).collect();
        seen.retain(|uid, _| uids.contains(uid.as_str()));
        let asked = objects.iter().filter_map(|object| {
            let seen = seen.entry(object.metadata.uid.clone()?).or_insert_with(|| Seen {
                since: Instant::now(),
                judged: None,
                said: None,
                read: (None, None),
            });
            let version = &object.metadata.resource_version;
            if seen.read.0.is_none() || seen.read.0 != *version {
                seen.read = (version.clone(), Csr::of(object).map(Arc::new));
            }
            let csr = seen.read.1.clone()?;
            let object = Arc::clone(object);
            Some(Asked { csr, object })
        });
        Some(asked.collect())
    }

    /// What is known of machines and nodes, if it is what there is.
    ///
    /// # Errors
    /// What of it is not told.
    pub(super) fn told(&self, cluster: &Cluster) -> Result<Told, Reason> {
        let watches = cluster.health().watches();
        let is_well = |what| watches.get(what) == Some(&Heard::Well);
        let well = |what| if is_well(what) { Ok(()) } else { Err(Reason::Untold { what }) };
        well(REQUESTS)?;
        well(NODES)?;
        let nodes = self.nodes.all().ok_or(Reason::Untold { what: NODES })?;
        let machines = match &self.machines {
            None => Vec::new(),
            Some(machines) => {
                well(MACHINES)?;
                machines.all().ok_or(Reason::Untold { what: MACHINES })?
            }
        };
        let named = nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.clone()?, NodeFacts::of_labels(&node.metadata))));
        Ok(Told {
            machines: machines.iter().filter_map(|machine| Machine::of(machine)).collect(),
            nodes: named.collect(),
        })
    }
}
