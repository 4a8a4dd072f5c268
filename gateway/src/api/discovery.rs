//! `GET /v1/attest`: what this server is, and what a node of a pool is to know beforehand.

use std::sync::Arc;

use attest::Kind;
use attest::protocol::{Discovery, KUBELET_KEY_PARAMETER, POOL_PARAMETER, SERVICE, VERSION};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::gateway::Gateway;
use crate::pools::live::{LivePools, Lookup};

/// Data that discovery answers from.
pub(super) struct DiscoveryEndpoint {
    pools: Arc<LivePools>,
    /// The pools whose machines' CSRs are approved only for attested keys.
    keyed: Vec<String>,
}

impl DiscoveryEndpoint {
    pub(super) fn new(gateway: &Gateway) -> Self {
        let approval = &gateway.settings.approval;
        Self {
            pools: Arc::clone(&gateway.pools),
            keyed: if approval.kubelet_keys {
                approval.pools.clone()
            } else {
                Vec::new()
            },
        }
    }
}

pub(super) async fn get(State(endpoint): State<Arc<DiscoveryEndpoint>>, uri: Uri) -> Json<Discovery> {
    let DiscoveryEndpoint { pools, keyed } = &*endpoint;
    let is_keyed = pool(&uri).is_some_and(|name| keyed.contains(&name));
    Json(Discovery {
        service: SERVICE.to_owned(),
        protocol: VERSION,
        kinds: Kind::ALL.iter().map(ToString::to_string).collect(),
        hold_seconds: pool(&uri).and_then(|name| match pools.get(&name) {
            Lookup::Pool(pool) => Some(pool.hold_seconds),
            Lookup::NotYet | Lookup::Unknown => None,
        }),
        kubelet_key: (has_key(&uri) || is_keyed).then_some(true),
    })
}

/// Returns whether the request says that the node has a key for its kubelet.
fn has_key(uri: &Uri) -> bool {
    let mut parameters = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    parameters.any(|(name, _)| name == KUBELET_KEY_PARAMETER)
}

/// Returns the pool that is asked about.
fn pool(uri: &Uri) -> Option<String> {
    let mut pools = url::form_urlencoded::parse(uri.query()?.as_bytes()).filter(|(name, _)| name == POOL_PARAMETER);
    pools.next().map(|(_, pool)| pool.into_owned())
}
