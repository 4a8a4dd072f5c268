//! A node that the administrator has revoked gets nothing by its name, whatever it shows.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use attest_gateway::store::{Embedded, Entry, Kind, Pending, Spend, Spendable, Store, StoreError};
use reqwest::StatusCode;
use support::kubelet::{Cluster, Connection, PATH, embedded, get, in_process, init, last, start};
use support::{POOL, bearer, tpm};

#[tokio::test]
async fn attack_20_a_node_that_is_revoked_is_refused_on_its_open_connection() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    let mut other = Connection::open(&gateway, Some(&cluster.kubelet("worker-2"))).await;
    connection.get(PATH, &[]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1", "--reason", "disk sold"]);
    let answer = connection.get(PATH, &[]).await;
    answer.refused(403, "node-revoked");
    assert!(
        !String::from_utf8(answer.body).unwrap().contains("disk sold"),
        "why is for the administrator"
    );
    let record = last(&gateway);
    assert!(record["reason"].as_str().unwrap().contains(": disk sold; next: "), "{record}");
    assert_eq!(
        (&record["identity"], &record["name"]),
        (&"kubelet:worker-1".into(), &"worker-1".into())
    );
    other.get(PATH, &[]).await.is_config(&full);
    get(&gateway, &cluster.kubelet("worker-1"), PATH).await.refused(403, "node-revoked");
    gateway.command(&["node", "restore", "worker-1"]);
    connection.get(PATH, &[]).await.is_config(&full);
    let table = gateway.command(&["audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

/// A store that does not know, while it is told not to, who is revoked.
#[derive(Debug)]
struct Failing {
    store: Embedded,
    fails: AtomicBool,
}

#[async_trait]
impl Store for Failing {
    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, StoreError> {
        if kind == Kind::Revoked && self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        self.store.get(kind, id).await
    }

    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        self.store.spend(thing).await
    }

    async fn spend_for(&self, thing: Spendable, pending: Pending) -> Result<Spend, StoreError> {
        self.store.spend_for(thing, pending).await
    }

    fn settle(&self, decision: &str) {
        self.store.settle(decision);
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        self.store.give_back(decision).await
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        self.store.pending().await
    }

    async fn insert(&self, kind: Kind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.store.insert(kind, entry).await
    }

    async fn put(&self, kind: Kind, entry: Entry) -> Result<(), StoreError> {
        self.store.put(kind, entry).await
    }

    async fn remove(&self, kind: Kind, id: &str) -> Result<bool, StoreError> {
        self.store.remove(kind, id).await
    }

    async fn change(&self, kind: Kind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.store.change(kind, expected, write).await
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Entry>, StoreError> {
        self.store.list(kind).await
    }

    async fn uses(&self, kind: Kind, id: &str) -> Result<u32, StoreError> {
        self.store.uses(kind, id).await
    }

    async fn forget_expired(&self, now: u64) -> Result<(), StoreError> {
        self.store.forget_expired(now).await
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_taken_for_trust() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let store = Arc::new(Failing {
        store: embedded(&gateway),
        fails: AtomicBool::new(true),
    });
    in_process(&gateway, Arc::<Failing>::clone(&store)).await;
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    connection.get(PATH, &[]).await.try_again();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let attest = || gateway.attest(support::next_boot(&case), Some("worker-1"));
    assert_eq!(attest().await.status, StatusCode::SERVICE_UNAVAILABLE);
    store.fails.store(false, Ordering::Relaxed);
    let ticket = bearer(&attest().await.ticket());
    store.fails.store(true, Ordering::Relaxed);
    gateway.config(PATH, &[&ticket]).await.try_again();
    store.fails.store(false, Ordering::Relaxed);
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    connection.get(PATH, &[]).await.is_config(&full);
}

#[tokio::test]
async fn a_revoked_name_gets_nothing_by_attestation_or_ticket() {
    let gateway = start(&Cluster::new());
    let (named, other) = (tpm(), tpm());
    gateway.endorse(&named, &[]);
    gateway.endorse(&other, &["--name", "worker-9"]);
    let ticket = bearer(&gateway.attest(support::next_boot(&named), Some("worker-1")).await.ticket());
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.config(PATH, &[&ticket]).await.refused(403, "node-revoked");
    gateway
        .attest(support::next_boot(&named), Some("worker-1"))
        .await
        .refused(403, "node-revoked");
    // A machine is known by its name, also if it does not say it.
    gateway.attest(support::next_boot(&named), None).await.refused(403, "node-revoked");
    gateway.attest(support::next_boot(&other), None).await.ticket();
    gateway.command(&["node", "revoke", "worker-9"]);
    gateway.attest(support::next_boot(&other), None).await.refused(403, "node-revoked");
    let table = gateway.command(&["audit"]);
    assert!(table.contains(" node-revoked ") && !table.contains("DIFFERENT"), "{table}");
    gateway.command(&["node", "restore", "worker-1"]);
    gateway.attest(support::next_boot(&named), None).await.ticket();
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
}

#[tokio::test]
async fn revocations_are_listed() {
    let gateway = start(&Cluster::new());
    let case = tpm();
    let digest = gateway.endorse(&case, &["--name", "worker-1"]);
    gateway.command(&["node", "revoke", "worker-7", "--reason", "disk sold"]);
    let rows = |table: String| -> Vec<String> {
        table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    let table = rows(gateway.command(&["node", "list"]));
    assert_eq!(
        table[..2],
        ["NODE IDENTITY STATE".to_owned(), format!("worker-1 tpm:{digest} known")]
    );
    assert!(
        table[2].starts_with("worker-7 - revoked 20") && table[2].ends_with("Z: disk sold"),
        "{table:?}"
    );
    gateway.command(&["node", "revoke", "worker-1"]);
    let table = rows(gateway.command(&["node", "list"]));
    assert!(table[1].starts_with(&format!("worker-1 tpm:{digest} revoked 20")), "{table:?}");
    gateway.command(&["node", "restore", "worker-7"]);
    assert_eq!(gateway.command(&["node", "list"]).lines().count(), 2);
    for wrong in [
        &["node", "restore", "worker-7"][..],
        &["node", "revoke", "system:node:worker-1"],
        &["node", "revoke", ""],
        &["node", "revoke", "worker-1", "--reason", &"x".repeat(201)],
    ] {
        assert!(!gateway.try_command(wrong).status.success(), "{wrong:?}");
    }
}
