//! Overload: how much is done at once, and how long for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Peer;
use super::awaited::Waiting;
use super::problem::{self, Refusal};
use crate::admission::{Admission, NoBody, Place, Source, Whole};

/// How long a request waits for its turn. Ignition waits 10 s for the head of an answer, and the answer takes its time too.
const PATIENCE: Duration = Duration::from_secs(5);

/// What guards one path.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub admission: Arc<Admission>,
    /// How long a request may take.
    pub limit: Duration,
    /// The largest body that it takes.
    pub body_bytes: usize,
}

/// Does a request when it is there whole and it is its source's turn, if it comes to an end in time. Nothing that others need is held while
/// its sender is waited for. On `/config` the answer is an empty 503 otherwise: Ignition retries that for ever, on the same connection.
///
/// A request that is begun is done to its end, although its client hangs up or its time is over: only so is what it used up recorded, or
/// given back. It has its turn until then, so that whoever hangs up makes no more work than others.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let config = problem::is_config(request.uri().path());
    let unavailable = || {
        if config {
            problem::empty_503()
        } else {
            Refusal::unavailable().into_response()
        }
    };
    let Guard {
        admission,
        limit,
        body_bytes,
    } = guard;
    let Some(Peer(peer)) = request.extensions().get().copied() else {
        return unavailable();
    };
    let source = Source::from(peer.ip());
    let (mut head, body) = request.into_parts();
    let body = match admission.bodies.read(source, body, body_bytes).await {
        Ok(body) => body,
        Err(NoBody::TooLarge) => return Refusal::body_too_large().into_response(),
        Err(NoBody::Broken) => return Refusal::malformed("the body did not arrive whole").into_response(),
        Err(NoBody::TooSlow | NoBody::NoRoom) => return unavailable(),
    };
    // It goes with the connection, and not with the request, which may last longer.
    let place = head.extensions.remove::<Place>();
    let Ok(turn) = admission.handshakes.request(source, PATIENCE).await else {
        return unavailable();
    };
    let _working = place.as_ref().map(Place::working);
    let Whole { bytes, room } = body;
    let mut request = Request::from_parts(head, Body::from(bytes));
    let (waiting, awaited) = Waiting::new();
    request.extensions_mut().insert(awaited);
    let work = async move {
        let answer = next.run(request).await;
        drop((turn, room));
        answer
    };
    waiting.answer(limit, work).await.unwrap_or_else(unavailable)
}
