//! Overload: how much is done at once, and how long for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Peer;
use super::problem::{self, Refusal};
use super::waiting_client::WaitingClient;
use crate::admission::{Admission, ConnectionSlot, NoBody, ReadBody};

/// Maximum wait of a config request for its turn: Ignition waits 10 s for the head of an answer, and making that takes time too.
const CONFIG_PATIENCE: Duration = Duration::from_secs(8);
/// Maximum wait of any other request: `attest-node` waits 15 s.
const PATIENCE: Duration = Duration::from_secs(12);
/// Largest `Retry-After`. `attest-node` heeds a minute at most, and retries up to half of it later.
const COME_AGAIN_LIMIT: Duration = Duration::from_secs(60);

/// State of the guard for one path.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub admission: Arc<Admission>,
    /// Maximum duration of a request.
    pub limit: Duration,
    /// The largest body that it takes.
    pub body_bytes: usize,
}

/// Runs a request once it has arrived whole and its source has its turn, if it ends in time. While its sender is waited for, it holds
/// nothing that others need. Otherwise the answer on `/config` is an empty 503: Ignition retries that for ever, on the same connection, and
/// ignores `Retry-After`.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let requests = guard.admission.requests.clone();
    let config = problem::is_config(request.uri().path());
    let answer = in_turn(guard, request, next, if config { CONFIG_PATIENCE } else { PATIENCE }).await;
    match answer {
        None if config => problem::empty_503(),
        None => with_retry_after(Refusal::unavailable().into_response(), requests.backlog(Instant::now())),
        Some(answer) if !config && answer.status() == StatusCode::SERVICE_UNAVAILABLE => {
            with_retry_after(answer, requests.backlog(Instant::now()))
        }
        Some(answer) => answer,
    }
}

/// Returns the answer to a request; `None` if it did not come to its turn, or to its end, in time.
///
/// A request that has started runs to its end, although its client disconnects or its time is over. Only then is a spent credential
/// recorded, or given back. It keeps its turn until then, so that clients that disconnect make no more work than others.
async fn in_turn(guard: Guard, request: Request, next: Next, patience: Duration) -> Option<Response> {
    let Guard {
        admission,
        limit,
        body_bytes,
    } = guard;
    let Peer(peer) = request.extensions().get().copied()?;
    let source = admission.source(peer.ip());
    let (mut head, body) = request.into_parts();
    let body = match admission.bodies.read(source, body, body_bytes, patience).await {
        Ok(body) => body,
        Err(NoBody::TooLarge) => return Some(Refusal::body_too_large().into_response()),
        Err(NoBody::Broken) => return Some(Refusal::malformed("the body did not arrive whole").into_response()),
        Err(NoBody::TooSlow | NoBody::NoRoom) => return None,
    };
    // It goes with the connection, and not with the request, which may last longer.
    let place = head.extensions.remove::<ConnectionSlot>();
    let ReadBody { bytes, room, waited } = body;
    // Who waits for it waits for both together.
    let turn = admission.handshakes.request(source, patience.saturating_sub(waited)).await.ok()?;
    let _working = place.as_ref().map(ConnectionSlot::working);
    let mut request = Request::from_parts(head, Body::from(bytes));
    let (waiting, awaited) = WaitingClient::new();
    request.extensions_mut().insert(awaited);
    let work = async move {
        let answer = next.run(request).await;
        drop((turn, room));
        answer
    };
    waiting.answer(limit, work).await
}

/// Sets `Retry-After` to the time in which the present queue is served. Without a queue the cause is something else, and its end is
/// unknown.
pub(super) fn with_retry_after(mut answer: Response, backlog: Option<Duration>) -> Response {
    if let Some(backlog) = backlog {
        let seconds = backlog.min(COME_AGAIN_LIMIT).as_secs().max(1);
        answer.headers_mut().entry(header::RETRY_AFTER).or_insert(seconds.into());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_retry_after_from_the_known_backlog() {
        let told = |backlog: Option<u64>| {
            let answer = with_retry_after(problem::empty_503(), backlog.map(Duration::from_secs));
            let told = answer.headers().get(header::RETRY_AFTER);
            told.and_then(|told| told.to_str().ok()?.parse::<u64>().ok())
        };
        assert_eq!(told(None), None);
        assert_eq!((told(Some(0)), told(Some(7)), told(Some(1000))), (Some(1), Some(7), Some(60)));
        // Who knows better has said so.
        let known = [(header::RETRY_AFTER, "30")].into_response();
        assert_eq!(
            with_retry_after(known, Some(Duration::from_secs(7))).headers()[header::RETRY_AFTER],
            "30"
        );
    }
}
