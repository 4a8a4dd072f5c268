//! `GET /v1/attest`: what this server is, and what a node of a pool is to know beforehand.

use std::sync::Arc;

use attest::Kind;
use attest::protocol::{Discovery, KUBELET_KEY_PARAMETER, POOL_PARAMETER, SERVICE, VERSION};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use crate::pools::live::{LivePools, Lookup};

pub(super) async fn get(State(pools): State<Arc<LivePools>>, uri: Uri) -> Json<Discovery> {
    Json(Discovery {
        service: SERVICE.to_owned(),
        protocol: VERSION,
        kinds: Kind::ALL.iter().map(ToString::to_string).collect(),
        hold_seconds: pool(&uri).and_then(|name| match pools.get(&name) {
            Lookup::Pool(pool) => Some(pool.hold_seconds),
            Lookup::NotYet | Lookup::Unknown => None,
        }),
        kubelet_key: has_key(&uri).then_some(true),
    })
}

/// Whether a node asks that has a key for its kubelet.
fn has_key(uri: &Uri) -> bool {
    let mut parameters = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    parameters.any(|(name, _)| name == KUBELET_KEY_PARAMETER)
}

/// The pool that is asked about.
fn pool(uri: &Uri) -> Option<String> {
    let mut pools = url::form_urlencoded::parse(uri.query()?.as_bytes()).filter(|(name, _)| name == POOL_PARAMETER);
    pools.next().map(|(_, pool)| pool.into_owned())
}
