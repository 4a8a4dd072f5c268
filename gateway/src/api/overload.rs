//! Overload: how much is done at once, and how long for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{self, Refusal};
use super::{Gateway, Peer};
use crate::admission::{NoBody, Place, Source};

/// How long a request waits for its turn. Ignition waits 10 s for the head of an answer, and the answer takes its time too.
const PATIENCE: Duration = Duration::from_secs(5);

/// What guards one path.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub gateway: Arc<Gateway>,
    /// The largest body that it takes.
    pub body_bytes: usize,
}

/// Does a request when it is there whole and it is its source's turn, if it comes to an end in time. Nothing that others need is held while
/// its sender is waited for. On `/config` the answer is an empty 503 otherwise: Ignition retries that for ever, on the same connection.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let config = problem::is_config(request.uri().path());
    let unavailable = || {
        if config {
            problem::empty_503()
        } else {
            Refusal::unavailable().into_response()
        }
    };
    let Guard { gateway, body_bytes } = guard;
    let Some(Peer(peer)) = request.extensions().get().copied() else {
        return unavailable();
    };
    let source = Source::from(peer.ip());
    let admission = &gateway.admission;
    let (head, body) = request.into_parts();
    let body = match admission.bodies.read(source, body, body_bytes).await {
        Ok(body) => body,
        Err(NoBody::TooLarge) => return Refusal::body_too_large().into_response(),
        Err(NoBody::Broken) => return Refusal::malformed("the body did not arrive whole").into_response(),
        Err(NoBody::TooSlow | NoBody::NoRoom) => return unavailable(),
    };
    let place = head.extensions.get::<Place>().cloned();
    let Ok(_turn) = admission.requests.take(source, PATIENCE).await else {
        return unavailable();
    };
    let working = place.as_ref().map(Place::working);
    let request = Request::from_parts(head, Body::from(body.bytes));
    let answer = tokio::time::timeout(gateway.settings.limits.request, next.run(request)).await;
    drop((working, body.room));
    answer.unwrap_or_else(|_| unavailable())
}
