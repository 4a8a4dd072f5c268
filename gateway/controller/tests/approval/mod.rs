//! Tests for the approval of kubelets' CSRs, with an API and a store in which machines have attested. They cover approved CSRs, and the
//! events of the others.

mod credential;
mod flood;
mod leader;
mod operation;
mod outage;
mod serving;

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use attest::{EkDigest, NodeIdentity, SpkiSha256};
use attest_machines::attested::AttestedMachine;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::revocations;
use attest_store::{Embedded, EntryKind, Store, StoreEntry};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use serde_json::{Value, json};

use crate::controller::{Controller, LIMIT};

const CSRS: &str = "certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const BOOTSTRAPPER: (&str, &str) = ("openshift-machine-config-operator", "node-bootstrapper");
const NAMESPACE: &str = "attest-gateway";
const ACCOUNT: &str = "attest-controller";
const NODE: &str = "worker-1";
/// Settings by which machines without an attested key are approved.
const ANY_KEY: &str = "[approval]\nenabled = true\nkeys = \"any\"";
const DEFAULT: &str = "[approval]\nenabled = true";

/// The rights that the document has the administrator give.
fn rights() -> Vec<Value> {
    let document = include_str!("../../../../docs/how-to/approve-csrs.md");
    let blocks = document.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.into_iter().find(|block| block.contains("kind: ClusterRole\n")).unwrap();
    block.split("---\n").map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

/// Returns the rules about Machine objects, in their namespace.
fn machine_rules() -> Value {
    let is_it = |object: &Value| object["kind"] == "Role" && object["metadata"]["namespace"] == "openshift-machine-api";
    rights().into_iter().find(is_it).unwrap()
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Waits for something that becomes of the API's objects.
async fn shown(api: &KubernetesApi, what: &str, is_so: impl FnMut() -> bool) {
    assert!(api.comes_to(LIMIT, is_so).await, "{what}: not within {} s", LIMIT.as_secs());
}

/// A machine that has attested.
#[derive(Clone, Copy)]
struct Machine {
    ek: EkDigest,
}

impl Machine {
    fn identity(self) -> NodeIdentity {
        NodeIdentity::from_ek(self.ek)
    }
}

/// Enrols a machine with a name, as the administrator does.
async fn enrolled_in(store: &dyn Store, name: &str) -> Machine {
    let mut ek = [0; 32];
    aws_lc_rs::rand::fill(&mut ek).unwrap();
    let machine = Machine {
        ek: data_encoding::HEXLOWER.encode(&ek).parse().unwrap(),
    };
    let record = EkRecord {
        name: Some(name.to_owned()),
        added: now(),
        pools: Vec::new(),
        note: None,
        removed: None,
    };
    enrolment::allow(store, machine.ek, record, true).await.unwrap();
    machine
}

/// Writes what a gateway writes of an attestation that is recorded; returns the decision's id.
async fn attested_in(store: &dyn Store, machine: Machine, name: &str, key_sha256: Option<SpkiSha256>) -> String {
    let mut decision = [0; 16];
    aws_lc_rs::rand::fill(&mut decision).unwrap();
    let attested = AttestedMachine {
        at: now(),
        pool: "worker".to_owned(),
        name: Some(name.to_owned()),
        instance: None,
        provider: None,
        key_sha256,
        decision: data_encoding::HEXLOWER.encode(&decision),
    };
    let entry = StoreEntry {
        id: machine.identity().as_str().to_owned(),
        value: serde_json::to_string(&attested).unwrap(),
    };
    store.put(EntryKind::Attested, entry).await.unwrap();
    attested.decision
}

struct Site {
    api: KubernetesApi,
    controller: Controller,
    store: Embedded,
    bootstrapper: reqwest::Client,
}

impl Site {
    /// Starts a cluster with a Machine object for each of these and one of the control plane, and a controller with these settings.
    fn with(settings: &str) -> Self {
        let api = KubernetesApi::start();
        rights().into_iter().for_each(|object| api.put(object));
        let can_ask = json!([{"apiGroups": ["certificates.k8s.io"], "resources": [CSRS], "verbs": ["create"]}]);
        api.grant(BOOTSTRAPPER.0, BOOTSTRAPPER.1, &can_ask);
        for (name, role) in [
            ("worker-0", "worker"),
            (NODE, "worker"),
            ("worker-2", "worker"),
            ("master-0", "master"),
        ] {
            api.put(machine(name, role, None));
        }
        api.put(node("worker-0"));
        let controller = Controller::new(&api.kubeconfig(&api.token(NAMESPACE, ACCOUNT)), settings);
        let store = Embedded::open(&controller.path("state/gateway.db")).unwrap();
        let ca = reqwest::Certificate::from_pem(api.ca_pem().as_bytes()).unwrap();
        let bootstrapper = reqwest::Client::builder()
            .tls_certs_only([ca])
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        Self {
            api,
            controller,
            store,
            bootstrapper,
        }
    }

    /// Starts a site whose machines attest no key.
    fn start() -> Self {
        let mut site = Self::with(ANY_KEY);
        site.controller.run();
        site
    }

    /// Starts a site whose settings say only that CSRs are approved.
    fn by_default() -> Self {
        let mut site = Self::with(DEFAULT);
        site.controller.run();
        site
    }

    /// A machine that the administrator has named, and that has attested this key for its kubelet.
    async fn attested_with(&self, name: &str, key: &KeyPair) -> Machine {
        let machine = self.enrolled(name).await;
        attested_in(
            &self.store,
            machine,
            name,
            Some(SpkiSha256::from_spki(&key.subject_public_key_info())),
        )
        .await;
        machine
    }

    /// A kubelet asks for its first certificate, for this key.
    fn asks_for(&self, csr_name: &str, node: &str, key: &KeyPair) {
        let own = csr(csr_name, CLIENT, &request_for(key, node, Vec::new()), "client auth");
        self.api.put(by_bootstrapper(own, &[]));
    }

    async fn enrolled(&self, name: &str) -> Machine {
        enrolled_in(&self.store, name).await
    }

    /// A machine that the administrator has named, and that has attested.
    async fn attested(&self, name: &str) -> Machine {
        let machine = self.enrolled(name).await;
        self.boots(machine, name).await;
        machine
    }

    async fn boots(&self, machine: Machine, name: &str) -> String {
        attested_in(&self.store, machine, name, None).await
    }

    async fn revoke(&self, name: &str, reason: &str) {
        let machine = revocations::machine(&self.store, name).await.unwrap();
        revocations::revoke(&self.store, &machine.all, now(), Some(reason)).await.unwrap();
    }

    /// The acts of this kind that wait for a gateway to record them.
    async fn acts(&self, verb: &str) -> Vec<Value> {
        let waiting = self.store.outbox(None, 100).await.unwrap();
        let acts = waiting.iter().map(|entry| serde_json::from_str::<Value>(&entry.value).unwrap());
        acts.filter(|act| act["verb"] == verb).collect()
    }

    /// A kubelet asks for its first certificate.
    async fn asks(&self, csr: &str, node: &str) {
        let token = self.api.token(BOOTSTRAPPER.0, BOOTSTRAPPER.1);
        let url = format!("{}/apis/certificates.k8s.io/v1/{CSRS}", self.api.url());
        let sent = self
            .bootstrapper
            .post(url)
            .bearer_auth(token)
            .json(&client_csr(csr, node))
            .send()
            .await
            .unwrap();
        assert_eq!(sent.status(), 201);
    }

    fn conditions(&self, csr: &str) -> Value {
        self.api.get(CSRS, "", csr).unwrap()["status"]["conditions"].clone()
    }

    fn is_approved(&self, csr: &str) -> bool {
        let conditions = self.conditions(csr);
        let all = conditions.as_array().cloned().unwrap_or_default();
        assert!(all.iter().all(|condition| condition["type"] == "Approved"), "{all:?}");
        !all.is_empty()
    }

    async fn wait_approved(&self, csr: &str) {
        shown(&self.api, &format!("{csr} is approved"), || self.is_approved(csr)).await;
    }

    /// Returns the events that `kubectl describe csr` shows, by its query.
    fn events(&self, csr: &str) -> Vec<Value> {
        let uid = self.api.get(CSRS, "", csr).unwrap()["metadata"]["uid"].clone();
        let about = |event: &Value| {
            let object = &event["involvedObject"];
            object["kind"] == "CertificateSigningRequest" && object["uid"] == uid && object["name"] == csr && object["namespace"].is_null()
        };
        let all = self.api.all("events").into_iter().filter(about).collect::<Vec<_>>();
        assert!(all.iter().all(|event| event["metadata"]["namespace"] == "default"));
        all
    }

    /// Waits until a request is left as it is, for this reason and no other.
    async fn wait_left(&self, csr: &str, code: &str) -> String {
        let said = |event: &Value| event["message"].as_str().unwrap_or_default().starts_with(&format!("{code}: "));
        shown(&self.api, &format!("{csr} has an event {code}"), || {
            self.events(csr).iter().any(said)
        })
        .await;
        assert_eq!(self.conditions(csr), Value::Null, "{csr}");
        let events = self.events(csr);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(
            (&events[0]["type"], &events[0]["reason"]),
            (&json!("Warning"), &json!("AttestationNotApproved"))
        );
        events[0]["message"].as_str().unwrap().to_owned()
    }
}

fn machine(name: &str, role: &str, node: Option<&str>) -> Value {
    let node = node.map_or(Value::Null, |node| json!({"kind": "Node", "name": node}));
    let addresses = json!([{"type": "InternalDNS", "address": name}, {"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.7"}]);
    json!({
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
        "metadata": {"name": name, "namespace": "openshift-machine-api", "labels": {"machine.openshift.io/cluster-api-machine-role": role}},
        "spec": {"providerID": "baremetalhost:///openshift-machine-api/host/1"},
        "status": {"addresses": addresses, "nodeRef": node},
    })
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn request(node: &str, names: Vec<SanType>) -> String {
    request_for(&KeyPair::generate().unwrap(), node, names)
}

fn request_for(key: &KeyPair, node: &str, names: Vec<SanType>) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    params.subject_alt_names = names;
    params.serialize_request(key).unwrap().pem().unwrap()
}

fn csr(name: &str, signer: &str, request: &str, usage: &str) -> Value {
    let request = data_encoding::BASE64.encode(request.as_bytes());
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": request, "signerName": signer, "usages": ["digital signature", usage]},
    })
}

fn client_csr(name: &str, node: &str) -> Value {
    csr(name, CLIENT, &request(node, Vec::new()), "client auth")
}

/// Returns a CSR as it is in the API after this user has made it.
fn by(mut csr: Value, user: &str, groups: &[&str]) -> Value {
    csr["spec"]["username"] = json!(user);
    csr["spec"]["groups"] = json!(groups);
    csr
}

fn by_bootstrapper(csr: Value, more: &[&str]) -> Value {
    let (namespace, name) = BOOTSTRAPPER;
    let of_namespace = format!("system:serviceaccounts:{namespace}");
    let groups = [&["system:serviceaccounts", &of_namespace, "system:authenticated"], more].concat();
    by(csr, &format!("system:serviceaccount:{namespace}:{name}"), &groups)
}

fn serving_csr(name: &str, node: &str, address: [u8; 4]) -> Value {
    let names = vec![SanType::DnsName(node.try_into().unwrap()), SanType::IpAddress(address.into())];
    let made = csr(name, SERVING, &request(node, names), "server auth");
    by(made, &format!("system:node:{node}"), &["system:nodes", "system:authenticated"])
}

#[tokio::test(flavor = "multi_thread")]
async fn attested_machine_is_approved_once_and_recorded() {
    let site = Site::start();
    let machine = site.enrolled(NODE).await;
    let decision = site.boots(machine, NODE).await;
    site.asks("csr-1", NODE).await;
    site.wait_approved("csr-1").await;
    let condition = &site.conditions("csr-1")[0];
    let identity = machine.identity();
    let message = condition["message"].as_str().unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("AttestationApproved"))
    );
    for part in [identity.as_str(), NODE, decision.as_str()] {
        assert!(message.contains(part), "{message}");
    }
    shown(&site.api, "an event says so", || site.events("csr-1").len() == 1).await;
    assert_eq!(site.events("csr-1")[0]["type"], "Normal");

    // A gateway records it.
    let acts = site.acts("csr.approve").await;
    assert!(acts.len() == 1 && acts[0]["by"]["controller"].is_string(), "{acts:?}");
    let thing = &acts[0]["things"][0];
    assert_eq!((&thing["kind"], &thing["id"]), (&json!("approval"), &json!(NODE)));
    let after = &thing["after"];
    assert_eq!(
        (&after["identity"], &after["csr"], &after["attestation"]),
        (&json!(identity.as_str()), &json!("csr-1"), &json!(decision))
    );

    // The attestation is spent: whoever asks after that has another key.
    site.asks("csr-2", NODE).await;
    site.wait_left("csr-2", "csr-not-attested").await;
    // Once it has booted anew, and its node is gone, it is approved again; the one that was left is of an earlier boot then.
    site.boots(machine, NODE).await;
    let mut earlier = site.api.get(CSRS, "", "csr-2").unwrap();
    earlier["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    site.api.put(earlier);
    let mut first = site.api.get(CSRS, "", "csr-1").unwrap();
    first["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    site.api.put(first);
    site.asks("csr-3", NODE).await;
    site.wait_approved("csr-3").await;
    assert!(!site.is_approved("csr-2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_45_illegitimate_csr_stays_pending_with_an_event() {
    let site = Site::start();
    site.attested(NODE).await;
    site.asks("of-a-node", "worker-0").await;
    site.asks("of-another-machine", "worker-2").await;
    site.asks("of-nobody", "worker-9").await;
    site.asks("of-the-control-plane", "master-0").await;
    site.api
        .put(by_bootstrapper(client_csr("in-more-groups", NODE), &["system:masters"]));
    site.api.put(by(
        client_csr("by-another", NODE),
        "system:serviceaccount:default:default",
        &["system:authenticated"],
    ));
    let mut usages = by_bootstrapper(client_csr("for-more", NODE), &[]);
    usages["spec"]["usages"] = json!(["digital signature", "client auth", "server auth"]);
    site.api.put(usages);
    let mut garbage = by_bootstrapper(client_csr("garbage", NODE), &[]);
    garbage["spec"]["request"] =
        json!(data_encoding::BASE64.encode(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"));
    site.api.put(garbage);
    for (csr, code) in [
        ("of-a-node", "csr-node-exists"),
        ("of-another-machine", "csr-not-attested"),
        ("of-nobody", "csr-not-attested"),
        ("of-the-control-plane", "csr-control-plane"),
        ("in-more-groups", "csr-groups"),
        ("by-another", "csr-requester"),
        ("for-more", "csr-usages"),
        ("garbage", "csr-request"),
    ] {
        site.wait_left(csr, code).await;
    }
    // As whoever asks is told.
    let config = site.controller.path("kubeconfig-of-a-person");
    fs::write(&config, site.api.kubeconfig(site.api.admin())).unwrap();
    let mut kubectl = Command::new("kubectl");
    kubectl.env("HOME", site.controller.path("")).arg("--kubeconfig").arg(config);
    let described = kubectl
        .args(["describe", "certificatesigningrequests", "of-another-machine"])
        .output()
        .unwrap();
    let described = String::from_utf8([described.stdout, described.stderr].concat()).unwrap();
    assert!(
        described.contains("Pending") && described.contains("csr-not-attested"),
        "{described}"
    );
    // None of them is in the way of the machine's own.
    site.asks("own", NODE).await;
    site.wait_approved("own").await;
    let asked = site.api.asked();
    let written: Vec<_> = asked
        .iter()
        .filter(|asked| asked.user.ends_with(":attest-controller") && asked.verb == "update")
        .collect();
    assert_eq!(written.len(), 1, "{written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_45_duplicate_csrs_stay_pending_until_one_is_left() {
    let site = Site::start();
    site.attested(NODE).await;
    tokio::join!(site.asks("one", NODE), site.asks("other", NODE));
    assert!(site.wait_left("one", "csr-duplicate").await.contains("other"));
    assert!(site.wait_left("other", "csr-duplicate").await.contains("one"));
    // The administrator says which is not the machine's.
    site.api.remove(CSRS, "", "other");
    site.wait_approved("one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_45_rejects_another_key_with_the_bootstrap_credential() {
    let site = Site::by_default();
    let key = KeyPair::generate().unwrap();
    let digest = SpkiSha256::from_spki(&key.subject_public_key_info());
    site.attested_with(NODE, &key).await;
    // Before the machine's own: it is left, and in nobody's way.
    site.asks("before", NODE).await;
    let said = site.wait_left("before", "csr-key-not-attested").await;
    assert!(said.contains(&digest.to_string()), "{said}");
    site.asks_for("own", NODE, &key);
    site.wait_approved("own").await;
    // And after it, when its attestation is spent.
    site.asks("after", NODE).await;
    site.wait_left("after", "csr-not-attested").await;
    let acts = site.acts("csr.approve").await;
    assert_eq!(acts[0]["things"][0]["after"]["key_sha256"], digest.to_string());
    // Here a machine has to attest a key.
    site.attested("worker-2").await;
    site.asks("without", "worker-2").await;
    site.wait_left("without", "csr-key-not-attested").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_45_does_not_approve_a_revoked_machine() {
    let site = Site::start();
    site.attested(NODE).await;
    site.revoke(NODE, "stolen").await;
    site.asks("csr-1", NODE).await;
    assert!(site.wait_left("csr-1", "csr-revoked").await.contains("stolen"));
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_by_others_spend_no_attestation() {
    let site = Site::start();
    site.attested(NODE).await;
    let mut theirs = by_bootstrapper(client_csr("theirs", "worker-2"), &[]);
    theirs["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "NodeCSRApprove"}]});
    site.api.put(theirs.clone());
    let mut denied = by_bootstrapper(client_csr("denied", NODE), &[]);
    denied["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
    site.api.put(denied.clone());
    site.api
        .put(by(csr("another-signers", "example.com/signer", "", "client auth"), "somebody", &[]));
    // A kubelet renews its own, which the kube-controller-manager approves.
    site.api.put(by(
        client_csr("renewal", "worker-0"),
        "system:node:worker-0",
        &["system:nodes", "system:authenticated"],
    ));
    site.asks("own", NODE).await;
    site.wait_approved("own").await;
    for name in ["theirs", "denied", "another-signers", "renewal"] {
        assert!(site.events(name).is_empty(), "{name}");
    }
    assert_eq!(site.conditions("theirs"), theirs["status"]["conditions"]);
    assert_eq!(site.conditions("denied"), denied["status"]["conditions"]);
    assert_eq!(site.conditions("renewal"), Value::Null);
    // Approved by another for the same name after the machine has attested.
    site.attested("worker-2").await;
    site.asks("late", "worker-2").await;
    let said = site.wait_left("late", "csr-name-taken").await;
    assert!(said.contains("theirs"), "{said}");
}
