//! The MachineConfigs of the second stage: made, kept, and removed by nobody but who has made them.

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use attest_gateway::cluster::second_stage::{Done, SecondStage};
use attest_ignition::machine_config::second_stage::{LABELS, Object};
use attest_system::clock::{Clock, rfc3339};
use cloud_fixtures::kubernetes::{Disturbance, Kubernetes};
use serde_json::{Value, json};

use super::{Asked, NAMESPACE};
use crate::support::{Gateway, POOL};

const KIND: &str = "machineconfigs";
const SERVED_AT: &str = "attest-gateway.internal/served-at";

/// What it needs, and nothing else.
fn rules() -> Value {
    json!([
        {"apiGroups": ["machineconfiguration.openshift.io"], "resources": ["machineconfigs"], "verbs": ["create", "delete", "get", "list", "update"]},
        {"apiGroups": ["machineconfiguration.openshift.io"], "resources": ["machineconfigpools"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    ])
}

fn of(asked: &Asked) -> SecondStage {
    SecondStage::new(Arc::new(asked.cluster.clone()), Clock::System)
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
    format!("rendered-worker-pre-approved-{hash}")
}

/// What the config of a pool comes to.
fn object(hash: &str) -> Object {
    let name = named(hash);
    let value = machine_config(&name, &format!("/etc/{hash}"), true);
    let pool = "worker".to_owned();
    Object { name, pool, value }
}

fn days_ago(days: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    rfc3339(now - days * 24 * 3600)
}

/// One that a gateway has served last so many days ago.
fn served(api: &Kubernetes, hash: &str, days: u64) {
    let mut object = object(hash).value;
    object["metadata"]["annotations"] = json!({SERVED_AT: days_ago(days)});
    api.put(object);
}

fn node(api: &Kubernetes, name: &str, annotation: &str, value: &str) {
    let annotations = json!({format!("machineconfiguration.openshift.io/{annotation}"): value});
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}}));
}

fn get(api: &Kubernetes, hash: &str) -> Option<Value> {
    api.get(KIND, "", &named(hash))
}

fn names(done: &std::collections::BTreeSet<String>) -> Vec<&str> {
    done.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_made_once_and_looked_at_from_then_on() {
    let asked = Asked::with(&rules()).await;
    asked
        .api
        .put(json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": "worker"}}));
    let pool = asked.api.get("machineconfigpools", "", "worker").unwrap();
    let mut second_stage = of(&asked);
    let wanted = [object("1")];
    let done = second_stage.look_after(&wanted).await.unwrap();
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
    assert_eq!(second_stage.look_after(&wanted).await.unwrap(), Done::default());
    assert_eq!(asked.api.asked().len(), 1);
    // Another gateway, or this one after a restart, finds it as it is.
    assert_eq!(of(&asked).look_after(&wanted).await.unwrap(), Done::default());
    assert_eq!(get(&asked.api, "1").unwrap(), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_or_remove_is_put_back() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = of(&asked);
    let wanted = [object("1")];
    second_stage.look_after(&wanted).await.unwrap();
    let made = get(&asked.api, "1").unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut object = made.clone();
        change(&mut object);
        asked.api.put(object);
    };
    for change in [
        (&|object: &mut Value| object["spec"]["config"]["storage"]["files"][0]["path"] = json!("/etc/x")) as &dyn Fn(&mut Value),
        &|object| object["spec"]["fips"] = json!(true),
        &|object| object["spec"]["kernelArguments"] = json!(["x"]),
        &|object| drop(object["spec"].as_object_mut().unwrap().remove("fips")),
        &|object| object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}]),
        &|object| object["metadata"]["annotations"] = json!({SERVED_AT: days_ago(1)}),
        &|object| object["metadata"]["annotations"] = json!({SERVED_AT: "yesterday"}),
    ] {
        changed(change);
        let done = second_stage.look_after(&wanted).await.unwrap();
        assert_eq!(names(&done.written), [named("1")]);
        let now = get(&asked.api, "1").unwrap();
        assert_eq!(now["spec"], wanted[0].value["spec"]);
        assert_eq!(now["metadata"].get("ownerReferences"), None);
        assert_eq!(second_stage.look_after(&wanted).await.unwrap(), Done::default());
    }
    asked.api.remove(KIND, "", &named("1"));
    assert_eq!(names(&second_stage.look_after(&wanted).await.unwrap().made), [named("1")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_served_stays_while_a_node_may_go_by_it() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = of(&asked);
    second_stage.look_after(&[object("1")]).await.unwrap();
    // The config changes: there is one more.
    let done = second_stage.look_after(&[object("2")]).await.unwrap();
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
    let done = second_stage.look_after(&[object("2")]).await.unwrap();
    assert_eq!(names(&done.removed), [named("31d"), named("first")]);
    for hash in ["1", "2", "29d", "current", "desired"] {
        assert!(get(&asked.api, hash).is_some(), "{hash}");
    }
    asked.api.remove("nodes", "", "a");
    let done = second_stage.look_after(&[object("2")]).await.unwrap();
    assert_eq!(names(&done.removed), [named("current")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_has_not_made_is_not_touched() {
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
    let mut second_stage = of(&asked);
    second_stage.look_after(&[object("1")]).await.unwrap();
    let mut after = asked.api.all(KIND);
    after.retain(|object| object["metadata"]["name"] != named("1"));
    assert_eq!(after, before);
    // Its own name, and somebody else's: good enough if it says the same, and told if not.
    let others = machine_config(&named("2"), "/etc/2", false);
    asked.api.put(others.clone());
    let before = get(&asked.api, "2");
    assert_eq!(second_stage.look_after(&[object("2")]).await.unwrap(), Done::default());
    assert_eq!(get(&asked.api, "2"), before);
    let mut other = others;
    other["spec"]["fips"] = json!(true);
    asked.api.put(other);
    let before = get(&asked.api, "2");
    let error = second_stage.look_after(&[object("2"), object("3")]).await.unwrap_err().to_string();
    assert!(error.contains(&named("2")) && error.contains("not labelled"), "{error}");
    assert_eq!(get(&asked.api, "2"), before);
    // It holds up no other pool's.
    assert!(get(&asked.api, "3").is_some());
    // What an administrator has applied is taken over once it is served.
    let done = second_stage.look_after(&[object("applied")]).await.unwrap();
    assert_eq!(names(&done.written), [named("applied")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_at_once_come_to_one_state() {
    let asked = Asked::with(&rules()).await;
    let mut gateways: Vec<SecondStage> = (0..4).map(|_| of(&asked)).collect();
    for round in 0..5 {
        let wanted = [object(&round.to_string())];
        served(&asked.api, "over", 31);
        let all = gateways.iter_mut().map(|gateway| gateway.look_after(&wanted));
        let done: Vec<Done> = futures_util::future::try_join_all(all).await.unwrap();
        let made: usize = done.iter().map(|done| done.made.len()).sum();
        let removed: usize = done.iter().map(|done| done.removed.len()).sum();
        assert_eq!((made, removed), (1, 1), "{done:?}");
        // Who was late is told to look again, and finds it well.
        for gateway in &mut gateways {
            assert_eq!(gateway.look_after(&wanted).await.unwrap(), Done::default());
        }
        let mut changed = get(&asked.api, &round.to_string()).unwrap();
        changed["spec"]["fips"] = json!(true);
        asked.api.put(changed);
        let all = gateways.iter_mut().map(|gateway| gateway.look_after(&wanted));
        futures_util::future::try_join_all(all).await.unwrap();
        assert_eq!(get(&asked.api, &round.to_string()).unwrap()["spec"], wanted[0].value["spec"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_is_needed_and_its_lack_is_said() {
    let lacking = async |group: usize, verb: &str| {
        let mut rules = rules();
        let verbs = rules[group]["verbs"].as_array_mut().unwrap();
        verbs.retain(|other| other != verb);
        let asked = Asked::with(&rules).await;
        served(&asked.api, "over", 31);
        served(&asked.api, "stale", 1);
        let mut second_stage = of(&asked);
        let wanted = [object("stale"), object("new")];
        let error = second_stage.look_after(&wanted).await.unwrap_err().to_string();
        assert!(error.contains("forbidden"), "{verb}: {error}");
        (error, asked)
    };
    for (group, verb) in [(0, "list"), (0, "get"), (0, "update"), (0, "create"), (1, "get")] {
        let (error, _) = lacking(group, verb).await;
        assert!(error.contains(verb), "{error}");
    }
    // Without knowing what nodes go by, nothing is removed.
    for (group, verb) in [(2, "list"), (0, "delete")] {
        let (error, asked) = lacking(group, verb).await;
        assert!(error.contains(verb), "{error}");
        assert!(get(&asked.api, "over").is_some() && get(&asked.api, "new").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_away_is_asked_again() {
    let asked = Asked::with(&rules()).await;
    let mut second_stage = of(&asked);
    let wanted = [object("1")];
    for disturbance in [Disturbance::Down, Disturbance::Status(500), Disturbance::Status(503)] {
        asked.api.disturb(disturbance);
        assert!(second_stage.look_after(&wanted).await.is_err(), "{disturbance:?}");
        asked.api.recover();
        let done = second_stage.look_after(&wanted).await.unwrap();
        assert_eq!(names(&done.made), [named("1")]);
        asked.api.remove(KIND, "", &named("1"));
    }
    asked.api.expire(&asked.token);
    let error = second_stage.look_after(&wanted).await.unwrap_err().to_string();
    assert!(error.contains("Unauthorized"), "{error}");
    assert!(!error.contains(&asked.token));
}

const MANIFESTS: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: 00-worker\n  labels: {machineconfiguration.openshift.io/role: worker}\n\
    spec:\n  neededBeforeNodeApproved: true\n  osImageURL: quay.io/os@sha256:1\n  config:\n    ignition: {version: 3.2.0}\n    storage:\n      files:\n      - {path: /etc/early, contents: {source: \"data:,FIRST\"}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_makes_what_its_pools_name_and_says_what_keeps_it_from_that() {
    let api = Kubernetes::start();
    api.grant(NAMESPACE, "gateway", &json!([]));
    let mut gateway = Gateway::init();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false");
    fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token(NAMESPACE, "gateway"))).unwrap();
    gateway.machine_configs(POOL, &[("all.yaml", MANIFESTS)]);
    gateway.edit_pool(POOL, "machine_config_daemon = false", "machine_config_daemon = true");
    gateway.run();
    let refused = gateway.line(|line| line.contains("second stage: ") && line.contains("WARN"));
    assert!(refused.contains("forbidden") && refused.contains("cannot list"), "{refused}");
    assert!(api.all(KIND).is_empty());
    // It goes on asking, and says so once.
    api.grant(NAMESPACE, "gateway", &rules());
    gateway.line(|line| line.contains("second stage: the cluster has its MachineConfigs"));
    assert_eq!(
        gateway.how_often(|line| line.contains("second stage: ") && line.contains("WARN")),
        1
    );
    let printed = || serde_json::from_str::<Value>(&gateway.command(&["second-stage"])).unwrap();
    let first = printed();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let made = api.get(KIND, "", &name(&first)).unwrap();
    assert_eq!(made["spec"], first["spec"]);
    // An API that does not know the policy holds the account to nothing.
    assert!(!gateway.command(&["check"]).contains("ValidatingAdmissionPolicy"));
    api.lack("validatingadmissionpolicies");
    let checked = gateway.command(&["check"]);
    let said = checked.lines().find(|line| line.contains("knows no ValidatingAdmissionPolicy"));
    assert!(said.is_some_and(|line| line.contains("DEGRADED")), "{checked}");
    // What nodes get names it.
    let served = String::from_utf8(gateway.config("/config/worker", &[]).await.body).unwrap();
    assert!(served.contains(&name(&first)));
    // Another config, another object; and the one before stays.
    gateway.machine_configs(POOL, &[("all.yaml", &MANIFESTS.replace("FIRST", "second"))]);
    assert!(api.comes_to(crate::support::LIMIT, || api.all(KIND).len() == 2).await);
    let objects = api.all(KIND);
    assert_ne!(name(&printed()), name(&first));
    assert!(objects.iter().any(|object| name(object) == name(&printed())));
    assert!(objects.iter().any(|object| name(object) == name(&first)));
    gateway.lines(2, |line| line.contains("second stage: MachineConfig ") && line.contains(" is made"));
    gateway.kill();
    // A gateway without a second stage needs no right, and asks nothing of it.
    gateway.edit_pool(POOL, "machine_config_daemon = true", "machine_config_daemon = false");
    api.forget_asked();
    gateway.run();
    assert!(gateway.config("/config/worker", &[]).await.status.is_success());
    assert!(api.asked().iter().all(|asked| asked.resource != KIND));
}
