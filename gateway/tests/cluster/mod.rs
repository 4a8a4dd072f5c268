//! A gateway's reads from its cluster's API, and its writes there.

mod approval;
mod attested_nodes;
mod bootstrap_kubeconfig;
mod bootstrap_tokens;
mod client_ca;
mod configs;
mod mcs_certificate;
mod watch_cache;

use attest_cluster_api::ClusterClient;
use attest_store::settings::{ClusterAccess, ClusterApi};
use attest_system::clock::Clock;
use cloud_fixtures::kubernetes::KubernetesApi;

use super::support::LIMIT;

/// API, and a client of it with a kubeconfig.
struct Asked {
    api: KubernetesApi,
    cluster: ClusterClient,
    token: String,
    _folder: tempfile::TempDir,
}

/// Namespace of the gateway's own objects and of its service account.
const NAMESPACE: &str = "attest-gateway";

impl Asked {
    /// Starts an API and connects as a service account with these rights everywhere.
    async fn with(rules: &serde_json::Value) -> Self {
        let api = KubernetesApi::start();
        api.grant(NAMESPACE, "gateway", rules);
        let token = api.token(NAMESPACE, "gateway");
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig(&token)).unwrap();
        let access = ClusterAccess {
            api: ClusterApi::Kubeconfig(kubeconfig),
            namespace: Some(NAMESPACE.to_owned()),
        };
        let cluster = ClusterClient::open(&access, Clock::System, std::sync::Arc::new(())).await.unwrap();
        Self {
            api,
            cluster,
            token,
            _folder: folder,
        }
    }
}

/// Waits for a change of the API's objects or an answered request after which the condition holds.
async fn shown(api: &KubernetesApi, what: &str, is_so: impl FnMut() -> bool) {
    assert!(api.comes_to(LIMIT, is_so).await, "{what}: not within {} s", LIMIT.as_secs());
}
