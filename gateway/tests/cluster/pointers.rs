//! The pointers of machine sets, while the MCS CA is replaced.

use std::fs;

use cloud_fixtures::kubernetes::{Disturbance, Kubernetes};
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::support::Gateway;
use crate::support::folder::Folder;

const MACHINES: &str = "openshift-machine-api";
const LABEL: &str = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap";

struct Cluster {
    gateway: Gateway,
    api: Kubernetes,
}

fn machine_set(name: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "metadata": {"name": name, "namespace": MACHINES},
        "spec": {"replicas": 3, "template": {"spec": {"providerSpec": {"value": {"userDataSecret": {"name": secret}}}}}},
    })
}

fn secret(name: &str, pointer: &[u8]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": MACHINES, "labels": {"own": "label"}}, "type": "Opaque",
        "data": {"userData": data_encoding::BASE64.encode(pointer), "disableTemplating": "dHJ1ZQo="},
    })
}

impl Cluster {
    /// One machine set of pool worker, with the pointer that the gateway writes, and the rights that are needed for it and no others.
    fn new() -> Self {
        let gateway = Gateway::init();
        let api = Kubernetes::start();
        let rules = json!([
            {"apiGroups": ["machine.openshift.io"], "resources": ["machinesets", "controlplanemachinesets"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"], "resourceNames": ["worker-user-data", "worker-user-data-managed", "other"]},
        ]);
        api.grant(NAMESPACE, "gateway", &rules);
        let kubeconfig = api.kubeconfig(&api.token(NAMESPACE, "gateway"));
        fs::write(gateway.path("kubeconfig"), kubeconfig).unwrap();
        gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false\npointers = true");
        let cluster = Self { gateway, api };
        let pointer = cluster.written();
        cluster.api.put(machine_set("a-worker", "worker-user-data"));
        cluster.api.put(secret("worker-user-data", &pointer));
        cluster
    }

    /// The pointer that the gateway writes now.
    fn written(&self) -> Vec<u8> {
        let url = self.gateway.url("");
        self.gateway
            .command(&["pointer", "--pool", "worker", "--url", &url])
            .trim()
            .as_bytes()
            .to_vec()
    }

    fn pointer(&self, name: &str) -> Value {
        let secret = self.api.get("secrets", MACHINES, name).unwrap();
        let user_data = secret["data"]["userData"].as_str().unwrap();
        serde_json::from_slice(&data_encoding::BASE64.decode(user_data.as_bytes()).unwrap()).unwrap()
    }

    fn is_written(&self, name: &str) -> bool {
        let written: Value = serde_json::from_slice(&self.written()).unwrap();
        self.pointer(name) == written
    }

    /// What a command says, on both outputs, and whether it succeeds.
    fn said(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.gateway.try_command(arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_of_a_rotation_reaches_the_machine_sets() {
    let mut cluster = Cluster::new();
    cluster.gateway.command(&["ca", "introduce"]);
    // No gateway has written it yet: the switch would lock its machines out.
    let (_, status) = cluster.said(&["ca", "status"]);
    assert!(
        status.contains("MachineSet a-worker") && status.contains("to be written"),
        "{status}"
    );
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(
        !done && said.contains("not safe: machine sets") && said.contains("a-worker"),
        "{said}"
    );
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("worker-user-data: its pointer carries the CAs"));
    assert!(cluster.is_written("worker-user-data"));
    let kept = cluster.api.get("secrets", MACHINES, "worker-user-data").unwrap();
    assert_eq!(kept["metadata"]["labels"], json!({"own": "label", LABEL: ""}));
    assert_eq!(kept["data"]["disableTemplating"], "dHJ1ZQo=");
    cluster.gateway.command(&["ca", "switch"]);
    cluster.gateway.command(&["ca", "retire"]);
    // A gateway that starts looks at once; one that serves, within a minute.
    cluster.gateway.kill();
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("worker-user-data: its pointer carries the CAs"));
    assert!(cluster.is_written("worker-user-data"));
    let mut state = Folder::watched(&cluster.gateway.path("state"));
    let recorded = || {
        fs::read_to_string(cluster.gateway.path("state/attestation.jsonl"))
            .unwrap()
            .matches("\"pointer.renew\"")
            .count()
    };
    state.comes_to("both are recorded", || recorded() == 2).await;
    cluster.gateway.command(&["audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_gateways_is_left_and_said_once() {
    let mut cluster = Cluster::new();
    let other =
        json!({"ignition": {"version": "3.2.0", "config": {"merge": [{"source": "https://other.example.com:22623/config/worker"}]}}});
    cluster.api.put(machine_set("b-other", "other"));
    cluster.api.put(secret("other", other.to_string().as_bytes()));
    cluster.api.put(machine_set("c-managed", "worker-user-data-managed"));
    cluster.api.put(secret("worker-user-data-managed", &cluster.written()));
    cluster.api.put(machine_set("d-missing", "worker-user-data"));
    cluster.gateway.command(&["ca", "introduce"]);
    let managed = cluster.pointer("worker-user-data-managed");
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("/other: its pointer is left as it is: it leads to a host"));
    cluster
        .gateway
        .line(|line| line.contains("/worker-user-data-managed: its pointer is left") && line.contains("Operator writes it"));
    cluster
        .gateway
        .line(|line| line.contains("worker-user-data: its pointer carries the CAs"));
    assert_eq!(
        (cluster.pointer("other"), cluster.pointer("worker-user-data-managed")),
        (other, managed)
    );
    // The operator's own lacks the newest CA, and is in the way; the other one leads elsewhere.
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(
        !done && said.contains("c-managed") && !said.contains("b-other") && !said.contains("a-worker"),
        "{said}"
    );
    let writes = cluster.api.asked().iter().filter(|asked| asked.verb == "patch").count();
    assert_eq!(writes, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_nothing_is_known_and_the_gateway_serves() {
    let mut cluster = Cluster::new();
    cluster.gateway.command(&["ca", "introduce"]);
    cluster.api.disturb(Disturbance::Status(500));
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("the pointers of machine sets cannot be looked at"));
    assert!(cluster.gateway.config("/config/infra", &[]).await.status.is_success());
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(!done && said.contains("as nobody knows"), "{said}");
    let (done, status) = cluster.said(&["ca", "status"]);
    assert!(done && status.contains("machine sets: "), "{status}");
    cluster.gateway.command(&["ca", "switch", "--force"]);
}
