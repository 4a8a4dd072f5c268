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

fn with_spec(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "metadata": {"name": name, "namespace": MACHINES},
        "spec": {"replicas": 2, "template": {"spec": {"providerSpec": {"value": spec}}}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_may_not_be_read_or_written_stops_no_other_and_is_named() {
    let mut cluster = Cluster::new();
    // Its name comes before the others', and the role does not have it.
    cluster.api.put(machine_set("b-infra", "infra-user-data"));
    cluster.api.put(secret("infra-user-data", &cluster.written()));
    cluster.gateway.command(&["ca", "introduce"]);
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("worker-user-data: its pointer carries the CAs"));
    let said = cluster
        .gateway
        .line(|line| line.contains("infra-user-data: its pointer is not renewed: 403 "));
    assert!(said.contains("add infra-user-data to resourceNames"), "{said}");
    assert!(cluster.is_written("worker-user-data") && !cluster.is_written("infra-user-data"));
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(!done && said.contains("MachineSet b-infra") && !said.contains("a-worker"), "{said}");
    let (_, status) = cluster.said(&["ca", "status"]);
    let row = status.lines().find(|line| line.contains("b-infra")).unwrap();
    assert!(row.contains("403 ") && !row.contains("Status {") && row.len() < 500, "{row}");
    // And `check` says so before.
    let (_, checked) = cluster.said(&["check"]);
    assert!(
        checked.contains("DEGRADED") && checked.contains("\"infra-user-data\" is forbidden"),
        "{checked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_sets_of_bare_metal_are_not_passed_over() {
    let cluster = Cluster::new();
    let spec = json!({
        "apiVersion": "baremetal.cluster.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec", "hostSelector": {},
        "image": {"url": "http://172.22.0.3:6181/images/rhcos.qcow2", "checksum": "http://172.22.0.3:6181/images/rhcos.qcow2.sha256"},
        "userData": {"name": "worker-user-data-managed", "namespace": MACHINES},
    });
    cluster.api.remove("machinesets", MACHINES, "a-worker");
    cluster.api.put(with_spec("metal-worker-0", &spec));
    cluster.api.put(secret("worker-user-data-managed", &cluster.written()));
    cluster.gateway.command(&["ca", "introduce"]);
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(
        !done && said.contains("MachineSet metal-worker-0") && said.contains("worker-user-data-managed"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_sets_that_cannot_be_looked_at_are_named_and_count_as_not_safe() {
    let mut cluster = Cluster::new();
    cluster.gateway.command(&["ca", "introduce"]);
    cluster.gateway.run();
    cluster
        .gateway
        .line(|line| line.contains("worker-user-data: its pointer carries the CAs"));
    cluster.gateway.kill();
    for (spec, why) in [
        (json!({"kind": "OtherProviderSpec", "bootstrap": "b"}), "(OtherProviderSpec)"),
        (
            json!({"kind": "BareMetalMachineProviderSpec", "userData": {"name": "a", "namespace": "metal"}}),
            "is in namespace metal",
        ),
        (Value::Null, "(no kind)"),
    ] {
        cluster.api.put(with_spec("z-other", &spec));
        let (done, said) = cluster.said(&["ca", "switch"]);
        assert!(!done && said.contains("MachineSet z-other") && said.contains(why), "{said}");
        let (_, status) = cluster.said(&["ca", "status"]);
        assert!(status.contains(why), "{status}");
    }
    cluster.api.remove("machinesets", MACHINES, "z-other");
    let control_plane = json!({
        "apiVersion": "machine.openshift.io/v1", "kind": "ControlPlaneMachineSet", "metadata": {"name": "cluster", "namespace": MACHINES},
        "spec": {"replicas": 3, "template": {
            "machineType": "machines_v1beta1_machine_openshift_io",
            "machines_v1beta1_machine_openshift_io": {"spec": {"providerSpec": {"value": {"userDataSecret": {"name": "master-user-data"}}}}},
        }},
    });
    cluster.api.put(control_plane);
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(
        !done && said.contains("ControlPlaneMachineSet cluster") && said.contains("master-user-data"),
        "{said}"
    );
    cluster.api.remove("controlplanemachinesets", MACHINES, "cluster");
    cluster.gateway.command(&["ca", "switch"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_machine_sets_than_a_page_has_are_looked_at() {
    let cluster = Cluster::new();
    cluster.gateway.command(&["ca", "introduce"]);
    for number in 0..60 {
        cluster.api.put(machine_set(&format!("w-{number:02}"), "worker-user-data"));
    }
    let (done, said) = cluster.said(&["ca", "switch"]);
    assert!(!done && said.contains("w-00 ") && said.contains("w-59 "), "{said}");
}
