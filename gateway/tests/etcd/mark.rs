//! Identity of the store, and its high-water mark.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_rises_with_each_commit_that_writes() {
    let site = Site::start();
    let (store, other) = (site.open("one"), site.open("two"));
    let began = store.store_mark().unwrap();
    assert_eq!(other.store_mark().unwrap().id, began.id);
    put(&store, "a", "1").await.unwrap();
    let written = store.store_mark().unwrap();
    assert_eq!((written.id, written.mark), (began.id, began.mark + 1));
    get(&store, "a").await.unwrap();
    assert_eq!(store.store_mark().unwrap().mark, began.mark + 1, "nothing was written");
    put(&other, "b", "1").await.unwrap();
    assert_eq!(other.store_mark().unwrap().mark, began.mark + 2, "that of the other replica counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_detects_a_rollback_at_runtime_and_start() {
    let mut site = Site::start();
    let store = site.open("one");
    put(&store, "revoked", "1").await.unwrap();
    site.etcd.save("before");
    put(&store, "revoked", "2").await.unwrap();
    store.keep_mark().await.unwrap();
    site.etcd.restore("before");
    // Whoever has it open decides nothing by it.
    for refused in [get(&store, "revoked").await.map(drop), put(&store, "revoked", "3").await] {
        assert!(matches!(refused, Err(StoreError::Replaced(_))), "{refused:?}");
    }
    let refused = store.count(range("a", "z")).await;
    assert!(matches!(refused, Err(StoreError::Replaced(_))), "{refused:?}");
    drop(store);
    let refused = site.try_open("one").unwrap_err();
    assert!(matches!(refused, StoreError::Older { .. }), "{refused}");
    assert!(refused.to_string().contains("store accept"), "{refused}");
    assert!(refused.to_string().contains("at mark"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_refuses_an_emptied_or_different_store() {
    let mut site = Site::start();
    let store = site.open("one");
    put(&store, "revoked", "1").await.unwrap();
    store.keep_mark().await.unwrap();
    site.etcd.ctl(&["del", "--prefix", "a/gateway/"]);
    let refused = get(&store, "revoked").await;
    assert!(matches!(refused, Err(StoreError::Replaced(_))), "{refused:?}");
    drop(store);
    let refused = site.try_open("one").unwrap_err();
    assert!(matches!(refused, StoreError::Lost { .. }), "{refused}");
    // Begun anew by another gateway.
    site.open("two");
    let refused = site.try_open("one").unwrap_err();
    assert!(matches!(refused, StoreError::Other { .. }), "{refused}");
    site.etcd.restart();
    site.open("two");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_each_rollback_requires_another_store_accept() {
    let mut site = Site::start();
    let beside = |gateway: &str| site.states.path().join(gateway).join("gateway.db");
    let [one, two, late] = ["one", "two", "late"].map(beside);
    let accept = |settings: EtcdSettings, gateway: &std::path::Path| {
        let accepted = Etcd::accept(&settings, gateway, |_| Ok::<_, StoreError>(()));
        accepted.unwrap().now
    };
    for gateway in ["two", "late"] {
        site.open(gateway);
    }
    let store = site.open("one");
    let first = store.store_mark().unwrap().id;
    put(&store, "revoked", "1").await.unwrap();
    site.etcd.save("before");
    put(&store, "revoked", "2").await.unwrap();
    store.keep_mark().await.unwrap();
    drop(store);
    site.etcd.restore("before");
    let second = accept(site.settings(), &one).id;
    assert_ne!(second, first);
    assert_eq!(accept(site.settings(), &two).id, second, "it knew the one in whose place this is");
    site.etcd.restore("before");
    for gateway in ["one", "two"] {
        let refused = site.try_open(gateway).unwrap_err();
        assert!(matches!(refused, StoreError::Other { .. }), "{refused}");
    }
    let third = accept(site.settings(), &one).id;
    assert!(
        third != first && third != second,
        "what was spent in the second may be unspent here"
    );
    assert_eq!(accept(site.settings(), &two).id, third);
    assert_eq!(accept(site.settings(), &late).id, third, "and of those before");
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_foreign_keys_in_etcd_alone() {
    let site = Site::start();
    site.etcd.ctl(&["put", "a/gatewayx", "somebody else's"]);
    site.open("one");
    site.etcd.ctl(&["put", "a/gateway/schema", "2 0.2.0"]);
    let refused = site.try_open("one").unwrap_err().to_string();
    assert!(
        refused.contains("schema 2") && refused.contains("reads 1: run release 0.2.0 or"),
        "{refused}"
    );
    site.etcd.ctl(&["del", "a/gateway/schema"]);
    let refused = site.try_open("one").unwrap_err();
    assert!(matches!(refused, StoreError::Foreign { .. }), "{refused}");
    assert_eq!(site.etcd.ctl(&["get", "--print-value-only", "a/gatewayx"]), "somebody else's\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_leaves_no_session_keys() {
    let site = Site::start();
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    let keys = || site.etcd.ctl(&["get", "--prefix", "--keys-only", ""]);
    store.serve().await.unwrap();
    for folder in ["committer", "replica"] {
        assert!(keys().contains(&format!("a/gateway/{folder}/")), "{}", keys());
    }
    drop(store);
    let left: Vec<String> = keys().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let id = std::fs::read_to_string(site.states.path().join("one/replica.id")).unwrap();
    let wrote = format!("a/gateway/wrote/{}", id.trim());
    assert_eq!(
        left,
        ["a/gateway/kv/a", "a/gateway/mark", "a/gateway/schema", "a/gateway/store", &wrote]
    );
}
