//! Watch cache of the objects of a kind, while they change and while their API is unreachable.

use std::fs;

use attest_cluster_api::{WatchCache, WatchStatus, keep};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta};
use kube::core::Selector;
use serde_json::json;

use super::{Asked, shown};
use crate::support::{Gateway, LIMIT};

const NODES: &str = "nodes";

fn rules() -> serde_json::Value {
    json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}])
}

fn node(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"of": name}}, "status": {"phase": "Running"}})
}

/// Starts a watch cache of the nodes.
fn node_cache(asked: &Asked) -> WatchCache<Node> {
    let nodes = Api::all(asked.cluster.client());
    let (kept, keeping) = keep(&nodes, (), &Selector::default(), NODES, asked.cluster.health());
    tokio::spawn(keeping.run());
    kept
}

fn names(kept: &WatchCache<Node>) -> Option<Vec<String>> {
    let mut names: Vec<String> = kept.all()?.iter().filter_map(|node| node.metadata.name.clone()).collect();
    names.sort();
    Some(names)
}

fn heard(asked: &Asked) -> WatchStatus {
    asked.cluster.health().watches().get(NODES).cloned().unwrap()
}

fn is_failing(heard: &WatchStatus) -> bool {
    matches!(heard, WatchStatus::Away { .. })
}

/// Waits until the watch has this status.
async fn wait_for_status(asked: &Asked, what: &str, is_so: impl Fn(&WatchStatus) -> bool) {
    let mut told = asked.cluster.health().subscribe();
    let waited = told.wait_for(|watches| watches.get(NODES).is_some_and(&is_so));
    let is_told = tokio::time::timeout(LIMIT, waited).await.is_ok_and(|told| told.is_ok());
    assert!(is_told, "{what}: not within {} s", LIMIT.as_secs());
}

/// Waits until the watch is healthy: then the cache is current.
async fn well(asked: &Asked) {
    wait_for_status(asked, "it is well", |heard| *heard == WatchStatus::Well).await;
}

/// Waits until exactly these nodes are in the cache.
async fn has(kept: &mut WatchCache<Node>, wanted: &[&str]) {
    let wanted = Some(wanted.iter().map(|name| (*name).to_owned()).collect());
    let waited = async {
        while names(kept) != wanted {
            kept.changed().await;
        }
    };
    let is_so = tokio::time::timeout(LIMIT, waited).await.is_ok();
    assert!(is_so, "{wanted:?}: not within {} s", LIMIT.as_secs());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cache_is_empty_until_the_first_list() {
    let asked = Asked::with(&rules()).await;
    asked.api.disturb(Disturbance::Down);
    let kept = node_cache(&asked);
    wait_for_status(&asked, "the failure is said", is_failing).await;
    assert_eq!(names(&kept), None);
    asked.api.recover();
    well(&asked).await;
    assert_eq!(names(&kept), Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cache_reports_each_change() {
    let asked = Asked::with(&rules()).await;
    asked.api.put(node("a"));
    let mut kept = node_cache(&asked);
    kept.changed().await;
    let is = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(names(&kept), is(&["a"]));
    asked.api.put(node("b"));
    kept.changed().await;
    assert_eq!(names(&kept), is(&["a", "b"]));
    asked.api.remove("nodes", "", "a");
    kept.changed().await;
    assert_eq!(names(&kept), is(&["b"]));
    asked.api.break_watches();
    asked.api.put(node("c"));
    // A watch goes on where another ended.
    has(&mut kept, &["b", "c"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cache_survives_an_api_outage() {
    for history in [RestartHistory::Kept, RestartHistory::Lost] {
        let asked = Asked::with(&rules()).await;
        asked.api.put(node("a"));
        let mut kept = node_cache(&asked);
        well(&asked).await;
        asked.api.disturb(Disturbance::Down);
        wait_for_status(&asked, "the failure is said", is_failing).await;
        assert_eq!(names(&kept), Some(vec!["a".to_owned()]), "{history:?}");
        asked.api.remove("nodes", "", "a");
        asked.api.put(node("b"));
        asked.api.restart(history);
        has(&mut kept, &["b"]).await;
        well(&asked).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_recovers_after_an_outage_without_changes() {
    let asked = Asked::with(&rules()).await;
    let _kept = node_cache(&asked);
    well(&asked).await;
    asked.api.disturb(Disturbance::Down);
    wait_for_status(&asked, "the failure is said", is_failing).await;
    asked.api.recover();
    well(&asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_starts_once_access_is_granted() {
    let asked = Asked::with(&json!([])).await;
    let kept = node_cache(&asked);
    wait_for_status(&asked, "the refusal is said", is_failing).await;
    let WatchStatus::Away { reason, .. } = heard(&asked) else {
        panic!("away")
    };
    assert!(reason.contains("cannot list resource"), "{reason}");
    assert!(!reason.contains(&asked.token), "{reason}");
    assert_eq!(names(&kept), None);
    asked.api.grant(super::NAMESPACE, "gateway", &rules());
    well(&asked).await;
    assert_eq!(names(&kept), Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_missing_watch_permission() {
    let asked = Asked::with(&json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}])).await;
    let kept = node_cache(&asked);
    wait_for_status(&asked, "the refusal is said", is_failing).await;
    // It is tried again and again, and stays so.
    let refused = || watches(&asked).iter().filter(|(_, status)| *status == 403).count() >= 3;
    shown(&asked.api, "the watch is refused", refused).await;
    assert!(is_failing(&heard(&asked)), "{:?}", heard(&asked));
    assert_eq!(names(&kept), Some(Vec::new()));
}

/// Returns the watches so far: the requested duration of each, and its status.
fn watches(asked: &Asked) -> Vec<(String, u16)> {
    let all = asked.api.asked().into_iter().filter(|asked| asked.verb == "watch");
    let lasting = |query: &str| {
        let mut parameters = query.split('&');
        parameters
            .find_map(|parameter| parameter.strip_prefix("timeoutSeconds="))
            .unwrap_or_default()
            .to_owned()
    };
    all.map(|asked| (lasting(&asked.query), asked.status)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_restored_when_the_watch_itself_is_established() {
    let asked = Asked::with(&rules()).await;
    let mut kept = node_cache(&asked);
    well(&asked).await;
    asked.api.disturb(Disturbance::Down);
    wait_for_status(&asked, "the failure is said", is_failing).await;
    asked.api.forget_asked();
    asked.api.recover();
    well(&asked).await;
    // What lasts, and not a probe: from here on each change is told.
    assert_eq!(watches(&asked), [("60".to_owned(), 200)]);
    asked.api.put(node("a"));
    has(&mut kept, &["a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relists_an_expired_resource_version_without_an_alert() {
    let asked = Asked::with(&rules()).await;
    asked.api.put(node("a"));
    let mut kept = node_cache(&asked);
    well(&asked).await;
    has(&mut kept, &["a"]).await;
    let mut health = asked.cluster.health().subscribe();
    health.borrow_and_update();
    asked.api.forget_asked();
    asked.api.remove("nodes", "", "a");
    asked.api.put(node("b"));
    asked.api.compact();
    // Until here the watch has told; from here on nobody knows what has happened since.
    has(&mut kept, &["b"]).await;
    asked.api.put(node("c"));
    asked.api.compact();
    asked.api.break_watches();
    asked.api.put(node("d"));
    has(&mut kept, &["b", "c", "d"]).await;
    assert!(!health.has_changed().unwrap(), "{:?}", asked.cluster.health().watches());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_immediately_resumed_watch_is_not_lost() {
    let asked = Asked::with(&rules()).await;
    let mut kept = node_cache(&asked);
    well(&asked).await;
    let mut health = asked.cluster.health().subscribe();
    health.borrow_and_update();
    for _ in 0..3 {
        asked.api.break_watches();
    }
    asked.api.put(node("a"));
    has(&mut kept, &["a"]).await;
    assert!(!health.has_changed().unwrap(), "{:?}", asked.cluster.health().watches());
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_listed_in_small_pages() {
    let asked = Asked::with(&rules()).await;
    let names: Vec<String> = (0..50).map(|number| format!("node-{number:02}")).collect();
    for name in &names {
        asked.api.put(node(name));
    }
    let mut kept = node_cache(&asked);
    has(&mut kept, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let all = asked.api.asked();
    let lists: Vec<&str> = all
        .iter()
        .filter(|asked| asked.verb == "list")
        .map(|asked| asked.query.as_str())
        .collect();
    let is_page = |query: &&str| query.split('&').any(|parameter| parameter == "limit=10");
    assert!(lists.len() == 5 && lists.iter().all(is_page), "{lists:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_an_expired_api_token() {
    let asked = Asked::with(&rules()).await;
    let _kept = node_cache(&asked);
    well(&asked).await;
    asked.api.expire(&asked.token);
    asked.api.break_watches();
    wait_for_status(&asked, "the refusal is said", is_failing).await;
    let WatchStatus::Away { reason, .. } = heard(&asked) else {
        panic!("away")
    };
    assert!(
        reason.starts_with("401 Unauthorized: ") && reason.contains("has expired"),
        "{reason}"
    );
    assert!(!reason.contains("Status {") && !reason.contains(&asked.token), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_of_all_watches_logs_two_lines() {
    let api = KubernetesApi::start();
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes", "configmaps"], "verbs": ["list", "watch"]},
        {"apiGroups": ["machine.openshift.io"], "resources": ["machines"], "verbs": ["list", "watch"]},
        {"apiGroups": ["machineconfiguration.openshift.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
    ]);
    api.grant(super::NAMESPACE, "gateway", &rules);
    let mut gateway = Gateway::init();
    fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token(super::NAMESPACE, "gateway"))).unwrap();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = true\nmachines = true\nclient_ca = true");
    gateway.run();
    let watched = |api: &KubernetesApi| {
        api.asked()
            .iter()
            .filter(|asked| asked.verb == "watch" && asked.status == 200)
            .count()
    };
    shown(&api, "eight watches are established", || watched(&api) == 8).await;
    api.disturb(Disturbance::Down);
    gateway.line(|line| line.contains("lost, using cached state: "));
    // Checked while it is away: one cause is one line.
    let checked = gateway.try_command(&["check"]);
    let checked = String::from_utf8(checked.stdout).unwrap();
    let causes: Vec<&str> = checked.lines().filter(|line| line.contains("cluster: ")).collect();
    assert!(causes.len() == 1 && causes[0].contains("DEGRADED"), "{checked}");
    api.forget_asked();
    api.recover();
    let restored = gateway.line(|line| line.contains("cluster: restored after "));
    shown(&api, "all are back", || watched(&api) == 8).await;
    let said = gateway.output();
    let lines = |words: &str| {
        said.lines()
            .filter(|line| line.contains("cluster: ") && line.contains(words))
            .count()
    };
    assert_eq!((lines(" lost, "), lines("restored after ")), (1, 1), "{said}");
    assert!(restored.contains("watches of ") && !said.contains("Status {"), "{restored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fetches_only_metadata_of_large_objects() {
    let asked = Asked::with(&rules()).await;
    asked.api.put(node("a"));
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(asked.cluster.client());
    let (kept, keeping) = keep(&nodes, (), &Selector::default(), NODES, asked.cluster.health());
    tokio::spawn(keeping.run());
    well(&asked).await;
    let listed = kept.all().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(serde_json::to_value(&*listed[0]).unwrap()["status"], serde_json::Value::Null);
    assert_eq!(listed[0].metadata.name.as_deref(), Some("a"));
}
