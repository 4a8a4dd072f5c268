//! Two controllers with one store, on objects of the API: one acts.

use attest_store::AnyStore;
use attest_store::settings::{ClusterAccess, ClusterApi, EngineSettings, KubernetesSettings, StoreSettings};

use super::*;

/// Settings of a controller with a store on objects.
const SHARED: &str = "namespace = \"attest-gateway\"\n[store]\nengine = \"kubernetes\"\n[approval]\nenabled = true\n";

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_second_controller_takes_over_leadership() {
    let site = Site::with("");
    let rules = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete", "get", "list", "patch"]},
    ]);
    site.api.grant(NAMESPACE, "shared", &rules);
    for object in rights() {
        let mut object = object;
        if let Some(subjects) = object["subjects"].as_array_mut() {
            let more = json!({"kind": "ServiceAccount", "name": "shared", "namespace": NAMESPACE});
            subjects.push(more);
        }
        site.api.put(object);
    }
    let kubeconfig = site.api.kubeconfig(&site.api.token(NAMESPACE, "shared"));
    let (mut one, mut other) = (Controller::new(&kubeconfig, SHARED), Controller::new(&kubeconfig, SHARED));
    // A gateway makes the store.
    let of_gateway = tempfile::tempdir().unwrap();
    let settings = StoreSettings {
        engine: EngineSettings::Kubernetes(KubernetesSettings {
            cluster: ClusterAccess {
                api: ClusterApi::Kubeconfig(one.path("kubeconfig")),
                namespace: Some(NAMESPACE.to_owned()),
            },
            name: "attest-gateway".to_owned(),
            timeout: Duration::from_secs(5),
        }),
        file: of_gateway.path().join("gateway.db"),
    };
    let store = tokio::task::spawn_blocking(move || AnyStore::open(&settings))
        .await
        .unwrap()
        .unwrap();
    let approve = async |csr: &str, node: &str| {
        let key = KeyPair::generate().unwrap();
        let machine = enrolled_in(&store, node).await;
        attested_in(&store, machine, node, Some(SpkiSha256::from_spki(&key.subject_public_key_info()))).await;
        site.asks_for(csr, node, &key);
        site.wait_approved(csr).await;
    };
    one.run();
    one.line(|line| line.contains("acquired the lease"));
    other.run();
    approve("first", NODE).await;
    assert!(other.get("/metrics").await.1.contains("attest_controller_leader 0\n"));
    // One that ends lets the other have it at once; one that is killed, when the lease is over.
    assert!(one.stop().success());
    other.line(|line| line.contains("acquired the lease"));
    one.run();
    other.kill();
    approve("second", "worker-2").await;
    one.line(|line| line.contains("acquired the lease"));
}
