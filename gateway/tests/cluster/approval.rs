//! A gateway to which machines attest, and `attest-controller` with the same store: what each does for the other. What is approved is tested with the
//! controller, in `gateway/controller/tests`.

use std::fs;

use crate::support::pending::{evidence, is_recorded_late};
use attest::{NodeIdentity, SpkiSha256, purpose};
use attest_controller::settings::ControllerSettings;
use attest_machines::attested::{self, AttestedMachine};
use attest_store::{Embedded, EntryKind, Store as _, StoreError, Transact as _};
use attest_system::clock::Clock;
use cloud_fixtures::kubernetes::KubernetesApi;
use cloud_fixtures::port::ReservedPort;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use serde_json::{Value, json};

use super::{NAMESPACE, shown};
use crate::support::{Case, Gateway, tpm};

const CSRS: &str = "certificatesigningrequests";
const NODE: &str = "worker-1";
/// Settings of a gateway that approves its machines' CSRs.
const APPROVED: &str = "[approval]\npools = [\"worker\"]\n";
/// The same settings for machines that attest no key.
const WITHOUT_KEYS: &str = "[approval]\npools = [\"worker\"]\nkubelet_keys = false\n";

/// Returns the controller's rights according to the document.
fn rights() -> Vec<Value> {
    let document = include_str!("../../../docs/how-to/approve-csrs.md");
    let blocks = document.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.into_iter().find(|block| block.contains("kind: ClusterRole\n")).unwrap();
    block.split("---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

struct Site {
    api: KubernetesApi,
    gateway: Gateway,
    _port: ReservedPort,
}

impl Site {
    /// Starts a gateway with these settings, and a controller of its store with these, in this process.
    async fn start(settings: &str, approval: &str) -> Self {
        let api = KubernetesApi::start();
        rights().into_iter().for_each(|object| api.put(object));
        for name in [NODE, "worker-2"] {
            api.put(machine(name));
        }
        let mut gateway = Gateway::init();
        gateway.settings(settings);
        gateway.edit_pool("worker", "nothing = \"pre-approved\"", "nothing = \"refuse\"");
        gateway.edit_pool("infra", "nothing = \"pre-approved\"", "nothing = \"refuse\"");
        gateway.run();
        let port = ReservedPort::reserve();
        fs::write(
            gateway.path("kubeconfig"),
            api.kubeconfig(&api.token(NAMESPACE, "attest-controller")),
        )
        .unwrap();
        let text = format!(
            "listen = \"{}\"\n[cluster]\napi = \"kubeconfig\"\n[approval]\nenabled = true\n{approval}",
            port.address()
        );
        let settings = ControllerSettings::parse(&text, &gateway.path("controller.toml")).unwrap();
        // Until this process ends.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(attest_controller::run(settings, Clock::System, std::future::pending()))
        });
        Self { api, gateway, _port: port }
    }

    /// Submits a kubelet's first CSR, for this key.
    fn asks(&self, name: &str, node: &str, key: &KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        let request = params.serialize_request(key).unwrap().pem().unwrap();
        let account = "openshift-machine-config-operator";
        self.api.put(json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {
                "request": data_encoding::BASE64.encode(request.as_bytes()),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
                "username": format!("system:serviceaccount:{account}:node-bootstrapper"),
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{account}"), "system:authenticated"],
            },
        }));
    }

    fn is_approved(&self, csr: &str) -> bool {
        self.api.get(CSRS, "", csr).unwrap()["status"]["conditions"][0]["type"] == "Approved"
    }

    async fn wait_approved(&self, csr: &str) {
        shown(&self.api, &format!("{csr} is approved"), || self.is_approved(csr)).await;
    }
}

fn machine(name: &str) -> Value {
    let addresses = json!([{"type": "InternalDNS", "address": name}, {"type": "Hostname", "address": name}]);
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
        "metadata": {"name": name, "namespace": "openshift-machine-api", "labels": {"machine.openshift.io/cluster-api-machine-role": "worker"}},
        "spec": {"providerID": "baremetalhost:///openshift-machine-api/host/1"}, "status": {"addresses": addresses, "nodeRef": null},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn approves_the_csr_of_an_attested_kubelet_key() {
    let site = Site::start(APPROVED, "").await;
    let key = KeyPair::generate().unwrap();
    let digest = SpkiSha256::from_spki(&key.subject_public_key_info());
    let case = tpm().but(|case| case.purpose = purpose::with_kubelet_key(&digest));
    site.gateway.endorse(&case, &["--name", NODE]);
    site.asks("anothers", NODE, &KeyPair::generate().unwrap());
    site.gateway.attest(case, None).await.ticket();
    assert_eq!(site.gateway.records()[0]["claims"]["kubelet_key_sha256"], digest.to_string());
    site.asks("own", NODE, &key);
    site.wait_approved("own").await;
    assert!(!site.is_approved("anothers"));
    let acts = site.gateway.wait_for_acts(1, "csr.approve");
    assert!(acts[0]["admin"]["by"]["controller"].is_string(), "{acts:?}");
    let after = &acts[0]["admin"]["things"][0]["after"];
    assert_eq!((&after["csr"], &after["key_sha256"]), (&json!("own"), &json!(digest.to_string())));
    assert_eq!(after["attestation"], site.gateway.records()[0]["id"]);
    site.gateway.command(&["log", "audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attested_nodes_are_known_after_a_kill() {
    let mut site = Site::start(WITHOUT_KEYS, "keys = \"any\"\n").await;
    let recorded = tpm();
    site.gateway.endorse(&recorded, &["--name", NODE]);
    site.gateway.attest(crate::support::next_boot(&recorded), None).await.ticket();
    let unrecorded = tpm();
    site.gateway.endorse(&unrecorded, &["--name", "worker-2"]);
    let at = site.gateway.records()[0]["at"].as_u64().unwrap();
    site.gateway.kill();
    // As it is when it is killed before anything of the store is settled: with the line in the log, and before that.
    let store = Embedded::open(&site.gateway.path("state/gateway.db")).unwrap();
    let (identity, attested) = attested::list(&store).await.unwrap().pop().unwrap();
    assert!(store.remove(EntryKind::Attested, &identity).await.unwrap());
    let decided = async |case: &Case, attested: AttestedMachine, at: u64| {
        let ek = crate::support::digest(case).parse().unwrap();
        let decided = evidence(&attested.decision, at, ek);
        let id = attested.decision.clone();
        let written = store.decide(&id, move |transaction| {
            attested::note(transaction, &NodeIdentity::from_ek(ek), &attested)?;
            transaction.decide(decided.clone())
        });
        let written: Result<(), StoreError> = written.await;
        written.unwrap();
    };
    decided(&recorded, attested.clone(), at).await;
    let unanswered = "ab".repeat(16);
    let never = AttestedMachine {
        name: Some("worker-2".to_owned()),
        decision: unanswered.clone(),
        ..attested
    };
    decided(&unrecorded, never, at + 5).await;
    drop(store);
    site.gateway.run();
    let late: Vec<_> = site
        .gateway
        .records()
        .into_iter()
        .filter(|record| record["id"] == unanswered)
        .collect();
    assert_eq!(late.len(), 1, "{late:?}");
    is_recorded_late(&late[0], "unanswered");
    // Both have attested, whatever the node was told: their kubelets ask with what they have.
    site.asks("csr-1", NODE, &KeyPair::generate().unwrap());
    site.asks("csr-2", "worker-2", &KeyPair::generate().unwrap());
    site.wait_approved("csr-1").await;
    site.wait_approved("csr-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_no_attested_nodes_without_approval_pools() {
    let site = Site::start("", "").await;
    let case = tpm();
    site.gateway.endorse(&case, &["--name", NODE]);
    site.gateway.attest(case, None).await.ticket();
    let store = Embedded::open(&site.gateway.path("state/gateway.db")).unwrap();
    assert!(attested::list(&store).await.unwrap().is_empty());
}

/// Returns whether discovery asks a node of this pool for the key of its kubelet.
async fn asks_for_key(gateway: &Gateway, pool: &str) -> bool {
    let url = gateway.url(&format!("/v1/attest?pool={pool}"));
    let answer = crate::support::Answer::send(gateway.client.get(url)).await;
    serde_json::from_slice::<Value>(&answer.body).unwrap()["kubelet_key"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_nodes_of_approved_pools_for_their_key() {
    let start = |settings: &str| {
        let mut gateway = Gateway::init();
        gateway.settings(settings);
        gateway.run();
        gateway
    };
    let gateway = start(APPROVED);
    assert!(asks_for_key(&gateway, "worker").await && !asks_for_key(&gateway, "infra").await);
    assert!(!asks_for_key(&start(WITHOUT_KEYS), "worker").await);
}

/// Makes pool worker give the bootstrap credential to unauthenticated clients.
fn give_credential(gateway: &Gateway) {
    const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
    let kubeconfig = "kind: Config\nclusters:\n- name: local\n  cluster: {server: \"https://api:6443\"}\nusers:\n- name: kubelet\n  user:\n    token: abcdef.0123456789abcdef\n";
    let source = format!("data:;base64,{}", data_encoding::BASE64.encode(kubeconfig.as_bytes()));
    let file = json!({"path": KUBECONFIG, "mode": 420, "contents": {"source": source}});
    let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [file]}});
    let pool = gateway.path("pools/worker");
    fs::write(pool.join("pre-approved/kubeconfig.ign"), config.to_string()).unwrap();
    let found = gateway.try_command(&["check"]);
    let said = String::from_utf8_lossy(&[found.stdout, found.stderr].concat()).into_owned();
    // As the refusal names them.
    let findings = ["kubeconfig-credential", "token", "password"].map(|kind| format!("{kind} {KUBECONFIG}"));
    let findings: Vec<String> = findings.into_iter().filter(|finding| said.contains(finding)).collect();
    gateway.edit_pool("worker", "acknowledged = []", &format!("acknowledged = {findings:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_refuses_unattested_keys_where_anybody_gets_the_credential() {
    let gateway = Gateway::init();
    gateway.settings(WITHOUT_KEYS);
    gateway.command(&["check"]);
    give_credential(&gateway);
    for command in ["check", "serve"] {
        let output = gateway.try_command(&[command]);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            !output.status.success() && said.contains("approval.kubelet_keys is false, and pool worker gives"),
            "{command}: {said}"
        );
    }
    gateway.edit_pool("worker", "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    gateway.command(&["check"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_an_unknown_approval_pool() {
    let gateway = Gateway::init();
    gateway.settings("[approval]\npools = [\"worker\", \"wroker\"]\n");
    let said = gateway.command(&["check"]);
    assert!(
        said.contains("approval.pools names pool wroker") && !said.contains("names pool worker"),
        "{said}"
    );
}
