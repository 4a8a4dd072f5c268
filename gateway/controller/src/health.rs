//! Health and metrics, over plain HTTP. Nothing else is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use attest_plain_http::exposition;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::ControllerMetrics;

/// Data from which the endpoints answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerHealth {
    pub metrics: Arc<ControllerMetrics>,
    /// Set if the store is open, so that this controller can lead.
    pub ready: Arc<AtomicBool>,
}

/// Answers for as long as it is polled.
pub(crate) async fn serve(listener: TcpListener, health: ControllerHealth) {
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health);
    if let Err(error) = attest_plain_http::serve(listener, router).await {
        tracing::error!(%error, "stopped serving health and metrics");
    }
}

async fn ready(State(health): State<ControllerHealth>) -> Response {
    match health.ready.load(Ordering::Relaxed) {
        true => "ok".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the store is not open").into_response(),
    }
}

async fn metrics(State(health): State<ControllerHealth>, request: HeaderMap) -> Response {
    exposition(health.metrics.registry(), &request)
}
