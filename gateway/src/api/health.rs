//! Health, for load balancers and probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use attest_log::Journal;
use attest_store::{EntryKind, Store};
use axum::extract::State;
use axum::http::StatusCode;

use super::gateway::Gateway;
use crate::pools::live::LivePools;

/// State that readiness depends on.
#[derive(Debug)]
pub(super) struct Readiness {
    draining: Arc<AtomicBool>,
    store: Arc<dyn Store>,
    journal: Arc<Journal>,
    pools: Arc<LivePools>,
}

impl Readiness {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            draining: Arc::clone(&gateway.draining),
            store: Arc::clone(&gateway.store),
            journal: Arc::clone(&gateway.journal),
            pools: Arc::clone(&gateway.pools),
        }
    }
}

/// `GET /healthz`: the process answers.
pub(super) async fn alive() -> StatusCode {
    StatusCode::OK
}

/// `GET /readyz`: nodes can be sent here. 503 while draining, when the store does not answer, when the attestation log cannot be written,
/// and when no pool is served. There is a line, without the reason, for each pool that is not served, or in its last good state only. There
/// is one for an attestation log that was moved, too.
pub(super) async fn ready(State(readiness): State<Arc<Readiness>>) -> (StatusCode, String) {
    let unready = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    if readiness.draining.load(Ordering::Relaxed) {
        return unready("draining");
    }
    if let Err(error) = readiness.store.get(EntryKind::Clock, "readyz").await {
        tracing::error!(%error, "not ready: the store does not answer");
        return unready("the store does not answer");
    }
    if !readiness.journal.is_writable().await {
        return unready("the attestation log cannot be written");
    }
    let (served, mut troubles) = readiness.pools.health();
    if readiness.journal.is_moved() {
        troubles.push("the attestation log was moved, and no new one is begun".to_owned());
    }
    let troubles = troubles.join("\n");
    match (served, troubles.is_empty()) {
        (true, true) => (StatusCode::OK, "ready\n".to_owned()),
        (true, false) => (StatusCode::OK, format!("ready\n{troubles}\n")),
        (false, _) => unready(&troubles),
    }
}

/// `GET /readyz` of a gateway whose store has not answered yet.
pub(super) async fn waiting() -> (StatusCode, &'static str) {
    (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n")
}
