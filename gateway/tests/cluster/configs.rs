//! Configs of a Machine Config Server that is asked again when the cluster has changes; and the part that nodes get before approval.

use std::fs;
use std::sync::{Arc, Mutex};

use attest_ignition::data_url;
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use cloud_fixtures::machine_config_server::MachineConfigServer;
use cloud_fixtures::server::TestServer;
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::support::{self, Gateway, POOL};

const MCO: &str = "machineconfiguration.openshift.io/v1";
const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
const NEEDED: &str = "machineconfiguration.openshift.io/needed-before-node-approved";

/// Cluster with its API, its Machine Config Server, and a gateway that asks both.
struct Cluster {
    gateway: Gateway,
    api: KubernetesApi,
    server: TestServer,
    /// Content of `/etc/state` in the server's config.
    state: Arc<Mutex<&'static str>>,
}

fn rules() -> Value {
    let resources = [
        "machineconfigpools",
        "machineconfigs",
        "controllerconfigs",
        "machineosconfigs",
        "machineosbuilds",
    ];
    json!([{"apiGroups": ["machineconfiguration.openshift.io"], "resources": resources, "verbs": ["get", "list", "watch"]}])
}

/// Returns the MachineConfig that a Machine Config Server puts into its config.
fn encapsulated(version: &str) -> Value {
    json!({
        "apiVersion": MCO, "kind": "MachineConfig", "metadata": {"name": "rendered-worker-1"},
        "spec": {"config": {"ignition": {"version": version}}, "fips": false, "kernelArguments": [], "extensions": [], "osImageURL": "quay.io/os@sha256:1"},
    })
}

fn file(path: &str, text: &str) -> Value {
    json!({"path": path, "mode": 420, "overwrite": true, "contents": {"source": format!("data:,{text}")}})
}

fn machine_config(name: &str, role: &str, needed: bool, files: &[Value]) -> Value {
    let annotations = if needed { json!({NEEDED: "true"}) } else { json!({}) };
    json!({
        "apiVersion": MCO, "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {"machineconfiguration.openshift.io/role": role}, "annotations": annotations},
        "spec": {"config": {"ignition": {"version": "3.4.0"}, "storage": {"files": files}}},
    })
}

/// Returns the worker pool, whose new nodes get this rendered MachineConfig.
fn pool(rendered: &str) -> Value {
    json!({
        "apiVersion": MCO, "kind": "MachineConfigPool", "metadata": {"name": "worker"},
        "spec": {"machineConfigSelector": {"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}}, "configuration": {"name": rendered}},
        "status": {"configuration": {"name": rendered}, "updatedMachineCount": 1},
    })
}

impl Cluster {
    /// Creates a cluster without starting the gateway; `include` is the pool's section for the pre-approved config.
    fn new(include: &str) -> Self {
        let gateway = Gateway::init();
        let api = KubernetesApi::start();
        api.grant(NAMESPACE, "gateway", &rules());
        api.put(pool("rendered-worker-1"));
        let kubeconfig = api.kubeconfig(&api.token(NAMESPACE, "gateway"));
        fs::write(gateway.path("kubeconfig"), kubeconfig).unwrap();
        gateway.settings("[cluster]\napi = \"kubeconfig\"");
        let state = Arc::new(Mutex::new("one"));
        let said = Arc::clone(&state);
        let config = move |version: &str| {
            let mut files = [
                file("/etc/early", "early"),
                file("/etc/state", &said.lock().unwrap()),
                file(ENCAPSULATED, ""),
                // What such a server appends besides.
                file("/etc/machine-config-daemon/node-annotations.json", "%7B%7D"),
                file("/etc/mcs-machine-config-content.json", "%7B%7D"),
            ];
            files[2]["contents"]["source"] = data_url::encode(encapsulated(version).to_string().as_bytes()).into();
            if version == "2.2.0" {
                files.iter_mut().for_each(|file| file["filesystem"] = json!("root"));
                files
                    .iter_mut()
                    .for_each(|file| drop(file.as_object_mut().unwrap().remove("overwrite")));
            }
            json!({"ignition": {"version": version}, "storage": {"files": files}})
                .to_string()
                .into_bytes()
        };
        let tls = (gateway.path("tls/mcs.crt"), gateway.path("tls/mcs.key"));
        let server = MachineConfigServer::start_tls_only(&tls.0, &tls.1, POOL, Arc::new(config));
        for folder in ["full", "pre-approved"] {
            fs::remove_dir_all(gateway.path("pools/worker").join(folder)).unwrap();
        }
        let source = format!(
            "[upstream]\nurl = \"https://{}\"\nca = \"../../tls/mcs-ca.crt\"\nrevalidate_seconds = 86400\n\n[upstream.include]\n{include}\n\n[tpm]",
            server.address()
        );
        gateway.edit_pool(POOL, "[tpm]", &source);
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        Self {
            gateway,
            api,
            server,
            state,
        }
    }

    fn says(&self, state: &'static str) {
        *self.state.lock().unwrap() = state;
    }

    fn wait_for_changes(&self, times: usize) {
        self.gateway.lines(times, |line| line.contains("pool worker: serving a new state"));
    }

    /// Returns the config that a node with a token gets.
    async fn full(&self) -> String {
        let token = support::bearer(&self.gateway.token(&[]));
        String::from_utf8(self.gateway.config("/config/worker", &[&token]).await.body).unwrap()
    }

    async fn pre_approved(&self) -> String {
        String::from_utf8(self.gateway.config("/config/worker", &[]).await.body).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refetches_mcs_configs_after_a_rendered_config_change() {
    let mut cluster = Cluster::new("files = [\"/etc/early\"]");
    cluster.gateway.run();
    assert!(cluster.full().await.contains("data:,one"));
    cluster.says("two");
    cluster.api.put(pool("rendered-worker-2"));
    cluster.wait_for_changes(1);
    assert!(cluster.full().await.contains("data:,two"));
    // Also after the API was away, with what has changed meanwhile.
    cluster.api.disturb(Disturbance::Down);
    cluster
        .gateway
        .line(|line| line.contains("cluster: watch of ") && line.contains(" lost, using cached state"));
    assert!(cluster.full().await.contains("data:,two"));
    let metrics = cluster.gateway.try_command(&["check"]);
    let said = String::from_utf8(metrics.stdout).unwrap();
    assert!(
        said.contains("DEGRADED") && said.contains("cluster: the API does not serve this gateway: "),
        "{said}"
    );
    cluster.says("three");
    cluster.api.put(pool("rendered-worker-3"));
    cluster.api.restart(RestartHistory::Lost);
    cluster.wait_for_changes(2);
    assert!(cluster.full().await.contains("data:,three"));
    cluster
        .gateway
        .line(|line| line.contains("cluster: restored after ") && line.contains("machineconfigpools"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pre_approved_config_comes_from_annotated_machine_configs() {
    let mut cluster = Cluster::new("needed_before_node_approved = true");
    let early = || file("/etc/early", "early");
    cluster.api.put(machine_config("50-early", "worker", true, &[early()]));
    cluster
        .api
        .put(machine_config("50-state", "worker", false, &[file("/etc/state", "one")]));
    cluster.gateway.run();
    let text = cluster.pre_approved().await;
    assert!(text.contains("data:,early") && !text.contains("/etc/state"), "{text}");
    // The commands see what is served.
    let rendered = String::from_utf8(cluster.gateway.rendered(POOL, "pre-approved")).unwrap();
    assert_eq!(rendered, text);
    // Another one is needed from now on.
    cluster
        .api
        .put(machine_config("50-state", "worker", true, &[file("/etc/state", "one")]));
    cluster.wait_for_changes(1);
    assert!(cluster.pre_approved().await.contains("/etc/state"));
    // One that another one overrides is not given away: the last good state is served.
    cluster
        .api
        .put(machine_config("50-state", "worker", true, &[file("/etc/state", "other")]));
    cluster
        .gateway
        .line(|line| line.contains("file \"/etc/state\" of the full config differs") && line.contains("the last good state"));
    assert!(cluster.pre_approved().await.contains("data:,one"));
    // What makes no sense in another pool is of no consequence.
    let mut hostile = machine_config("50-hostile", "infra", true, &[]);
    hostile["spec"]["config"] = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": "x".repeat(4_000_000)}});
    cluster.api.put(hostile);
    cluster.api.put(machine_config("50-state", "worker", false, &[]));
    cluster.wait_for_changes(2);
    assert!(!cluster.pre_approved().await.contains("/etc/state"));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_stage_takes_over_annotated_machine_configs() {
    let mut cluster = Cluster::new(&format!("needed_before_node_approved = true\nfiles = [{ENCAPSULATED:?}]"));
    cluster
        .gateway
        .edit_pool(POOL, "machine_config_daemon = false", "machine_config_daemon = true");
    for (name, needed, path, text) in [("50-early", true, "/etc/early", "early"), ("50-state", false, "/etc/state", "one")] {
        cluster.api.put(machine_config(name, "worker", needed, &[file(path, text)]));
    }
    cluster.gateway.run();
    let object: Value = serde_json::from_str(&cluster.gateway.command(&["second-stage", "render"])).unwrap();
    // What is needed, and nothing of the rest; the image is the full one's.
    let files = object["spec"]["config"]["storage"]["files"].as_array().unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc/early"]);
    assert_eq!(object["spec"]["osImageURL"], "quay.io/os@sha256:1");
    let served = cluster.pre_approved().await;
    let name = object["metadata"]["name"].as_str().unwrap();
    assert!(
        served.contains(name) && served.contains("data:,early") && !served.contains("/etc/state"),
        "{served}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_wait_for_machine_configs_without_the_api() {
    let mut cluster = Cluster::new("needed_before_node_approved = true");
    cluster
        .api
        .put(machine_config("50-early", "worker", true, &[file("/etc/early", "early")]));
    cluster.api.disturb(Disturbance::Down);
    cluster.gateway.run();
    cluster.gateway.config("/config/worker", &[]).await.check_retry();
    assert!(cluster.gateway.config("/config/infra", &[]).await.status.is_success());
    cluster.api.recover();
    cluster.wait_for_changes(1);
    assert!(cluster.pre_approved().await.contains("data:,early"));
    // And then it may be away.
    cluster.api.disturb(Disturbance::Status(500));
    cluster.api.break_watches();
    cluster
        .gateway
        .line(|line| line.contains("cluster: watch of ") && line.contains(" lost, using cached state"));
    assert!(cluster.pre_approved().await.contains("data:,early"));
}

#[tokio::test(flavor = "multi_thread")]
async fn does_not_fetch_rendered_machine_configs() {
    let mut cluster = Cluster::new("needed_before_node_approved = true");
    cluster
        .api
        .put(machine_config("50-early", "worker", true, &[file("/etc/early", "early")]));
    for number in 0..5000 {
        let mut rendered = machine_config(
            &format!("rendered-worker-{number:04}"),
            "worker",
            true,
            &[file("/etc/early", "early")],
        );
        rendered["metadata"]["labels"] = json!({});
        cluster.api.put(rendered);
    }
    cluster.gateway.run();
    assert!(cluster.pre_approved().await.contains("data:,early"));
    cluster.gateway.line(|line| line.contains("listening"));
    let asked = cluster.api.asked();
    let of_configs = || asked.iter().filter(|asked| asked.resource == "machineconfigs");
    assert!(of_configs().all(|asked| asked.query.contains("labelSelector") || asked.name == "50-early" || asked.query.contains("limit=1")));
    assert!(of_configs().count() < 12, "{:?}", of_configs().collect::<Vec<_>>());
    assert!(!cluster.server.requests().is_empty());
}
