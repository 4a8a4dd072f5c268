//! A cluster whose CSRs are approved: the controller next to a gateway, and who signs what it has approved.
use std::path::Path;
use std::time::Duration;

use cloud_fixtures::kubernetes::KubernetesApi;
use data_encoding::BASE64;
use serde_json::{Value, json};
use swtpm_tests::{Process, Programs, TestCluster, TestGateway};

pub const CSRS: &str = "certificatesigningrequests";
/// Settings of the gateway: nodes attest the keys of their kubelets.
pub const SETTINGS: &str = "[approval]\npools = [\"worker\"]\n";

/// Starts a controller on this gateway's store. Without Machine objects, a node has the name that its TPM has requested, and the key that
/// its TPM has signed.
pub fn controller(gateway: &TestGateway, api: &KubernetesApi, log: &Path) -> Process {
    let folder = gateway.folder();
    std::fs::write(folder.join("kubeconfig"), api.kubeconfig(api.admin())).unwrap();
    let approval = "[approval]\nenabled = true\nmachine_objects = false\nasked_names = true\n";
    let settings = format!("listen = \"127.0.0.1:0\"\n[cluster]\napi = \"kubeconfig\"\n{approval}");
    std::fs::write(folder.join("controller.toml"), settings).unwrap();
    let words = [
        "--config".to_owned(),
        folder.join("controller.toml").display().to_string(),
        "serve".to_owned(),
    ];
    Process::spawn(&Programs::build().unwrap().controller, words, log, None).unwrap()
}

/// Returns the kubeconfig with which new nodes submit their CSRs.
pub fn bootstrap_kubeconfig(api: &KubernetesApi) -> String {
    let (namespace, name) = ("openshift-machine-config-operator", "node-bootstrapper");
    let may = json!([{"apiGroups": ["certificates.k8s.io"], "resources": [CSRS], "verbs": ["create", "get", "list", "watch"]}]);
    api.grant(namespace, name, &may);
    api.kubeconfig(&api.token(namespace, name))
}

/// Waits for a CSR that meets this condition.
pub fn wait(api: &KubernetesApi, limit: Duration, holds: impl Fn(&Value) -> bool) -> Value {
    let found = api.wait_for(limit, || api.all(CSRS).into_iter().find(&holds));
    found.unwrap_or_else(|| panic!("{:?} {:?}", api.all(CSRS), api.all("events")))
}

/// Waits for an approved CSR, and signs it like kube-controller-manager. Returns its name.
pub fn sign_approved(cluster: &TestCluster, api: &KubernetesApi, limit: Duration) -> String {
    let mut csr = wait(api, limit, |csr| csr["status"]["conditions"][0]["type"] == "Approved");
    let request = BASE64.decode(csr["spec"]["request"].as_str().unwrap().as_bytes()).unwrap();
    let certificate = cluster.sign(std::str::from_utf8(&request).unwrap()).unwrap();
    csr["status"]["certificate"] = json!(BASE64.encode(certificate.as_bytes()));
    let name = csr["metadata"]["name"].as_str().unwrap().to_owned();
    api.put(csr);
    name
}
