//! What is kept of the objects of a kind while they change, and while their API is away.

use attest_gateway::cluster::{Heard, Kept, keep};
use cloud_fixtures::kubernetes::{Disturbance, History};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta};
use kube::core::Selector;
use serde_json::json;

use super::{Asked, shown};
use crate::support::LIMIT;

const NODES: &str = "nodes";

fn rules() -> serde_json::Value {
    json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}])
}

fn node(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"of": name}}, "status": {"phase": "Running"}})
}

/// Keeps the nodes from now on.
fn kept(asked: &Asked) -> Kept<Node> {
    let nodes = Api::all(asked.cluster.client());
    let (kept, keeping) = keep(&nodes, (), &Selector::default(), NODES, asked.cluster.health());
    tokio::spawn(keeping.run());
    kept
}

fn names(kept: &Kept<Node>) -> Option<Vec<String>> {
    let mut names: Vec<String> = kept.all()?.iter().filter_map(|node| node.metadata.name.clone()).collect();
    names.sort();
    Some(names)
}

fn heard(asked: &Asked) -> Heard {
    asked.cluster.health().watches().get(NODES).cloned().unwrap()
}

fn is_away(heard: &Heard) -> bool {
    matches!(heard, Heard::Away { .. })
}

/// Waits until that is how the watch is.
async fn told(asked: &Asked, what: &str, is_so: impl Fn(&Heard) -> bool) {
    let mut told = asked.cluster.health().told();
    let waited = told.wait_for(|watches| watches.get(NODES).is_some_and(&is_so));
    let is_told = tokio::time::timeout(LIMIT, waited).await.is_ok_and(|told| told.is_ok());
    assert!(is_told, "{what}: not within {} s", LIMIT.as_secs());
}

/// Waits until it is well: then what is kept is what there is.
async fn well(asked: &Asked) {
    told(asked, "it is well", |heard| *heard == Heard::Well).await;
}

/// Waits until these are kept.
async fn has(kept: &mut Kept<Node>, wanted: &[&str]) {
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
async fn nothing_is_known_before_all_were_listed() {
    let asked = Asked::with(&rules()).await;
    asked.api.disturb(Disturbance::Down);
    let kept = kept(&asked);
    told(&asked, "the failure is said", is_away).await;
    assert_eq!(names(&kept), None);
    asked.api.recover();
    well(&asked).await;
    assert_eq!(names(&kept), Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_told() {
    let asked = Asked::with(&rules()).await;
    asked.api.put(node("a"));
    let mut kept = kept(&asked);
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
async fn an_api_that_is_away_takes_nothing_away_and_one_that_is_back_is_believed() {
    for history in [History::Kept, History::Lost] {
        let asked = Asked::with(&rules()).await;
        asked.api.put(node("a"));
        let mut kept = kept(&asked);
        well(&asked).await;
        asked.api.disturb(Disturbance::Down);
        told(&asked, "the failure is said", is_away).await;
        assert_eq!(names(&kept), Some(vec!["a".to_owned()]), "{history:?}");
        asked.api.remove("nodes", "", "a");
        asked.api.put(node("b"));
        asked.api.restart(history);
        has(&mut kept, &["b"]).await;
        well(&asked).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_back_and_has_no_news_is_well() {
    let asked = Asked::with(&rules()).await;
    let _kept = kept(&asked);
    well(&asked).await;
    asked.api.disturb(Disturbance::Down);
    told(&asked, "the failure is said", is_away).await;
    asked.api.recover();
    well(&asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_asked_is_said_and_begins_when_it_may() {
    let asked = Asked::with(&json!([])).await;
    let kept = kept(&asked);
    told(&asked, "the refusal is said", is_away).await;
    let Heard::Away { reason, .. } = heard(&asked) else {
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
async fn who_may_list_and_not_watch_is_not_told() {
    let asked = Asked::with(&json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}])).await;
    let kept = kept(&asked);
    told(&asked, "the refusal is said", is_away).await;
    // Whether it is well by now is asked by a watch that is short.
    let is_probe = |query: &str| query.split('&').any(|parameter| parameter == "timeoutSeconds=1");
    let refused = || {
        let asked = asked.api.asked();
        asked
            .iter()
            .any(|asked| asked.verb == "watch" && asked.status == 403 && is_probe(&asked.query))
    };
    shown(&asked.api, "the probe is refused", refused).await;
    assert!(is_away(&heard(&asked)), "{:?}", heard(&asked));
    assert_eq!(names(&kept), Some(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_is_large_only_the_metadata_is_asked_for() {
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
