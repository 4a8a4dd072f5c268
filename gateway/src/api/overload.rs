//! Overload: how much is done at once, and how long for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::problem::{self, Refusal};

/// The limits.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub work: Arc<Semaphore>,
    pub time: Duration,
}

/// Does a request if there is room for it and it comes to an end in time. On `/config` the answer is an empty 503 otherwise:
/// Ignition retries that for ever, on the same connection.
pub(super) async fn guard(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let config = problem::is_config(request.uri().path());
    let unavailable = || {
        if config {
            problem::empty_503()
        } else {
            Refusal::unavailable().into_response()
        }
    };
    let Ok(_permit) = limits.work.try_acquire() else {
        return unavailable();
    };
    match tokio::time::timeout(limits.time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => unavailable(),
    }
}
