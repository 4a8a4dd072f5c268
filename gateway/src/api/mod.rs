//! The HTTP API: what each endpoint takes and gives. `docs/reference/protocol.md` describes it for people.

mod accept;
mod anchors;
mod challenge;
mod config;
mod config_formats;
mod credential;
mod decisions;
mod discovery;
mod effort;
mod endorsers;
mod evidence;
mod evidence_context;
mod gateway;
mod guesses;
mod health;
mod kubelet;
mod overload;
mod problem;
mod recent_chains;
mod report;
mod request_meter;
mod scrape;
mod token;
mod waiting_client;

use std::net::SocketAddr;
use std::sync::Arc;

use attest::protocol::{
    BOOT_ID_HEADER, CHALLENGE_BODY_LIMIT_BYTES, CHALLENGE_PATH, DISCOVERY_PATH, EVIDENCE_BODY_LIMIT_BYTES, EVIDENCE_PATH,
    REPORT_BODY_LIMIT_BYTES, REPORT_PATH, is_boot_id,
};
use attest_log::decision_id;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};
pub use endorsers::{EkRootsInUse, EkRootsReloadError, Endorsers};
pub use gateway::Gateway;
pub use problem::Refusal;

use crate::metrics::Metrics;
use crate::pools::live::{LivePools, Lookup};
use attest_pool::Pool;
use challenge::ChallengeEndpoint;
use config::ConfigEndpoint;
use discovery::DiscoveryEndpoint;
use evidence::EvidenceEndpoint;
use health::Readiness;
use report::ReportEndpoint;
use request_meter::RequestMeter;
use scrape::ScrapeEndpoint;

/// Routes for load balancers and probes.
const HEALTH: &str = "/healthz";
const READINESS: &str = "/readyz";
/// Longest User-Agent that is recorded.
const USER_AGENT_LIMIT_CHARACTERS: usize = 128;

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Returns the whole API. Each endpoint has its part of the gateway, and no more.
pub fn router(gateway: &Gateway) -> Router {
    let mut routes = vec![HEALTH, READINESS];
    // What has no body is not asked for one.
    let mut guarded = |path: &'static str, endpoint: MethodRouter, body_bytes: usize| {
        routes.push(path);
        let guard = overload::Guard {
            admission: Arc::clone(&gateway.admission),
            limit: gateway.settings.limits.request,
            body_bytes,
        };
        let endpoint = endpoint
            .layer(DefaultBodyLimit::max(body_bytes))
            .layer(middleware::from_fn_with_state(guard, overload::guard));
        Router::new().route(path, endpoint)
    };
    let discovery = get(discovery::get).with_state(Arc::new(DiscoveryEndpoint::new(gateway)));
    let challenge = post(challenge::post).with_state(Arc::new(ChallengeEndpoint::new(gateway)));
    let evidence = post(evidence::post).with_state(Arc::new(EvidenceEndpoint::new(gateway)));
    let report = post(report::post).with_state(Arc::new(ReportEndpoint::new(gateway)));
    let config = get(config::get).with_state(Arc::new(ConfigEndpoint::new(gateway)));
    // Health is answered however busy the gateway is.
    let health = Router::new()
        .route(HEALTH, get(health::alive))
        .route(READINESS, get(health::ready))
        .with_state(Arc::new(Readiness::new(gateway)));
    let router = guarded(DISCOVERY_PATH, discovery, 0)
        .merge(guarded(CHALLENGE_PATH, challenge, CHALLENGE_BODY_LIMIT_BYTES))
        .merge(guarded(EVIDENCE_PATH, evidence, EVIDENCE_BODY_LIMIT_BYTES))
        .merge(guarded(REPORT_PATH, report, REPORT_BODY_LIMIT_BYTES))
        .merge(guarded("/config/{pool}", config.clone(), 0))
        // The Machine Config Server takes a path's last element.
        .merge(guarded("/config/{pool}/", config, 0))
        .merge(health)
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method);
    measured(router, &gateway.metrics, routes)
}

/// Counts the requests of a router that has these routes.
fn measured(router: Router, metrics: &Arc<Metrics>, routes: Vec<&'static str>) -> Router {
    let meter = Arc::new(RequestMeter::new(metrics, routes));
    router.layer(middleware::from_fn_with_state(meter, request_meter::measure))
}

/// Returns the routes of a gateway whose store does not answer yet: it is alive, not ready, and refuses all else.
pub fn waiting_router(metrics: &Arc<Metrics>) -> Router {
    let router = Router::new()
        .route(HEALTH, get(health::alive))
        .route(READINESS, get(health::waiting))
        .fallback(async || Refusal::unavailable());
    measured(router, metrics, vec![HEALTH, READINESS])
}

/// Returns the route of the metrics, which have an address of their own.
pub fn metrics_router(gateway: &Gateway) -> Router {
    let endpoint = Arc::new(ScrapeEndpoint::new(gateway));
    Router::new().route("/metrics", get(scrape::get)).with_state(endpoint)
}

/// Returns the same route of a gateway whose store does not answer yet.
pub fn waiting_metrics_router(metrics: &Arc<Metrics>) -> Router {
    Router::new()
        .route("/metrics", get(scrape::waiting))
        .with_state(Arc::clone(metrics))
}

/// Returns the pool of that name; it stays the same for a whole request.
fn pool(pools: &LivePools, name: &str) -> Result<Arc<Pool>, Refusal> {
    match pools.get(name) {
        Lookup::Pool(pool) => Ok(pool),
        Lookup::NotYet => Err(Refusal::unavailable()),
        Lookup::Unknown => Err(Refusal::pool_unknown(name)),
    }
}

/// Reads a JSON body that has arrived whole.
fn decode<T: serde::de::DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refusal> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::body_too_large(),
        _ => Refusal::malformed("the body did not arrive whole"),
    })?;
    serde_json::from_slice(&body).map_err(Refusal::malformed)
}

/// Returns the boot that the client says it is in.
fn boot_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(BOOT_ID_HEADER)?.to_str().ok()?;
    is_boot_id(id).then(|| id.to_owned())
}

/// Returns the client's User-Agent, cut to [`USER_AGENT_LIMIT_CHARACTERS`].
fn user_agent(headers: &HeaderMap) -> Option<String> {
    let agent = headers.get(header::USER_AGENT)?.to_str().ok()?;
    Some(agent.chars().take(USER_AGENT_LIMIT_CHARACTERS).collect())
}
