//! Count and duration of requests. Labels are routes and methods of the gateway: no client makes others.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::histogram::Histogram;

use crate::metrics::Metrics;

/// Route of requests for other paths.
const UNMATCHED: &str = "unmatched";

/// Metrics of requests, with the durations of each route at hand.
#[derive(Debug)]
pub(super) struct RequestMeter {
    metrics: Arc<Metrics>,
    routes: Vec<(&'static str, Histogram)>,
    unmatched: Histogram,
}

impl RequestMeter {
    /// Creates the metrics of these routes.
    pub(super) fn new(metrics: &Arc<Metrics>, routes: impl IntoIterator<Item = &'static str>) -> Self {
        let with_durations = |route| (route, metrics.request_durations(route));
        Self {
            routes: routes.into_iter().map(with_durations).collect(),
            unmatched: metrics.request_durations(UNMATCHED),
            metrics: Arc::clone(metrics),
        }
    }

    fn route(&self, matched: Option<&MatchedPath>) -> (&'static str, &Histogram) {
        let known = matched.and_then(|path| self.routes.iter().find(|(route, _)| *route == path.as_str()));
        known.map_or((UNMATCHED, &self.unmatched), |(route, durations)| (route, durations))
    }
}

/// Counts a request, and notes its duration. A request whose client hangs up is not counted.
pub(super) async fn measure(State(meter): State<Arc<RequestMeter>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let (route, durations) = meter.route(request.extensions().get());
    let method = request.method().clone();
    let response = next.run(request).await;
    durations.observe(begun.elapsed().as_secs_f64());
    meter.metrics.requested(route, &method, response.status().as_u16());
    response
}
