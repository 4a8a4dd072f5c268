//! The kubelets' bootstrap kubeconfig from the cluster, read by the real program, and its use in the configs of a pool of MachineConfigs.

use attest_ignition::data_url;
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::{Gateway, POOL};

const NAMESPACE: &str = "openshift-machine-config-operator";
const PATH: &str = "/etc/kubernetes/kubeconfig";
const SERVER: &str = "https://api-int.example.com:6443";
const MACHINE_CONFIG: &str = "apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 00-worker
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  neededBeforeNodeApproved: true
  config:
    ignition: {version: 3.4.0}
    storage: {files: [{path: /etc/a, contents: {source: \"data:,a\"}}]}
";

/// Returns a token with this subject.
fn token(subject: &str) -> String {
    let part = |text: String| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
    format!(
        "{}.{}.{}",
        part("{\"alg\":\"RS256\"}".to_owned()),
        part(format!("{{\"sub\":\"{subject}\"}}")),
        part("signature".to_owned())
    )
}

fn api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let rules = json!([
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["node-bootstrapper-token"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["kube-apiserver-server-ca"], "verbs": ["list", "watch"]},
        {"apiGroups": ["config.openshift.io"], "resources": ["infrastructures"], "resourceNames": ["cluster"], "verbs": ["list", "watch"]},
    ]);
    api.grant("attest-gateway", "gateway", &rules);
    api.put(json!({
        "apiVersion": "config.openshift.io/v1",
        "kind": "Infrastructure",
        "metadata": {"name": "cluster"},
        "status": {"apiServerInternalURI": SERVER},
    }));
    api
}

fn put_token(api: &KubernetesApi, token: &str, ca: &str) {
    let encoded = |text: &str| BASE64.encode(text.as_bytes());
    let metadata = json!({"name": "node-bootstrapper-token", "namespace": NAMESPACE});
    let data = json!({"token": encoded(token), "ca.crt": encoded(ca), "namespace": encoded(NAMESPACE)});
    api.put(
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": metadata, "data": data}),
    );
}

/// Creates a gateway with a pool that has MachineConfigs and that kubeconfig.
fn init(api: &KubernetesApi) -> Gateway {
    let gateway = Gateway::init();
    std::fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token("attest-gateway", "gateway"))).unwrap();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false\nbootstrap_kubeconfig = true\n");
    std::fs::create_dir_all(gateway.path("state")).unwrap();
    gateway.machine_configs(POOL, &[("00-worker.yaml", MACHINE_CONFIG)]);
    let pool = gateway.path("pools").join(POOL).join("pool.toml");
    let text = std::fs::read_to_string(&pool).unwrap();
    let said = "[source]\nkubeconfig = \"../../state/cluster/bootstrap-kubeconfig\"\n";
    std::fs::write(pool, text.replacen("[source]\n", said, 1)).unwrap();
    gateway
}

fn acknowledge(gateway: &Gateway) {
    let pool = gateway.path("pools").join(POOL).join("pool.toml");
    let text = std::fs::read_to_string(&pool).unwrap();
    std::fs::write(
        pool,
        text.replacen("acknowledged = []", &format!("acknowledged = [\"token {PATH}\"]"), 1),
    )
    .unwrap();
}

/// Returns the kubeconfig in a config of the pool.
fn kubeconfig(config: &[u8]) -> Value {
    let config: Value = serde_json::from_slice(config).unwrap();
    let files = config["storage"]["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == PATH).unwrap();
    assert_eq!((&file["mode"], &file["overwrite"]), (&json!(0o644), &json!(true)));
    let text = data_url::decode(file["contents"]["source"].as_str().unwrap()).unwrap();
    serde_saphyr::from_str(std::str::from_utf8(&text).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_config_pools_get_the_current_bootstrap_kubeconfig() {
    let api = api();
    let mut gateway = init(&api);
    // The only one: then its state is that of the gateway.
    std::fs::remove_dir_all(gateway.path("pools/infra")).unwrap();
    let ca = std::fs::read_to_string(gateway.path("tls/mcs-ca.crt")).unwrap();
    let (one, two) = (token("one"), token("two"));
    put_token(&api, &one, &ca);
    // A stranger gets it only if the pool says so.
    let output = gateway.try_command(&["check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains(&format!("token {PATH}")), "{said}");
    acknowledge(&gateway);
    gateway.run();
    let of = |config: &[u8]| kubeconfig(config)["users"][0]["user"]["token"].as_str().unwrap().to_owned();
    for set in ["pre-approved", "full"] {
        let config = gateway.rendered(POOL, set);
        assert_eq!(of(&config), one);
        assert_eq!(kubeconfig(&config)["clusters"][0]["cluster"]["server"], SERVER);
    }
    assert_eq!(of(&gateway.config("/config/worker", &[]).await.body), one);

    // Renewed, then none that could be used.
    put_token(&api, &two, &ca);
    gateway.line(|line| line.contains("bootstrap kubeconfig") && line.contains("updated from the cluster"));
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(of(&gateway.config("/config/worker", &[]).await.body), two);
    put_token(&api, "hunter2", &ca);
    gateway.line(|line| line.contains("is not a service account's") && line.contains("using the last good state"));
    api.remove("secrets", NAMESPACE, "node-bootstrapper-token");
    gateway.line(|line| line.contains("there is no Secret"));

    // A start without the API.
    api.disturb(Disturbance::Down);
    gateway.terminate();
    gateway.wait();
    gateway.run();
    assert_eq!(of(&gateway.config("/config/worker", &[]).await.body), two);
    put_token(&api, &one, &ca);
    api.restart(RestartHistory::Lost);
    gateway.line(|line| line.contains("bootstrap kubeconfig") && line.contains("updated from the cluster"));
    let output = gateway.output();
    assert!(!output.contains(&one) && !output.contains(&two) && !output.contains("hunter2"));
    let log = std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert!(!log.contains(&one) && !log.contains(&two));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_affected_pools_wait_for_the_bootstrap_kubeconfig() {
    let api = api();
    let mut gateway = init(&api);
    acknowledge(&gateway);
    gateway.run();
    gateway.config("/config/worker", &[]).await.check_retry();
    assert!(gateway.config("/config/infra", &[]).await.status.is_success());
    let ca = std::fs::read_to_string(gateway.path("tls/mcs-ca.crt")).unwrap();
    put_token(&api, &token("one"), &ca);
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let config = gateway.config("/config/worker", &[]).await.body;
    assert_eq!(kubeconfig(&config)["users"][0]["user"]["token"], token("one"));
}
