//! Unexpected changes of the store's objects, and missing rights of the gateways.

use cloud_fixtures::kubernetes::Disturbance;

use super::*;

/// Timeout for requests that are answered at once or never.
const SHORT: Duration = Duration::from_secs(2);

/// Returns the number of refused changes of the head.
fn refusals(site: &Site) -> usize {
    let is_one = |asked: &&cloud_fixtures::kubernetes::ResourceRequest| asked.verb == "patch" && asked.status == 422;
    site.api.asked().iter().filter(is_one).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_an_immutable_head_without_busy_retries() {
    let site = Site::start();
    let store = site.open_for("one", SHORT).unwrap();
    put(&store, "a", "1").await.unwrap();
    let mut head = site.head();
    head["immutable"] = json!(true);
    site.api.put(head);
    site.api.forget_asked();
    let refused = put(&store, "a", "2").await.unwrap_err().to_string();
    assert!(
        refused.contains("field is immutable") && refused.contains("was committed"),
        "{refused}"
    );
    assert!(refusals(&site) < 40, "{}", refusals(&site));
    // What was sent may come yet; so nothing is answered until it cannot any more.
    get(&store, "a").await.unwrap_err();
    let mut head = site.head();
    head.as_object_mut().unwrap().remove("immutable");
    site.api.put(head);
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    put(&store, "a", "3").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn store_accept_reports_an_immutable_head() {
    let site = Site::start();
    drop(site.open("one"));
    let another = site.mark_path("another");
    let mark = r#"{"id":"00000000000000000000000000000000","mark":1}"#;
    std::fs::write(another.with_file_name("store.mark"), mark).unwrap();
    let mut head = site.head();
    head["immutable"] = json!(true);
    site.api.put(head);
    site.api.forget_asked();
    let settings = KubernetesSettings {
        timeout: SHORT,
        ..site.settings("another")
    };
    let refused = Kubernetes::accept(&settings, &another, |_| Ok::<_, StoreError>(()))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("field is immutable"), "{refused}");
    assert!(refusals(&site) < 40, "{}", refusals(&site));
}

/// An account may change the head, and create no leaves.
#[tokio::test(flavor = "multi_thread")]
async fn reads_succeed_although_compaction_is_forbidden() {
    let site = Site::start();
    drop(site.open("one"));
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "patch", "delete"]}]);
    site.api.grant(NAMESPACE, "changer", &rules);
    let token = site.api.token(NAMESPACE, "changer");
    site.tokens.lock().unwrap().insert("one".to_owned(), token);
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    let full = loop {
        if let Err(full) = put(&store, "b", &"x".repeat(200_000)).await {
            break full.to_string();
        }
        if let Err(full) = put(&store, "c", &"x".repeat(200_000)).await {
            break full.to_string();
        }
    };
    assert!(full.contains("no room"), "{full}");
    let at_once = (0..20).map(async |_| tokio::join!(put(&store, "a", "2"), get(&store, "a"), count_up(&store, "counter")));
    for (written, read, counted) in futures_util::future::join_all(at_once).await {
        for refused in [written.unwrap_err(), counted.map(drop).unwrap_err()] {
            assert!(refused.to_string().contains("no room"), "{refused}");
        }
        assert_eq!(read.unwrap().as_deref(), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_replicas_resume_after_a_long_api_outage() {
    let limits = KubernetesLimits {
        lease: Duration::from_millis(800),
        ..KubernetesLimits::default()
    };
    let site = Site::start();
    let stores = ["one", "two", "three"].map(|name| {
        let settings = KubernetesSettings {
            timeout: SHORT,
            ..site.settings(name)
        };
        Kubernetes::open_within(&settings, &site.mark_path(name), limits).unwrap()
    });
    for store in &stores {
        store.serve().await.unwrap();
    }
    let sessions = |site: &Site| site.decoded()["sessions"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let before = sessions(&site);
    site.api.disturb(Disturbance::Down);
    let begun = std::time::Instant::now();
    while begun.elapsed() < limits.lease * 2 {
        put(&stores[0], "a", "1").await.unwrap_err();
    }
    site.api.recover();
    for store in &stores {
        while put(store, "a", "2").await.is_err() {
            assert!(begun.elapsed() < crate::support::LIMIT);
        }
    }
    assert_eq!(sessions(&site), before);
}

/// A range of the store is larger than the cache.
#[tokio::test(flavor = "multi_thread")]
async fn counts_a_range_larger_than_the_cache() {
    let limits = KubernetesLimits {
        cache_bytes: 64 * 1024,
        ..KubernetesLimits::default()
    };
    let site = Site::start();
    let store = site.open("one");
    for number in 0..120 {
        put(&store, &format!("a/{number:03}"), &"x".repeat(10_000)).await.unwrap();
    }
    assert!(site.leaves().len() > 16, "more than are fetched at once");
    let other = site.open_within("two", limits).unwrap();
    assert_eq!(other.count(range("a/", "a0")).await.unwrap(), 120);
    assert_eq!(get(&other, "a/007").await.unwrap().unwrap().len(), 10_000);
}
