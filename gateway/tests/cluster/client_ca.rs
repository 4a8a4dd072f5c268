//! CAs of kubelets' certificates from the cluster, read by the real program, and cached.

use std::sync::Arc;

use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use rustls::version::TLS13;
use serde_json::json;

use crate::support::kubelet::{Cluster, Connection, Identity, PATH, client, init};
use crate::support::{Gateway, POOL};

const NAMESPACE: &str = "openshift-config-managed";
const NAME: &str = "csr-controller-ca";

/// Starts an API of which the gateway may read that one ConfigMap, and nothing else.
fn api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": "attest-gateway-client-ca", "namespace": NAMESPACE});
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["list", "watch"]}]);
    api.put(json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]});
    let subjects = json!([{"kind": "ServiceAccount", "name": "gateway", "namespace": "attest-gateway"}]);
    api.put(json!({"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects}));
    api
}

fn put(api: &KubernetesApi, bundle: &str) {
    let metadata = json!({"name": NAME, "namespace": NAMESPACE});
    api.put(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca-bundle.crt": bundle}}));
}

fn start(api: &KubernetesApi) -> Gateway {
    let mut gateway = init(&Cluster::new());
    std::fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token("attest-gateway", "gateway"))).unwrap();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false\nclient_ca = true\n");
    gateway.run();
    gateway
}

/// Returns a kubelet's result: `served` for the full config, `pre-approved`, or the code.
async fn gets(gateway: &Gateway, kubelet: &Identity) -> String {
    let config = Arc::new(client(gateway, &[&TLS13], Some(kubelet)));
    let answer = Connection::by(gateway, config).await.unwrap().get(PATH, &[]).await;
    match answer.status.as_u16() {
        200 if answer.body == gateway.rendered(POOL, "full") => "served".to_owned(),
        200 => "pre-approved".to_owned(),
        503 => {
            answer.check_retry();
            assert_eq!(answer.header("retry-after"), Some("10"));
            "told to come again".to_owned()
        }
        _ => answer.code(),
    }
}

/// Part of the message on the console after a change is applied.
const USED: &str = "the certificates' files have changed";

/// Changes the bundle, and waits until it is used. A client that polled would be rate-limited as if it guessed credentials.
fn change(gateway: &Gateway, api: &KubernetesApi, bundle: &str) {
    let before = gateway.how_often(|line| line.contains(USED));
    put(api, bundle);
    gateway.lines(before + 1, |line| line.contains(USED));
}

/// Makes a change that must not remove a CA, and waits until the log says so.
fn in_vain(gateway: &Gateway, said: &str, what: impl Fn()) {
    let is_it = |line: &str| line.contains("using the last good state") && line.contains(said);
    let before = gateway.how_often(is_it);
    what();
    gateway.lines(before + 1, is_it);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_client_cas_are_watched_and_cached() {
    let (api, one, other) = (api(), Cluster::new(), Cluster::new());
    let mut gateway = start(&api);
    let (of_one, of_other) = (one.kubelet("worker-1"), other.kubelet("worker-1"));
    // Before the cluster has told them a kubelet waits, and nobody else does.
    gateway.line(|line| line.contains("not read from the cluster yet; answering kubelets 503 with Retry-After"));
    assert_eq!(gets(&gateway, &of_one).await, "told to come again");
    gateway.config(PATH, &[]).await.is_config(&gateway.rendered(POOL, "pre-approved"));
    change(&gateway, &api, one.pem());
    assert_eq!(gets(&gateway, &of_one).await, "served");
    assert_eq!(gets(&gateway, &of_other).await, "kubelet-certificate-invalid");
    // A rotation: both, then the new one alone.
    change(&gateway, &api, &format!("{}{}", one.pem(), other.pem()));
    assert_eq!(gets(&gateway, &of_other).await, "served");
    assert_eq!(gets(&gateway, &of_one).await, "served");
    change(&gateway, &api, other.pem());
    assert_eq!(gets(&gateway, &of_one).await, "kubelet-certificate-invalid");

    // What is none is not taken, and what goes takes nothing away.
    for (bundle, said) in [
        ("", "holds no certificate"),
        (&one.kubelet_pem(), "is not the certificate of a CA"),
        (&other.pem()[..200], NAME),
    ] {
        in_vain(&gateway, said, || put(&api, bundle));
        assert_eq!(gets(&gateway, &of_other).await, "served", "{bundle:?}");
    }
    in_vain(&gateway, "has no ca-bundle.crt", || api.remove("configmaps", NAMESPACE, NAME));
    assert_eq!(gets(&gateway, &of_other).await, "served");

    // A start without the API.
    api.disturb(Disturbance::Down);
    gateway.terminate();
    gateway.wait();
    gateway.run();
    assert_eq!(gets(&gateway, &of_other).await, "served");
    put(&api, one.pem());
    api.restart(RestartHistory::Lost);
    gateway.line(|line| line.contains(USED));
    assert_eq!(gets(&gateway, &of_one).await, "served");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_client_ca_conflicts_with_tls_client_ca() {
    let gateway = init(&Cluster::new());
    gateway.settings("[cluster]\napi = \"in-cluster\"\nclient_ca = true\n[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"\n");
    let output = gateway.try_command(&["check"]);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!output.status.success() && said.contains("cluster.client_ca"), "{said}");
}
