//! `kubectl get attestednodes`: an object of the API for each machine, and what is edited there: `docs/reference/attested-nodes.md`.
//!
//! ```text
//! the gateway's own attestation log → facts (attestations, refusals and served configs)  ┐
//! the store → machines (identities, names, allowlist and revocations)                    ├→ Status → the API
//! the objects → edits (wanted changes of a machine) → the store, like a command          ┘
//! ```
//!
//! No request waits for any of it. Each gateway writes its own decisions, and the leader of those with one store the rest. Decisions that
//! were made while the API was away are written when it is back: the log has them.

mod edits;
mod kind;
mod leader;
mod log_reader;
mod object;
mod object_cache;
mod position;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, WatchStatus, keep};
use kind::GROUP;
pub use kind::VERSION;
use kube::api::{Api, ListParams};
use kube::core::Selector;
use tokio::task::JoinSet;

pub use object::AttestedNode;

use self::leader::LeaderPass;
use self::object_cache::AttestedNodeCache;
pub(crate) use self::object_cache::LogPlaces;
pub(crate) use self::position::VERSION as POSITION_VERSION;
use super::ClusterTasks;
use crate::settings::AttestedNodes;

/// Name of the watch in messages and metrics.
const WHAT: &str = "attested nodes";
/// Maximum number of machines that have objects: three times as many as a cluster can have nodes. Other objects do not count, and an
/// unauthenticated client has none.
const MACHINES_LIMIT: usize = 20_000;

/// Objects that the API refuses to write before it is left alone for a while.
const FAILED_AT_ONCE: usize = 20;

/// Asks once for them.
pub(super) async fn check_access(cluster: &ClusterClient) -> (&'static str, Result<(), ClusterError>) {
    let nodes: Api<AttestedNode> = Api::all(cluster.client());
    let found = cluster.ask(WHAT, nodes.list_metadata(&ListParams::default().limit(1))).await;
    match found {
        Err(error) if error.is_not_found() => (WHAT, Err(other_version(cluster).await.unwrap_or(error))),
        found => (WHAT, found.map(drop)),
    }
}

/// Returns the error for a kind that the API serves in other versions only; `None` if it does not have the kind.
async fn other_version(cluster: &ClusterClient) -> Option<ClusterError> {
    let groups = cluster.ask(WHAT, cluster.client().list_api_groups()).await.ok()?.groups;
    let group = groups.into_iter().find(|group| group.name == GROUP)?;
    let served: Vec<String> = group.versions.into_iter().map(|served| served.version).collect();
    (!served.iter().any(|served| served == VERSION)).then(|| ClusterError::Version {
        what: WHAT,
        served: served.join(", "),
        known: VERSION,
    })
}

/// Keeps them; it ends with the tasks.
pub(super) fn spawn(tasks: &mut JoinSet<()>, cluster: &Arc<ClusterClient>, wanted: AttestedNodes, parts: &ClusterTasks<'_>) {
    let nodes: Api<AttestedNode> = Api::all(cluster.client());
    let (kept, keeping) = keep(&nodes, (), &Selector::default(), WHAT, cluster.health());
    tasks.spawn(keeping.trimmed(AttestedNode::trim).run());
    let followed = AttestedNodeCache {
        cluster: Arc::clone(cluster),
        nodes: kept.clone(),
        log: parts.log.clone(),
        durable: parts.durable.clone(),
        clock: parts.clock,
        metrics: Arc::clone(parts.metrics),
    };
    tasks.spawn(followed.run());
    let leading = LeaderPass {
        cluster: Arc::clone(cluster),
        nodes: kept,
        store: Arc::clone(parts.store),
        pools: Arc::clone(parts.pools),
        clock: parts.clock,
        by: parts.by.clone(),
        takes_edits: wanted == AttestedNodes::Edit,
    };
    tasks.spawn(leading.run());
}

/// Returns whether the watch is current. If not, the API is away or does not have such a kind, and nothing is written until it is back.
fn is_current(cluster: &ClusterClient) -> bool {
    cluster.health().watches().get(WHAT) == Some(&WatchStatus::Well)
}

/// Returns the number of objects that are machines': those that other clients may have made do not count.
fn machine_count(kept: &WatchCache<AttestedNode>) -> usize {
    let all = kept.all().unwrap_or_default();
    all.iter().filter(|node| node.status().identity.is_some()).count()
}
