//! Replacement of the store by another one, or by an old state: the gateways that know better notice it, and then all of them do.

use attest_store::AcceptedStore;

use super::*;

impl Site {
    fn accept(&self, gateway: &str) -> AcceptedStore {
        Kubernetes::accept(&self.settings(gateway), &self.mark_path(gateway), |_| Ok::<_, StoreError>(())).unwrap()
    }
}

/// Verifies that all kinds of requests are refused.
async fn is_refused(store: &Kubernetes) {
    let answers = [
        get(store, "revoked").await.map(drop),
        put(store, "revoked", "again").await,
        store.count(range("a", "z")).await.map(drop),
        store.page(range("a", "z"), 1).await.map(drop),
    ];
    for refused in answers {
        assert!(matches!(refused, Err(StoreError::Replaced(_))), "{refused:?}");
    }
}

async fn put_often(store: &Kubernetes, key: &str, times: u32) {
    for number in 0..times {
        put(store, key, &number.to_string()).await.unwrap();
    }
}

/// The cluster's own etcd is restored to an old state. It assigns its revisions again, so that two states may have the same resource
/// version.
#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_running_gateway_detects_that_its_commits_vanished() {
    let site = Site::start();
    drop(site.open("two"));
    let one = site.open("one");
    put_often(&one, "before", 3).await;
    let before = site.head();
    put_often(&one, "revoked", 5).await;
    let known = one.store_mark().unwrap();
    site.api.put(before);
    let two = site.open("two");
    put_often(&two, "later", 8).await;
    let now = two.store_mark().unwrap();
    assert!(now.id == known.id && now.mark > known.mark, "the mark says nothing: {now}, {known}");
    is_refused(&one).await;
    // And who could not tell is told.
    is_refused(&two).await;
    for gateway in ["two", "new"] {
        let refused = site.try_open(gateway).unwrap_err();
        assert!(matches!(refused, StoreError::SetBack { .. }), "{refused}");
    }
    // One accepts it, under another name; the others take it for that.
    let now = site.accept("one").now;
    assert_eq!(site.accept("two").now.id, now.id);
    for gateway in ["one", "two"] {
        put(&site.open(gateway), "again", gateway).await.unwrap();
    }
    is_refused(&two).await;
}

/// A state has the resource version of another one that a gateway knows: a write of that gateway would undo it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_42_distinguishes_states_with_equal_resource_versions() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    put(&one, "a", "1").await.unwrap();
    let known = site.head();
    put(&two, "a", "2").await.unwrap();
    let mut now = site.head();
    now["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
    site.api.put_as_it_is(now);
    put(&one, "b", "1").await.unwrap();
    assert_eq!(get(&one, "a").await.unwrap().as_deref(), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_refuses_an_older_different_or_missing_store() {
    let site = Site::start();
    let one = site.open("one");
    put_often(&one, "a", 2).await;
    let before = site.head();
    put_often(&one, "a", 2).await;
    one.keep_mark().await.unwrap();
    let now = site.head();
    let refused = |expected: &str| {
        let refused = site.try_open("one").unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        assert!(Kubernetes::exists(&site.settings("one"), &site.mark_path("one")).is_err());
    };
    site.api.put(before);
    refused("4 was seen before");
    is_refused(&one).await;
    site.api.remove("secrets", NAMESPACE, HEAD);
    refused("is missing or empty");
    is_refused(&one).await;
    let another = site.open("another");
    put_often(&another, "a", 9).await;
    refused("but ");
    is_refused(&one).await;
    // Back is the newest, and all is as it was.
    site.api.put(now);
    assert_eq!(get(&site.open("one"), "a").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_malformed_heads_and_newer_releases() {
    let site = Site::start();
    drop(site.open("one"));
    let head = site.head();
    type Change = fn(&mut Value);
    let strange: [(Change, &str); 6] = [
        (|head| head["data"] = json!({}), "no data"),
        (|head| head["data"]["data"] = json!("AAAA"), "its head is none"),
        (|head| head["data"]["data"] = json!(""), "its head is none"),
        (|head| head["metadata"]["annotations"] = json!({}), "another commit"),
        (
            |head| head["metadata"]["annotations"]["attest-gateway/commit"] = json!("00"),
            "another commit",
        ),
        (
            |head| head["data"]["data"] = json!(data_encoding::BASE64.encode(&zstd::bulk::compress(b"{\"v\":2}", 1).unwrap())),
            "2",
        ),
    ];
    for (change, expected) in strange {
        let mut changed = head.clone();
        change(&mut changed);
        site.api.put(changed.clone());
        let before = site.head();
        for gateway in ["one", "new"] {
            let refused = site.try_open(gateway).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
        assert_eq!(site.head(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn detects_missing_or_altered_leaves() {
    let site = Site::start();
    let store = site.open("one");
    for number in 0..8 {
        put(&store, &format!("a/{number}"), &"x".repeat(12_000)).await.unwrap();
    }
    drop(store);
    let name = site.leaves().pop().unwrap();
    let leaf = site.api.get("secrets", NAMESPACE, &name).unwrap();
    let mut changed = leaf.clone();
    changed["data"]["data"] = json!("AAAA");
    for gone in [false, true] {
        if gone {
            site.api.remove("secrets", NAMESPACE, &name);
        } else {
            site.api.put(changed.clone());
        }
        let read = site.open("one").count(range("a/", "a0")).await.unwrap_err();
        assert!(matches!(read, StoreError::Damaged { .. }), "{read}");
    }
    site.api.put(leaf);
    assert_eq!(site.open("one").count(range("a/", "a0")).await.unwrap(), 8);
}
