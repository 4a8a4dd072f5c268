//! Two releases on one store: the older one meets data of the newer one.

use std::sync::atomic::{AtomicBool, Ordering};

use attest_store::{EntryKind, Store, StoreEntry};

use super::gateways::gateway;
use super::*;
use crate::support::{POOL, bearer};

/// Keys of the schema versions of the site's stores and gateways.
const SCHEMA: &str = "a/gateway/schema";
const SCHEMA_OF_GATEWAYS: &str = "b/schema";

fn newer(refused: &StoreError) -> (i64, i64) {
    match refused {
        StoreError::Schema { newer, .. } => (newer.found, newer.known),
        other => panic!("{other}"),
    }
}

/// Returns everything below the prefix, with the number of writes of each key.
fn all(site: &Site) -> String {
    site.etcd.ctl(&["get", "--prefix", "a/gateway/", "--write-out", "fields"])
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_reads_and_writes_after_a_schema_upgrade() {
    let site = Site::start();
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    site.etcd.ctl(&["put", SCHEMA, "2 0.2.0"]);
    // But for the revision that etcd itself is at.
    let content = |all: String| {
        all.lines()
            .filter(|line| !line.starts_with("\"Revision\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = content(all(&site));
    assert_eq!(newer(&put(&store, "a", "2").await.unwrap_err()), (2, 1));
    assert_eq!(newer(&count_up(&store, "b").await.unwrap_err()), (2, 1));
    assert_eq!(newer(&get(&store, "a").await.unwrap_err()), (2, 1));
    assert_eq!(newer(&store.page(range("a", "b"), 9).await.unwrap_err()), (2, 1));
    assert_eq!(newer(&store.count(range("a", "b")).await.unwrap_err()), (2, 1));
    assert!(!matches!(store.acquire_lease("rotate", Duration::from_secs(2)).await, Ok(Some(_))));
    assert_eq!(newer(&site.try_open("two").unwrap_err()), (2, 1));
    let accepted = Etcd::accept(&site.settings(), &site.states.path().join("one/gateway.db"), |_| {
        Ok::<_, StoreError>(())
    });
    assert_eq!(newer(&accepted.unwrap_err()), (2, 1));
    assert_eq!(content(all(&site)), before);
    // Nobody has damaged anything: the same process goes on.
    site.etcd.ctl(&["put", SCHEMA, "1 0.1.0"]);
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    // A version that is none is no newer one.
    for version in ["0 0.1.0", "", "1", "1.5 0.1.0", "two 0.1.0"] {
        site.etcd.ctl(&["put", SCHEMA, version]);
        assert!(matches!(put(&store, "a", "2").await, Err(StoreError::Replaced(_))), "{version}");
    }
    // Transactions would compare the whole text, in vain.
    for version in ["1 9.9.9", "+1 0.1.0", "1  0.1.0", "1 0.1.0 "] {
        site.etcd.ctl(&["put", SCHEMA, version]);
        let refused = site.try_open("two").unwrap_err().to_string();
        assert!(refused.contains("does not know its `schema`"), "{version:?}: {refused}");
    }
}

/// The entry with the store's identity has a schema version of its own.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_store_identity_of_a_newer_release() {
    const NAME: &str = "a/gateway/store";
    let site = Site::start();
    drop(site.open("one"));
    let name = site.etcd.ctl(&["get", "--print-value-only", NAME]);
    for (member, value) in [("v", 2), ("more", 1)] {
        let mut altered: serde_json::Value = serde_json::from_str(&name).unwrap();
        altered[member] = value.into();
        site.etcd.ctl(&["put", NAME, &altered.to_string()]);
        let refused = site.try_open("one").unwrap_err().to_string();
        assert!(refused.contains("newer") && refused.contains("run "), "{refused}");
        let beside = site.states.path().join("one/gateway.db");
        Etcd::accept(&site.settings(), &beside, |_| Ok::<_, StoreError>(())).unwrap_err();
        let found: serde_json::Value = serde_json::from_str(&site.etcd.ctl(&["get", "--print-value-only", NAME])).unwrap();
        assert_eq!(found, altered);
    }
    site.etcd.ctl(&["put", NAME, name.trim()]);
    site.open("one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_across_a_schema_upgrade_fails() {
    let site = Site::start();
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    let (endpoint, raised) = (site.etcd.endpoint(), AtomicBool::new(false));
    let refused = run(&store, move |transaction| {
        let found = transaction.get("a")?;
        // The first run asks for the key, the second has it.
        if found.is_some() && !raised.swap(true, Ordering::Relaxed) {
            let arguments = ["--endpoints", &endpoint, "put", SCHEMA, "2 0.2.0"];
            let mut raise = std::process::Command::new("etcdctl");
            assert!(raise.env("ETCDCTL_API", "3").args(arguments).status().unwrap().success());
        }
        transaction.put("a", "2")
    });
    assert_eq!(newer(&refused.await.unwrap_err()), (2, 1));
    assert_eq!(site.etcd.ctl(&["get", "--print-value-only", "a/gateway/kv/a"]).trim(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_entries_of_a_newer_release() {
    let site = Site::start();
    let store = site.open("one");
    let (kind, key) = (EntryKind::Name, "entry/name/node-1");
    let named = |value: &str| StoreEntry {
        id: "node-1".to_owned(),
        value: value.to_owned(),
    };
    Store::put(&store, kind, named("tpm:00")).await.unwrap();
    let written = get(&store, key).await.unwrap().unwrap();
    for altered in [
        written.replace("\"v\":1", "\"v\":2"),
        written.replace("{\"v\":1", "{\"v\":1,\"more\":1"),
    ] {
        assert_ne!(altered, written);
        put(&store, key, &altered).await.unwrap();
        let refused = Store::get(&store, kind, "node-1").await.unwrap_err().to_string();
        assert!(refused.contains(key) && refused.contains("newer"), "{refused}");
        store.insert(kind, named("tpm:01")).await.unwrap_err();
        store.remove(kind, "node-1").await.unwrap_err();
        store.list(kind).await.unwrap_err();
        assert_eq!(get(&store, key).await.unwrap().unwrap(), altered);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_503_after_a_schema_upgrade() {
    let site = Site::start();
    let mut gateway = gateway(&site, "");
    let full = gateway.rendered(POOL, "full");
    let token = gateway.token(&["--name", "rack7", "--uses", "9"]);
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    site.etcd.ctl(&["put", SCHEMA_OF_GATEWAYS, "2 0.2.0"]);
    gateway.config("/config/worker", &[&bearer(&token)]).await.check_retry();
    let ready = gateway.client.get(gateway.url("/readyz")).send().await.unwrap();
    assert_eq!(ready.status(), 503);
    let both = "store schema 2, and release 0.1.0 reads 1: run ";
    gateway.line(|line| line.contains(both));
    for command in [&["token", "revoke", "rack7"][..], &["serve"], &["check"]] {
        let refused = gateway.try_command(command);
        let said = [refused.stdout, refused.stderr].concat();
        assert!(
            !refused.status.success() && String::from_utf8_lossy(&said).contains(both),
            "{command:?}"
        );
    }
    // Whoever has a newer release goes on; here it is the same one.
    site.etcd.ctl(&["put", SCHEMA_OF_GATEWAYS, "1 0.1.0"]);
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    gateway.terminate();
    assert!(gateway.wait().success());
}
