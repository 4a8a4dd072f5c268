//! Two gateways with a copy of the same state: only one serves.

use std::path::Path;

use super::*;

/// Returns the key of the gateway with this state.
fn key(state: &Path) -> String {
    let id = std::fs::read_to_string(state.join("replica.id")).unwrap();
    format!("a/gateway/replica/{}", id.trim())
}

/// A gateway replaces a key as a leftover of its own killed process only if boot, machine and folder match.
#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_replica_key_only_on_its_host() {
    let site = Site::start();
    let store = site.open("one");
    store.serve().await.unwrap();
    let key = key(&site.states.path().join("one"));
    let own = site.etcd.ctl(&["get", &key, "--print-value-only"]);
    drop(store);
    let own: serde_json::Value = serde_json::from_str(&own).unwrap();
    let put_by = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = own.clone();
        value["session"] = "00".repeat(16).into();
        change(&mut value["place"]);
        let value = value.to_string();
        let etcd = &site.etcd;
        let key = key.clone();
        move |seconds: u32| {
            let id = etcd.ctl(&["lease", "grant", &seconds.to_string()]);
            etcd.ctl(&["put", &key, &value, "--lease", id.split(' ').nth(1).unwrap()]);
        }
    };
    for (member, another) in [("boot", "another".into()), ("device", 7.into()), ("inode", 7.into())] {
        let put = put_by(&|place| place[member] = serde_json::Value::clone(&another));
        put(100);
        let (store, done) = (site.open("one"), std::sync::atomic::AtomicBool::new(false));
        let keep = async {
            // Somebody keeps it.
            let mut seconds = 100;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                seconds += 10;
                put(seconds);
                tokio::task::yield_now().await;
            }
        };
        let serve = async {
            let served = store.serve().await;
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            served
        };
        let (refused, ()) = tokio::join!(serve, keep);
        assert!(matches!(refused, Err(StoreError::Copied { .. })), "{member}: {refused:?}");
        site.etcd.ctl(&["del", &key]);
    }
    put_by(&|_| {})(100);
    site.open("one").serve().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_transactions_until_its_replica_lease_is_renewed() {
    let site = Site::start();
    let store = site.open("one");
    store.serve().await.unwrap();
    let key = key(&site.states.path().join("one"));
    site.etcd.ctl(&["del", &key]);
    let refused = put(&store, "a", "1").await.unwrap_err().to_string();
    assert!(refused.contains("lease"), "{refused}");
    while put(&store, "a", "2").await.is_err() {}
    // Another one has its place.
    site.etcd.ctl(&["put", &key, "another"]);
    for _ in 0..20 {
        put(&store, "a", "3").await.unwrap_err();
    }
    site.etcd.ctl(&["del", &key]);
    while get(&store, "a").await.is_err() {}
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_the_lease_of_a_killed_gateway() {
    let site = Site::start();
    let store = site.open("one");
    let id = site.etcd.ctl(&["lease", "grant", "3"]);
    let key = key(&site.states.path().join("one"));
    site.etcd.ctl(&["put", &key, "another", "--lease", id.split(' ').nth(1).unwrap()]);
    store.serve().await.unwrap();
    assert!(site.etcd.ctl(&["get", &key, "--print-value-only"]).contains("session"));
}
