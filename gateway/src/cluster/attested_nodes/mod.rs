//! `kubectl get attestednodes`: an object of the API for each machine, and what is edited there: `docs/attested-nodes.md`.
//!
//! ```text
//! the gateway's own attestation log → facts (what a machine has shown, and was served)  ┐
//! the store → machines (which there are, what they are called, who is banned)           ├→ Status → the API
//! the objects → edits (what somebody wants of a machine) → the store, as a command does ┘
//! ```
//!
//! No request waits for any of it. Each gateway tells what it has decided itself, and one of those with a store the rest. What a gateway has decided while
//! the API was away, it tells when that is back: it stands in the log.

mod edits;
mod facts;
mod followed;
mod kind;
mod lead;
mod log_reader;
mod machines;
mod object;
mod position;
mod status;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use attest_cluster_api::{Cluster, ClusterError, Heard, Kept, keep};
use kube::api::{Api, ListParams};
use kube::core::Selector;
use tokio::task::JoinSet;

pub use object::{AttestedNode, object_name};

use self::followed::Followed;
pub(crate) use self::followed::LogPlaces;
use self::lead::Leading;
use super::Parts;
use crate::settings::AttestedNodes;

/// What is watched, as messages and metrics call it.
const WHAT: &str = "attested nodes";
/// Machines that have objects, at most: three times as many as a cluster can have nodes. Objects of others do not count, and who has proven nothing has none.
const MACHINES_LIMIT: usize = 20_000;

/// Objects that the API refuses to write before it is left alone for a while.
const FAILED_AT_ONCE: usize = 20;

/// Asks once for them.
pub(super) async fn look(cluster: &Cluster) -> (&'static str, Result<(), ClusterError>) {
    let nodes: Api<AttestedNode> = Api::all(cluster.client());
    let found = cluster.ask(WHAT, nodes.list_metadata(&ListParams::default().limit(1))).await;
    (WHAT, found.map(drop))
}

/// Keeps them; it ends with the tasks.
pub(super) fn spawn(tasks: &mut JoinSet<()>, cluster: &Arc<Cluster>, wanted: AttestedNodes, parts: &Parts<'_>) {
    let nodes: Api<AttestedNode> = Api::all(cluster.client());
    let (kept, keeping) = keep(&nodes, (), &Selector::default(), WHAT, cluster.health());
    tasks.spawn(keeping.trimmed(AttestedNode::trim).run());
    let followed = Followed {
        cluster: Arc::clone(cluster),
        kept: kept.clone(),
        log: parts.log.clone(),
        durable: parts.durable.clone(),
        clock: parts.clock,
        metrics: Arc::clone(parts.metrics),
    };
    tasks.spawn(followed.run());
    let leading = Leading {
        cluster: Arc::clone(cluster),
        kept,
        store: Arc::clone(parts.store),
        pools: Arc::clone(parts.pools),
        clock: parts.clock,
        by: parts.by.clone(),
        takes_edits: wanted == AttestedNodes::Edit,
    };
    tasks.spawn(leading.run());
}

/// Whether it is told what there is. Where it is not, the API is away, or has no such kind, and nothing is written until it is back.
fn is_told(cluster: &Cluster) -> bool {
    cluster.health().watches().get(WHAT) == Some(&Heard::Well)
}

/// How many of the objects are of machines: those that a stranger may have made are not.
fn of_machines(kept: &Kept<AttestedNode>) -> usize {
    let all = kept.all().unwrap_or_default();
    all.iter().filter(|node| node.status().identity.is_some()).count()
}
