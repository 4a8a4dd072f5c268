//! The pointers of machine sets, while the MCS CA is replaced.

use std::fs;

use attest_certificates::Certificate;
use attest_pointers::PointerOptions;
use attest_store::{Embedded, Store};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::controller::Controller;

const NAMESPACE: &str = "attest-gateway";
const ACCOUNT: &str = "attest-controller";
const MACHINES: &str = "openshift-machine-api";
const LABEL: &str = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap";
const HOST: &str = "api-int.example.com";
const SETTINGS: &str = "[pointers]\nenabled = true\nauthorities = \"mcs-ca.crt\"\ncertificate = \"mcs.crt\"";

/// A CA of the gateway, and the certificate that it has signed.
struct Authority {
    certificate: Certificate,
    signed: Certificate,
}

impl Authority {
    fn new(name: &str) -> Self {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let mut leaf = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let parse = |certificate: &rcgen::Certificate| Certificate::parse(certificate.der().clone()).unwrap();
        Self {
            certificate: parse(&ca.self_signed(&ca_key).unwrap()),
            signed: parse(&leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key)).unwrap()),
        }
    }
}

struct Cluster {
    controller: Controller,
    api: KubernetesApi,
    store: Embedded,
    old: Authority,
    new: Authority,
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
    /// Starts a cluster with one machine set of pool worker, with the pointer that the gateway writes, and exactly the necessary rights.
    /// The rotation is settled.
    fn new() -> Self {
        let api = KubernetesApi::start();
        let rules = json!([
            {"apiGroups": ["machine.openshift.io"], "resources": ["machinesets", "controlplanemachinesets"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"], "resourceNames": ["worker-user-data", "worker-user-data-managed", "other", "compressed"]},
        ]);
        api.grant(NAMESPACE, ACCOUNT, &rules);
        let controller = Controller::new(&api.kubeconfig(&api.token(NAMESPACE, ACCOUNT)), SETTINGS);
        let store = Embedded::open(&controller.path("state/gateway.db")).unwrap();
        let cluster = Self {
            controller,
            api,
            store,
            old: Authority::new("old"),
            new: Authority::new("new"),
        };
        cluster.serve(&[&cluster.old], &cluster.old);
        let pointer = cluster.written(&[&cluster.old]);
        cluster.api.put(machine_set("a-worker", "worker-user-data"));
        cluster.api.put(secret("worker-user-data", &pointer));
        cluster
    }

    /// Writes the gateway's public files: the CAs that pointers carry, and the certificate that one of them has signed.
    fn serve(&self, authorities: &[&Authority], signs: &Authority) {
        let bundle: String = authorities.iter().map(|authority| authority.certificate.pem()).collect();
        fs::write(self.controller.path("mcs-ca.crt"), bundle).unwrap();
        fs::write(self.controller.path("mcs.crt"), signs.signed.pem()).unwrap();
    }

    /// The first step of a rotation.
    fn introduce(&self) {
        self.serve(&[&self.old, &self.new], &self.old);
    }

    /// The pointer that the gateway writes for these CAs.
    fn written(&self, authorities: &[&Authority]) -> Vec<u8> {
        let authorities: Vec<Certificate> = authorities.iter().map(|authority| authority.certificate.clone()).collect();
        let pointer = PointerOptions {
            base: &format!("https://{HOST}:22623").parse().unwrap(),
            pool: "worker",
            authorities: &authorities,
            token: None,
        };
        pointer.render().unwrap().to_string().into_bytes()
    }

    fn both(&self) -> Vec<u8> {
        self.written(&[&self.old, &self.new])
    }

    fn pointer(&self, name: &str) -> Value {
        let secret = self.api.get("secrets", MACHINES, name).unwrap();
        let user_data = secret["data"]["userData"].as_str().unwrap();
        serde_json::from_slice(&data_encoding::BASE64.decode(user_data.as_bytes()).unwrap()).unwrap()
    }

    fn is(&self, name: &str, written: &[u8]) -> bool {
        self.pointer(name) == serde_json::from_slice::<Value>(written).unwrap()
    }

    /// Returns the table of the command, and the complaint with which it fails, if it does.
    fn report(&self) -> (String, Option<String>) {
        let output = self.controller.output("pointer list");
        let [table, complaint] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (table, (!output.status.success()).then_some(complaint))
    }

    /// Returns the machine sets that are in the way of a switch to the newest CA; fails without any.
    #[track_caller]
    fn in_the_way(&self) -> String {
        let (_, complaint) = self.report();
        complaint.unwrap()
    }

    #[track_caller]
    fn nothing_is_in_the_way(&self) {
        assert_eq!(self.report().1, None);
    }

    /// Waits until the pointer of machine set a-worker is written.
    fn wait_written(&self) {
        self.controller
            .line(|line| line.contains("worker-user-data: pointer renewed with the current CAs"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ca_rotation_step_updates_the_machine_sets() {
    let mut cluster = Cluster::new();
    cluster.nothing_is_in_the_way();
    cluster.introduce();
    // Nobody has written it yet: the switch would lock its machines out.
    let (table, complaint) = cluster.report();
    assert!(table.contains("MachineSet a-worker") && table.contains("to be written"), "{table}");
    let complaint = complaint.unwrap();
    assert!(complaint.contains("lack the CA") && complaint.contains("a-worker"), "{complaint}");
    cluster.controller.run();
    cluster.wait_written();
    assert!(cluster.is("worker-user-data", &cluster.both()));
    let kept = cluster.api.get("secrets", MACHINES, "worker-user-data").unwrap();
    assert_eq!(kept["metadata"]["labels"], json!({"own": "label", LABEL: ""}));
    assert_eq!(kept["data"]["disableTemplating"], "dHJ1ZQo=");
    cluster.nothing_is_in_the_way();
    // The second step, and the third. A controller that starts looks at once; one that runs, within a minute.
    cluster.controller.kill();
    cluster.serve(&[&cluster.new], &cluster.new);
    cluster.controller.run();
    cluster.wait_written();
    assert!(cluster.is("worker-user-data", &cluster.written(&[&cluster.new])));
    // A gateway records both: each is in the store before the log says that the pointer is written.
    let waiting = cluster.store.outbox(None, 100).await.unwrap();
    let acts: Vec<Value> = waiting.iter().map(|entry| serde_json::from_str(&entry.value).unwrap()).collect();
    for act in &acts {
        assert_eq!(act["verb"], "pointer.renew");
        assert!(act["by"]["controller"].is_string(), "{act}");
        assert_eq!(act["things"][0]["id"], format!("{MACHINES}/worker-user-data"));
    }
    assert_eq!(acts.len(), 2);
    assert_eq!(acts[0]["things"][0]["after"], acts[1]["things"][0]["before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pointer_list_json_names_each_machine_set() {
    let cluster = Cluster::new();
    cluster.introduce();
    let output = cluster.controller.output("pointer list --output json");
    assert!(!output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let newest = cluster.new.certificate.fingerprint.short();
    assert_eq!(report["newest"], newest);
    let set = &report["machine_sets"][0];
    let (kind, name, secret) = (&set["kind"], &set["name"], &set["secret"]);
    assert_eq!(
        (kind, name, secret),
        (&json!("MachineSet"), &json!("a-worker"), &json!("worker-user-data"))
    );
    assert_eq!((&set["state"], &set["lacks_newest"]), (&json!("behind"), &json!(true)));
    assert_eq!(set["authorities"], json!([cluster.old.certificate.fingerprint.short()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pointers_are_unchanged_and_logged_once() {
    let mut cluster = Cluster::new();
    let other =
        json!({"ignition": {"version": "3.2.0", "config": {"merge": [{"source": "https://other.example.com:22623/config/worker"}]}}});
    cluster.api.put(machine_set("b-other", "other"));
    cluster.api.put(secret("other", other.to_string().as_bytes()));
    // Ignition reads such a CA, and whether it is ours is not known here.
    let mut compressed: Value = serde_json::from_slice(&cluster.written(&[&cluster.old])).unwrap();
    compressed["ignition"]["security"]["tls"]["certificateAuthorities"][0]["compression"] = json!("gzip");
    cluster.api.put(machine_set("e-compressed", "compressed"));
    cluster.api.put(secret("compressed", compressed.to_string().as_bytes()));
    cluster.api.put(machine_set("c-managed", "worker-user-data-managed"));
    cluster
        .api
        .put(secret("worker-user-data-managed", &cluster.written(&[&cluster.old])));
    cluster.api.put(machine_set("d-missing", "worker-user-data"));
    cluster.introduce();
    let managed = cluster.pointer("worker-user-data-managed");
    cluster.controller.run();
    cluster
        .controller
        .line(|line| line.contains("/other: pointer left unchanged: it leads to a host"));
    cluster
        .controller
        .line(|line| line.contains("/worker-user-data-managed: pointer left") && line.contains("Operator writes this Secret"));
    cluster
        .controller
        .line(|line| line.contains("/compressed: pointer not renewed: a CA in it cannot be used"));
    cluster.wait_written();
    assert_eq!(
        (cluster.pointer("other"), cluster.pointer("worker-user-data-managed")),
        (other, managed)
    );
    // The operator's own lacks the newest CA, and is in the way; the other one leads elsewhere.
    let said = cluster.in_the_way();
    assert!(
        said.contains("c-managed") && said.contains("e-compressed") && !said.contains("b-other") && !said.contains("a-worker"),
        "{said}"
    );
    let writes = cluster.api.asked().iter().filter(|asked| asked.verb == "patch").count();
    assert_eq!(writes, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn pointer_report_fails_without_the_api() {
    let mut cluster = Cluster::new();
    cluster.introduce();
    cluster.api.disturb(Disturbance::Status(500));
    cluster.controller.run();
    cluster
        .controller
        .line(|line| line.contains("cannot check the pointers of machine sets"));
    let (table, complaint) = cluster.report();
    assert!(table.is_empty() && complaint.unwrap().contains("cluster: "), "{table}");
    // A namespace with a typing error has none, too.
    cluster.api.recover();
    cluster.api.remove("machinesets", MACHINES, "a-worker");
    assert!(cluster.in_the_way().contains("has no machine sets"));
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_no_pointer_without_the_gateway_certificate() {
    let mut cluster = Cluster::new();
    cluster.introduce();
    fs::remove_file(cluster.controller.path("mcs.crt")).unwrap();
    cluster.controller.run();
    let said = cluster
        .controller
        .line(|line| line.contains("cannot check the pointers of machine sets"));
    assert!(said.contains("mcs.crt"), "{said}");
    assert!(cluster.in_the_way().contains("mcs.crt"));
    assert!(cluster.is("worker-user-data", &cluster.written(&[&cluster.old])));
    let checked = String::from_utf8(cluster.controller.output("check").stdout).unwrap();
    assert!(checked.contains("DEGRADED pointers: ") && checked.contains("mcs.crt"), "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_of_another_ca_changes_no_pointer() {
    let mut cluster = Cluster::new();
    // Whoever replaces one of the files with another gateway's does not redirect machines.
    cluster.serve(&[&cluster.old, &cluster.new], &Authority::new("other"));
    cluster.controller.run();
    cluster
        .controller
        .line(|line| line.contains("worker-user-data: pointer left unchanged: it leads to a host"));
    cluster.serve(&[&cluster.new], &cluster.new);
    cluster.controller.kill();
    cluster.controller.run();
    cluster
        .controller
        .line(|line| line.contains("worker-user-data: pointer left unchanged: it carries no CA"));
    assert!(cluster.is("worker-user-data", &cluster.written(&[&cluster.old])));
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_controller_writes_no_pointers() {
    let mut cluster = Cluster::new();
    cluster.introduce();
    cluster.controller.settings(&SETTINGS.replace("enabled = true", "enabled = false"));
    cluster.controller.run();
    cluster.controller.line(|line| line.contains("this controller does nothing"));
    assert!(cluster.api.asked().iter().all(|asked| asked.resource != "secrets"));
    // It can be asked all the same.
    assert!(cluster.in_the_way().contains("a-worker"));
}

fn with_spec(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "metadata": {"name": name, "namespace": MACHINES},
        "spec": {"replicas": 2, "template": {"spec": {"providerSpec": {"value": spec}}}},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_secret_is_reported_and_others_are_renewed() {
    let mut cluster = Cluster::new();
    // Its name comes before the others', and the role does not have it.
    cluster.api.put(machine_set("b-infra", "infra-user-data"));
    cluster.api.put(secret("infra-user-data", &cluster.written(&[&cluster.old])));
    cluster.introduce();
    cluster.controller.run();
    cluster.wait_written();
    let said = cluster
        .controller
        .line(|line| line.contains("infra-user-data: pointer not renewed: 403 "));
    assert!(said.contains("add infra-user-data to resourceNames"), "{said}");
    assert!(cluster.is("worker-user-data", &cluster.both()) && !cluster.is("infra-user-data", &cluster.both()));
    let said = cluster.in_the_way();
    assert!(said.contains("MachineSet b-infra") && !said.contains("a-worker"), "{said}");
    let (table, _) = cluster.report();
    let row = table.lines().find(|line| line.contains("b-infra")).unwrap();
    assert!(row.contains("403 ") && !row.contains("Status {") && row.len() < 500, "{row}");
    // And `check` says so before.
    let checked = String::from_utf8(cluster.controller.output("check").stdout).unwrap();
    assert!(
        checked.contains("DEGRADED ") && checked.contains("\"infra-user-data\" is forbidden"),
        "{checked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn renews_pointers_of_bare_metal_machine_sets() {
    let cluster = Cluster::new();
    let spec = json!({
        "apiVersion": "baremetal.cluster.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec", "hostSelector": {},
        "image": {"url": "http://172.22.0.3:6181/images/rhcos.qcow2", "checksum": "http://172.22.0.3:6181/images/rhcos.qcow2.sha256"},
        "userData": {"name": "worker-user-data-managed", "namespace": MACHINES},
    });
    cluster.api.remove("machinesets", MACHINES, "a-worker");
    cluster.api.put(with_spec("metal-worker-0", &spec));
    cluster
        .api
        .put(secret("worker-user-data-managed", &cluster.written(&[&cluster.old])));
    cluster.introduce();
    assert!(cluster.in_the_way().contains("MachineSet metal-worker-0"));
    assert!(cluster.report().0.contains("worker-user-data-managed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_machine_sets_are_named_and_block_rotation() {
    let mut cluster = Cluster::new();
    cluster.introduce();
    cluster.controller.run();
    cluster.wait_written();
    cluster.controller.kill();
    for (spec, why) in [
        (json!({"kind": "OtherProviderSpec", "bootstrap": "b"}), "(OtherProviderSpec)"),
        (
            json!({"kind": "BareMetalMachineProviderSpec", "userData": {"name": "a", "namespace": "metal"}}),
            "is in namespace metal",
        ),
        (Value::Null, "(no kind)"),
    ] {
        cluster.api.put(with_spec("z-other", &spec));
        assert!(cluster.in_the_way().contains("MachineSet z-other"));
        let (table, _) = cluster.report();
        assert!(table.contains(why), "{table}");
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
    assert!(cluster.in_the_way().contains("ControlPlaneMachineSet cluster"));
    assert!(cluster.report().0.contains("master-user-data"));
    cluster.api.remove("controlplanemachinesets", MACHINES, "cluster");
    cluster.nothing_is_in_the_way();
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_sets_beyond_one_page_are_read() {
    let cluster = Cluster::new();
    cluster.introduce();
    for number in 0..60 {
        cluster.api.put(machine_set(&format!("w-{number:02}"), "worker-user-data"));
    }
    let (table, _) = cluster.report();
    assert!(table.contains("w-00 ") && table.contains("w-59 "), "{table}");
    let said = cluster.in_the_way();
    assert!(said.contains("MachineSet w-00") && said.contains("MachineSet w-59"), "{said}");
}
