//! The egress addresses of OVN-Kubernetes, asked for when a serving certificate's CSR has an address that is not the machine's.

use std::time::{Duration, Instant};

use attest_cluster_api::{ClusterClient, ClusterError};
use attest_system::causes::with_causes;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Deserialize;

use super::facts::{EgressAddresses, EgressItem};

/// The name of these objects in messages.
pub(super) const EGRESS_IPS: &str = "egress IPs";
/// Lifetime of an answer: CSRs with such an address are judged again every ten seconds.
const FRESH: Duration = Duration::from_secs(10);
/// Objects in one page of a list: clusters have dozens.
const PAGE_LIMIT: u32 = 50;

/// The egress addresses that nodes had at the last answer.
#[derive(Debug, Default)]
pub(super) struct Egress {
    asked: Option<Instant>,
    found: EgressAddresses,
    /// The reason for a missing answer, as it was logged last.
    problem: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EgressStatus {
    items: Vec<EgressItem>,
}

impl Egress {
    /// Returns the addresses, at most [`FRESH`] old. Empty in a cluster with another network, and while the API does not list them, which
    /// is logged once.
    pub(super) async fn addresses(&mut self, cluster: &ClusterClient) -> &EgressAddresses {
        if self.asked.is_none_or(|asked| asked.elapsed() >= FRESH) {
            let (found, problem) = match list(cluster).await {
                Ok(found) => (found, None),
                Err(error) => (EgressAddresses::default(), Some(with_causes(&error))),
            };
            if let Some(problem) = problem.as_ref().filter(|problem| self.problem.as_ref() != Some(*problem)) {
                tracing::warn!("cannot list EgressIPs; not approving serving certificates with egress IPs: {problem}");
            }
            (self.found, self.problem) = (found, problem);
            self.asked = Some(Instant::now());
        }
        &self.found
    }
}

/// Lists the egress addresses; none in a cluster that does not know this kind of object.
pub(super) async fn list(cluster: &ClusterClient) -> Result<EgressAddresses, ClusterError> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("k8s.ovn.org", "v1", "EgressIP"), "egressips");
    let api: Api<DynamicObject> = Api::all_with(cluster.client(), &resource);
    let mut found = EgressAddresses::default();
    match cluster.list(EGRESS_IPS, &api, &ListParams::default().limit(PAGE_LIMIT)).await {
        Ok(objects) => {
            for object in &objects {
                let status = object.data.get("status").map(EgressStatus::deserialize);
                found.add(&status.and_then(Result::ok).unwrap_or_default().items);
            }
            Ok(found)
        }
        Err(error) if error.is_not_found() => Ok(found),
        Err(error) => Err(error),
    }
}
