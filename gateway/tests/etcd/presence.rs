//! Of two gateways with one state, because it was copied, one serves.

use std::path::Path;

use super::*;

/// The key of the gateway whose state this is.
fn key(state: &Path) -> String {
    let id = std::fs::read_to_string(state.join("replica.id")).unwrap();
    format!("a/gateway/replica/{}", id.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_a_copied_state_does_not_start_beside_the_other() {
    let site = Site::start();
    let one = site.open("one");
    one.serve().await.unwrap();
    let [state, copied] = ["one", "copied"].map(|name| site.states.path().join(name));
    std::fs::create_dir(&copied).unwrap();
    for file in ["replica.id", "store.mark"] {
        std::fs::copy(state.join(file), copied.join(file)).unwrap();
    }
    let refused = site.open("copied").serve().await.unwrap_err();
    assert!(matches!(refused, StoreError::Copied { .. }), "{refused}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for named in [host.trim(), "was its state folder copied", "empty one"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    put(&one, "a", "1").await.unwrap();
    drop(one);
    // It was stopped, so this is the one.
    site.open("copied").serve().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_again_where_it_was_needs_not_wait_and_the_one_before_decides_nothing() {
    let site = Site::start();
    let (before, again) = (site.open("one"), site.open("one"));
    before.serve().await.unwrap();
    put(&before, "a", "1").await.unwrap();
    again.serve().await.unwrap();
    put(&again, "a", "2").await.unwrap();
    for refused in [
        put(&before, "a", "3").await,
        get(&before, "a").await.map(drop),
        before.page(range("a", "z"), 1).await.map(drop),
        before.count(range("a", "z")).await.map(drop),
    ] {
        assert!(refused.unwrap_err().to_string().contains("lease"));
    }
    // A command decides nothing that is this gateway's alone.
    assert_eq!(get(&site.open("one"), "a").await.unwrap().as_deref(), Some("2"));
}

/// Only what was put by the same boot of the same machine, for the same folder, is taken for what is left of one that was killed here.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_place_is_not_taken_for_one_s_own_of_before() {
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
async fn a_gateway_whose_lease_is_over_decides_nothing_until_it_has_one_again() {
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
async fn a_lease_of_a_gateway_that_was_killed_elsewhere_is_waited_for() {
    let site = Site::start();
    let store = site.open("one");
    let id = site.etcd.ctl(&["lease", "grant", "3"]);
    let key = key(&site.states.path().join("one"));
    site.etcd.ctl(&["put", &key, "another", "--lease", id.split(' ').nth(1).unwrap()]);
    store.serve().await.unwrap();
    assert!(site.etcd.ctl(&["get", &key, "--print-value-only"]).contains("session"));
}
