//! Health, for load balancers and probes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use super::Gateway;
use crate::store::Kind;

/// `GET /healthz`: the process answers.
pub(super) async fn alive() -> StatusCode {
    StatusCode::OK
}

/// `GET /readyz`: nodes can be sent here. 503 while draining, and when the store does not answer.
pub(super) async fn ready(State(gateway): State<Arc<Gateway>>) -> (StatusCode, &'static str) {
    if gateway.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    match gateway.store.get(Kind::Clock, "readyz").await {
        Ok(_) => (StatusCode::OK, "ready\n"),
        Err(error) => {
            tracing::error!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n")
        }
    }
}
