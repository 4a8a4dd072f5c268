//! Tests for the MachineConfigs of the second stage: the controller makes and keeps them, and removes only its own.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use attest_cluster_api::ClusterClient;
use attest_controller::second_stage::{GatewayEndpoints, SecondStageObjects, SecondStagePass};
use attest_controller::settings::SecondStageSettings;
use attest_ignition::machine_config::appended::CONTENT;
use attest_ignition::machine_config::second_stage::{LABELS, SPEC_DIGEST, SecondStageObject};
use attest_store::settings::{ClusterAccess, ClusterApi};
use attest_system::clock::{Clock, rfc3339};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi};
use cloud_fixtures::machine_config_server::MachineConfigServer;
use cloud_fixtures::server::TestServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::controller::{Controller, LIMIT};

const NAMESPACE: &str = "attest-gateway";
const ACCOUNT: &str = "attest-controller";
const KIND: &str = "machineconfigs";
const SERVED_AT: &str = "attest-gateway.internal/served-at";

/// The API, and its client with a kubeconfig.
struct Asked {
    api: KubernetesApi,
    cluster: ClusterClient,
    token: String,
    _folder: tempfile::TempDir,
}

impl Asked {
    /// Starts an API, and a service account that may do this everywhere.
    async fn with(rules: &Value) -> Self {
        let api = KubernetesApi::start();
        api.grant(NAMESPACE, ACCOUNT, rules);
        let token = api.token(NAMESPACE, ACCOUNT);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig(&token)).unwrap();
        let access = ClusterAccess {
            api: ClusterApi::Kubeconfig(kubeconfig),
            namespace: Some(NAMESPACE.to_owned()),
        };
        let cluster = ClusterClient::open(&access, Clock::System, Arc::new(())).await.unwrap();
        Self {
            api,
            cluster,
            token,
            _folder: folder,
        }
    }
}

/// Returns the rights that the second stage needs, and no others.
fn rules() -> Value {
    json!([
        {"apiGroups": ["machineconfiguration.openshift.io"], "resources": ["machineconfigs"], "verbs": ["create", "delete", "get", "list", "update"]},
        {"apiGroups": ["machineconfiguration.openshift.io"], "resources": ["machineconfigpools"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    ])
}

fn second_stage_objects(asked: &Asked) -> SecondStageObjects {
    SecondStageObjects::new(Arc::new(asked.cluster.clone()), Clock::System)
}

fn machine_config(name: &str, file: &str, labelled: bool) -> Value {
    let labels: serde_json::Map<String, Value> = LABELS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let labels = if labelled { Value::Object(labels) } else { json!({}) };
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": name, "labels": labels},
        "spec": {"fips": false, "config": {"ignition": {"version": "3.1.0"}, "storage": {"files": [{"path": file}]}}},
    })
}

fn named(hash: &str) -> String {
    format!("rendered-worker-pre-approved-{hash:0>32}")
}

/// Returns the object for the config of a pool.
fn object(hash: &str) -> SecondStageObject {
    let name = named(hash);
    let content = machine_config(&name, &format!("/etc/{hash}"), false).to_string();
    SecondStageObject::parse(content.as_bytes(), "worker").unwrap()
}

fn days_ago(days: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    rfc3339(now - days * 24 * 3600)
}

/// Puts an object that was served last this number of days ago.
fn served(api: &KubernetesApi, hash: &str, days: u64) {
    let mut object = object(hash).value;
    object["metadata"]["annotations"][SERVED_AT] = days_ago(days).into();
    api.put(object);
}

fn node(api: &KubernetesApi, name: &str, annotation: &str, value: &str) {
    let annotations = json!({format!("machineconfiguration.openshift.io/{annotation}"): value});
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}}));
}

fn get(api: &KubernetesApi, hash: &str) -> Option<Value> {
    api.get(KIND, "", &named(hash))
}

fn names(done: &std::collections::BTreeSet<String>) -> Vec<&str> {
    done.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_the_second_stage_object_once() {
    let asked = Asked::with(&rules()).await;
    asked
        .api
        .put(json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": "worker"}}));
    let pool = asked.api.get("machineconfigpools", "", "worker").unwrap();
    let mut second_stage = second_stage_objects(&asked);
    let wanted = [object("1")];
    let done = second_stage.reconcile(&wanted).await.unwrap();
    assert_eq!(names(&done.made), [named("1")]);
    let made = get(&asked.api, "1").unwrap();
    assert_eq!(made["spec"], wanted[0].value["spec"]);
    assert_eq!(made["metadata"]["labels"], wanted[0].value["metadata"]["labels"]);
    let owner = &made["metadata"]["ownerReferences"];
    assert_eq!(
        *owner,
        json!([{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "name": "worker", "uid": pool["metadata"]["uid"], "controller": true}])
    );
    // Nothing is fetched or written as long as nobody changes it.
    asked.api.forget_asked();
    assert_eq!(second_stage.reconcile(&wanted).await.unwrap(), SecondStagePass::default());
    let heard: Vec<_> = asked.api.asked().into_iter().map(|asked| (asked.verb, asked.resource)).collect();
    assert_eq!(
        heard,
        [("list", KIND), ("get", "machineconfigpools")].map(|(verb, of)| (verb, of.to_owned()))
    );
    // Another controller, or this one after a restart, finds it as it is.
    assert_eq!(
        second_stage_objects(&asked).reconcile(&wanted).await.unwrap(),
        SecondStagePass::default()
    );
    assert_eq!(get(&asked.api, "1").unwrap(), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_changed_and_removed_objects() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = second_stage_objects(&asked);
    let wanted = [object("1")];
    second_stage.reconcile(&wanted).await.unwrap();
    let made = get(&asked.api, "1").unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut object = made.clone();
        change(&mut object);
        asked.api.put(object);
    };
    let changes: [&dyn Fn(&mut Value); 8] = [
        &|object| object["spec"]["config"]["storage"]["files"][0]["path"] = json!("/etc/x"),
        &|object| object["spec"]["fips"] = json!(true),
        &|object| object["spec"]["kernelArguments"] = json!(["x"]),
        &|object| drop(object["spec"].as_object_mut().unwrap().remove("fips")),
        &|object| object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}]),
        &|object| object["metadata"]["annotations"][SERVED_AT] = days_ago(1).into(),
        &|object| object["metadata"]["annotations"][SERVED_AT] = "yesterday".into(),
        &|object| drop(object["metadata"]["annotations"].as_object_mut().unwrap().remove(SPEC_DIGEST)),
    ];
    for change in changes {
        changed(change);
        let done = second_stage.reconcile(&wanted).await.unwrap();
        assert_eq!(names(&done.written), [named("1")]);
        let now = get(&asked.api, "1").unwrap();
        assert_eq!(now["spec"], wanted[0].value["spec"]);
        assert_eq!(now["metadata"].get("ownerReferences"), None);
        assert_eq!(second_stage.reconcile(&wanted).await.unwrap(), SecondStagePass::default());
    }
    asked.api.remove(KIND, "", &named("1"));
    assert_eq!(names(&second_stage.reconcile(&wanted).await.unwrap().made), [named("1")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn served_object_stays_while_nodes_may_use_it() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = second_stage_objects(&asked);
    second_stage.reconcile(&[object("1")]).await.unwrap();
    // The config changes: there is one more.
    let done = second_stage.reconcile(&[object("2")]).await.unwrap();
    assert_eq!((names(&done.made), names(&done.removed)), (vec![named("2").as_str()], vec![]));
    assert!(get(&asked.api, "1").is_some());
    // Served long ago: by a node or not.
    for (hash, days) in [("29d", 29), ("31d", 31), ("current", 31), ("desired", 31), ("first", 31)] {
        served(&asked.api, hash, days);
    }
    node(&asked.api, "a", "currentConfig", &named("current"));
    node(&asked.api, "b", "desiredConfig", &named("desired"));
    // Only what a node booted with first is named by what the daemon never reads.
    node(&asked.api, "c", "firstPivotConfig", &named("first"));
    let done = second_stage.reconcile(&[object("2")]).await.unwrap();
    assert_eq!(names(&done.removed), [named("31d"), named("first")]);
    for hash in ["1", "2", "29d", "current", "desired"] {
        assert!(get(&asked.api, hash).is_some(), "{hash}");
    }
    asked.api.remove("nodes", "", "a");
    let done = second_stage.reconcile(&[object("2")]).await.unwrap();
    assert_eq!(names(&done.removed), [named("current")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_objects_of_others_untouched() {
    let asked = Asked::with(&rules()).await;
    // Printed and applied by an administrator; the operator's; one that only looks like it.
    asked.api.put(object("applied").value);
    let mut others = vec![machine_config("rendered-worker-1", "/etc/1", false)];
    for annotation in [days_ago(400), "1970-01-01T00:00:00Z".to_owned(), "yesterday".to_owned()] {
        let mut other = machine_config(&format!("99-worker-{}", others.len()), "/etc/1", false);
        other["metadata"]["annotations"] = json!({SERVED_AT: annotation});
        others.push(other);
    }
    let mut in_part = machine_config("rendered-worker-pre-approved-part", "/etc/1", true);
    in_part["metadata"]["labels"] = json!({LABELS[0].0: LABELS[0].1});
    in_part["metadata"]["annotations"] = json!({SERVED_AT: days_ago(400)});
    others.push(in_part);
    for other in &others {
        asked.api.put(other.clone());
    }
    let before = asked.api.all(KIND);
    let mut second_stage = second_stage_objects(&asked);
    second_stage.reconcile(&[object("1")]).await.unwrap();
    let mut after = asked.api.all(KIND);
    after.retain(|object| object["metadata"]["name"] != named("1"));
    assert_eq!(after, before);
    // Its own name, and somebody else's: good enough if it says the same, and told if not.
    let others = machine_config(&named("2"), "/etc/2", false);
    asked.api.put(others.clone());
    let before = get(&asked.api, "2");
    assert_eq!(second_stage.reconcile(&[object("2")]).await.unwrap(), SecondStagePass::default());
    assert_eq!(get(&asked.api, "2"), before);
    let mut other = others;
    other["spec"]["fips"] = json!(true);
    asked.api.put(other);
    let before = get(&asked.api, "2");
    let error = second_stage.reconcile(&[object("2"), object("3")]).await.unwrap_err().to_string();
    assert!(error.contains(&named("2")) && error.contains("lacks the label"), "{error}");
    assert_eq!(get(&asked.api, "2"), before);
    // It holds up no other pool's.
    assert!(get(&asked.api, "3").is_some());
    // What an administrator has applied is taken over once it is served.
    let done = second_stage.reconcile(&[object("applied")]).await.unwrap();
    assert_eq!(names(&done.written), [named("applied")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_59_existing_object_name_is_never_reused() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = second_stage_objects(&asked);
    let wanted = [object("1")];
    second_stage.reconcile(&wanted).await.unwrap();
    let made = get(&asked.api, "1").unwrap();
    // A gateway that was taken over serves its own config under the name that another one's nodes have.
    let mut content = wanted[0].value.clone();
    content["spec"]["osImageURL"] = json!("registry.example.com/evil@sha256:1");
    let other = SecondStageObject::parse(content.to_string().as_bytes(), "worker").unwrap();
    for wanted in [vec![other.clone()], vec![other.clone(), wanted[0].clone(), object("2")]] {
        for second_stage in [&mut second_stage, &mut second_stage_objects(&asked)] {
            let error = second_stage.reconcile(&wanted).await.unwrap_err().to_string();
            assert!(error.contains(&named("1")) && error.contains("left unchanged"), "{error}");
            assert_eq!(get(&asked.api, "1").unwrap(), made);
        }
    }
    // It is in no other object's way, and what somebody else has changed is put back.
    assert!(get(&asked.api, "2").is_some());
    let mut changed = made.clone();
    changed["spec"]["osImageURL"] = json!("registry.example.com/evil@sha256:1");
    asked.api.put(changed);
    assert_eq!(names(&second_stage.reconcile(&wanted).await.unwrap().written), [named("1")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_59_objects_per_pool_are_limited() {
    let asked = Asked::with(&rules()).await;
    for number in 0..98 {
        served(&asked.api, &format!("{number:x}"), 1);
    }
    let mut second_stage = second_stage_objects(&asked);
    let new = ["a1", "a2", "a3", "a4"].map(object);
    let error = second_stage.reconcile(&new).await.unwrap_err().to_string();
    assert!(error.contains("the pool already has 100"), "{error}");
    let made = new.iter().filter(|object| asked.api.get(KIND, "", &object.name).is_some()).count();
    assert_eq!(made, 2);
    // Another pool's are none of its share, and what is there is looked after.
    let content = machine_config(&named("b1").replace("worker", "infra"), "/etc/1", false).to_string();
    let of_infra = SecondStageObject::parse(content.as_bytes(), "infra").unwrap();
    let done = second_stage.reconcile(&[object("0"), of_infra.clone()]).await.unwrap();
    assert_eq!(
        (names(&done.made), names(&done.written)),
        (vec![of_infra.name.as_str()], vec![named("0").as_str()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_leaders_converge() {
    let asked = Asked::with(&rules()).await;
    let mut leaders: Vec<SecondStageObjects> = (0..4).map(|_| second_stage_objects(&asked)).collect();
    for round in 0..5 {
        let wanted = [object(&round.to_string())];
        served(&asked.api, "over", 31);
        let all = leaders.iter_mut().map(|leader| leader.reconcile(&wanted));
        let done: Vec<SecondStagePass> = futures_util::future::try_join_all(all).await.unwrap();
        let made: usize = done.iter().map(|done| done.made.len()).sum();
        let removed: usize = done.iter().map(|done| done.removed.len()).sum();
        assert_eq!((made, removed), (1, 1), "{done:?}");
        // Who was late is told to look again, and finds it well.
        for leader in &mut leaders {
            assert_eq!(leader.reconcile(&wanted).await.unwrap(), SecondStagePass::default());
        }
        let mut changed = get(&asked.api, &round.to_string()).unwrap();
        changed["spec"]["fips"] = json!(true);
        asked.api.put(changed);
        let all = leaders.iter_mut().map(|leader| leader.reconcile(&wanted));
        futures_util::future::try_join_all(all).await.unwrap();
        assert_eq!(get(&asked.api, &round.to_string()).unwrap()["spec"], wanted[0].value["spec"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_missing_right_is_reported() {
    let lacking = async |group: usize, verb: &str| {
        let mut rules = rules();
        let verbs = rules[group]["verbs"].as_array_mut().unwrap();
        verbs.retain(|other| other != verb);
        let asked = Asked::with(&rules).await;
        served(&asked.api, "over", 31);
        served(&asked.api, "stale", 1);
        let mut second_stage = second_stage_objects(&asked);
        let wanted = [object("stale"), object("new")];
        let error = second_stage.reconcile(&wanted).await.unwrap_err().to_string();
        assert!(error.contains("forbidden"), "{verb}: {error}");
        (error, asked)
    };
    for (group, verb) in [(0, "list"), (0, "get"), (0, "update"), (0, "create"), (1, "get")] {
        let (error, asked) = lacking(group, verb).await;
        assert!(error.contains(verb), "{error}");
        // What the API refuses of one object holds up no other.
        assert_eq!(get(&asked.api, "new").is_some(), verb == "update", "{verb}");
    }
    // Without knowing what nodes go by, nothing is removed.
    for (group, verb) in [(2, "list"), (0, "delete")] {
        let (error, asked) = lacking(group, verb).await;
        assert!(error.contains(verb), "{error}");
        assert!(get(&asked.api, "over").is_some() && get(&asked.api, "new").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_outage_is_retried() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = second_stage_objects(&asked);
    let wanted = [object("1")];
    for disturbance in [Disturbance::Down, Disturbance::Status(500), Disturbance::Status(503)] {
        asked.api.disturb(disturbance);
        assert!(second_stage.reconcile(&wanted).await.is_err(), "{disturbance:?}");
        asked.api.recover();
        let done = second_stage.reconcile(&wanted).await.unwrap();
        assert_eq!(names(&done.made), [named("1")]);
        asked.api.remove(KIND, "", &named("1"));
    }
    asked.api.expire(&asked.token);
    let error = second_stage.reconcile(&wanted).await.unwrap_err().to_string();
    assert!(error.contains("Unauthorized"), "{error}");
    assert!(!error.contains(&asked.token));
}

/// A CA, and a server's certificate by it, as files.
fn certificates(folder: &Path) {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let leaf = CertificateParams::new(vec!["api-int.example.com".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key)).unwrap();
    fs::write(folder.join("mcs-ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    fs::write(folder.join("mcs.crt"), leaf.pem()).unwrap();
    fs::write(folder.join("mcs.key"), key.serialize_pem()).unwrap();
}

/// A gateway that gives pool worker's pre-approved config to unauthenticated clients.
struct Gateway {
    server: TestServer,
    content: Arc<Mutex<Value>>,
}

impl Gateway {
    fn start(folder: &Path, content: Value) -> Self {
        let content = Arc::new(Mutex::new(content));
        let served = Arc::clone(&content);
        let config = move |version: &str| {
            let content = served.lock().unwrap().to_string();
            let source = format!("data:;base64,{}", data_encoding::BASE64.encode(content.as_bytes()));
            let files = json!([{"path": "/etc/early"}, {"path": CONTENT, "contents": {"source": source}}]);
            json!({"ignition": {"version": version}, "storage": {"files": files}})
                .to_string()
                .into_bytes()
        };
        let server = MachineConfigServer::start_tls_only(&folder.join("mcs.crt"), &folder.join("mcs.key"), "worker", Arc::new(config));
        Self { server, content }
    }

    fn serves(&self, content: Value) {
        *self.content.lock().unwrap() = content;
    }

    fn settings(&self) -> SecondStageSettings {
        SecondStageSettings {
            url: "https://api-int.example.com:22623".parse().unwrap(),
            address: Some(self.server.address().to_string()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn config_comes_only_from_the_authenticated_gateway() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let wanted = object("1");
    let gateway = Gateway::start(folder.path(), wanted.value.clone());
    let source = GatewayEndpoints::new(gateway.settings(), folder.path().join("mcs-ca.crt"));
    assert_eq!(source.objects("worker", "worker").await.unwrap(), vec![wanted.clone()]);
    assert_eq!(source.objects("worker", "own").await.unwrap()[0].pool, "own");
    let refused = async |pool: &str| source.objects(pool, pool).await.unwrap_err().to_string();
    assert!(refused("infra").await.contains("status 500"));
    // A name of the operator's, of another pool's, and none.
    let of_infra = named("1").replace("worker", "infra");
    for name in ["rendered-worker-1", &of_infra, "99-worker", ""] {
        gateway.serves(machine_config(name, "/etc/1", false));
        assert!(refused("worker").await.contains("is not the name"), "{name}");
    }
    gateway.serves(machine_config(&"x".repeat(1_000_000), "/etc/1", false));
    assert!(refused("worker").await.len() < 500);
    // Few bytes that would take much memory.
    let mut large = wanted.value.clone();
    large["spec"]["kernelArguments"] = vec![json!(0); 200_001].into();
    gateway.serves(large);
    assert!(refused("worker").await.contains("200000 values"));
    gateway.serves(json!("x"));
    assert!(!refused("worker").await.is_empty());
    gateway.serves(wanted.value.clone());
    // Another host, and another CA.
    let elsewhere = SecondStageSettings {
        url: "https://other.example.com".parse().unwrap(),
        ..gateway.settings()
    };
    let elsewhere = GatewayEndpoints::new(elsewhere, folder.path().join("mcs-ca.crt"));
    assert!(elsewhere.objects("worker", "worker").await.is_err());
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    let untrusted = GatewayEndpoints::new(gateway.settings(), other.path().join("mcs-ca.crt"));
    assert!(untrusted.objects("worker", "worker").await.is_err());
    assert!(source.objects("worker", "worker").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_gateway_does_not_block_the_others() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let [one, same, other, away] = ["1", "1", "2", "3"].map(|hash| Gateway::start(folder.path(), object(hash).value));
    let source = GatewayEndpoints::new(one.settings(), folder.path().join("mcs-ca.crt"));
    let at = [&one, &same, &away, &other].map(|gateway| Some(gateway.server.address()));
    drop(away);
    let found = source.objects_at(&at, "worker", "worker").await.unwrap();
    assert_eq!(found, [object("1"), object("2")]);
    let error = source.objects_at(&at[2..3], "worker", "worker").await.unwrap_err().to_string();
    assert!(error.starts_with("https://api-int.example.com:22623/config/worker: "), "{error}");
}

/// A controller whose pool worker has a second stage.
fn controller(api: &KubernetesApi, gateway: impl FnOnce(&Path) -> Gateway) -> (Controller, Gateway) {
    let controller = Controller::new(&api.kubeconfig(&api.token(NAMESPACE, ACCOUNT)), "");
    certificates(&controller.path(""));
    let gateway = gateway(&controller.path(""));
    let settings = gateway.settings();
    controller.settings(&format!(
        "[pointers]\nauthorities = \"mcs-ca.crt\"\n[second_stage]\nenabled = true\nurl = \"{}\"\naddress = \"{}\"",
        settings.url,
        settings.address.unwrap()
    ));
    controller.pool("worker", "[grants]\n[second_stage]\nmachine_config_daemon = true\n");
    drop(attest_store::Embedded::open(&controller.path("state/gateway.db")).unwrap());
    (controller, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_creates_second_stage_objects_and_reports_obstacles() {
    let api = KubernetesApi::start();
    api.grant(NAMESPACE, ACCOUNT, &json!([]));
    let (mut controller, gateway) = controller(&api, |folder| Gateway::start(folder, object("1").value));
    controller.run();
    let refused = controller.line(|line| line.contains("second stage: ") && line.contains("WARN"));
    assert!(refused.contains("forbidden") && refused.contains("cannot list"), "{refused}");
    assert!(api.all(KIND).is_empty());
    let metric = "attest_controller_second_stage_missing";
    assert!(controller.get("/metrics").await.1.contains(&format!("{metric} 1")));
    let check = || String::from_utf8(controller.output("check").stdout).unwrap();
    api.grant(NAMESPACE, ACCOUNT, &rules());
    controller.line(|line| line.contains("second stage: the cluster's MachineConfigs are up to date again"));
    assert!(controller.get("/metrics").await.1.contains(&format!("{metric} 0")));
    assert_eq!(get(&api, "1").unwrap()["spec"], object("1").value["spec"]);
    assert!(check().contains(&format!(
        "ok       pool worker: MachineConfig {} of the second stage is in the cluster",
        named("1")
    )));
    // An API that does not know the policy holds the account to nothing.
    assert!(!check().contains("ValidatingAdmissionPolicy"));
    api.lack("validatingadmissionpolicies");
    let checked = check();
    let said = checked.lines().find(|line| line.contains("has no ValidatingAdmissionPolicy"));
    assert!(said.is_some_and(|line| line.starts_with("DEGRADED ")), "{checked}");
    // Another config, another object; and the one before stays.
    gateway.serves(object("2").value);
    assert!(check().contains(&format!(
        "DEGRADED pool worker: the cluster lacks MachineConfig {} of the second stage",
        named("2")
    )));
    controller.kill();
    controller.run();
    assert!(api.comes_to(LIMIT, || get(&api, "2").is_some()).await);
    assert!(get(&api, "1").is_some());
    controller.kill();
    // Without a second stage no right is needed, and nothing is asked.
    controller.pool("worker", "[grants]\n");
    api.forget_asked();
    controller.run();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(api.asked().iter().all(|asked| asked.resource != KIND));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_or_untrusted_gateway_changes_no_object() {
    let api = KubernetesApi::start();
    api.grant(NAMESPACE, ACCOUNT, &rules());
    served(&api, "1", 31);
    let (mut controller, gateway) = controller(&api, |folder| Gateway::start(folder, object("2").value));
    // Its CA is another one.
    certificates(&controller.path(""));
    controller.run();
    let said = controller.line(|line| line.contains("second stage: pool worker: https://api-int.example.com"));
    assert!(said.contains("WARN"), "{said}");
    assert!(get(&api, "1").is_some() && get(&api, "2").is_none());
    drop(gateway);
    let checked = String::from_utf8(controller.output("check").stdout).unwrap();
    assert!(checked.contains("DEGRADED pool worker: https://api-int.example.com"), "{checked}");
}
