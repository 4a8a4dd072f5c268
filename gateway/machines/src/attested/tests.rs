use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use attest_store::{DecisionRecord, Embedded, Store};

use attest::EkDigest;

use super::*;
use crate::enrolment::{EkRecord, allow, forget_name};

const NODE: &str = "worker-1";

fn ek(digit: &str) -> EkDigest {
    digit.repeat(64).parse().unwrap()
}

fn attested(at: u64, decision: &str) -> AttestedMachine {
    AttestedMachine {
        at,
        pool: "worker".to_owned(),
        name: Some(NODE.to_owned()),
        instance: None,
        provider: None,
        key_sha256: None,
        decision: decision.to_owned(),
    }
}

async fn note(store: &dyn Store, identity: &NodeIdentity, attested: &AttestedMachine) -> Result<(), StoreError> {
    let (identity, attested) = (identity.clone(), attested.clone());
    let noted = store.transact(move |transaction| super::note(transaction, &identity, &attested));
    noted.await
}

async fn held_now(store: &dyn Store, name: &str, machine: Option<(&NodeIdentity, &AttestedMachine)>) -> ApprovalHold {
    let (name, machine) = (
        name.to_owned(),
        machine.map(|(identity, attested)| (identity.to_string(), attested.clone())),
    );
    let held = store.read(move |transaction| {
        let machine = machine.as_ref().map(|(identity, attested)| (identity.as_str(), attested));
        held(transaction, &name, machine)
    });
    let held: Result<_, StoreError> = held.await;
    held.unwrap()
}

/// Approves a name for a machine by this attestation, by the judged state of both.
async fn approve_as_judged(store: &dyn Store, name: &str, approval: &Approval, attested: &AttestedMachine, judged: ApprovalHold) -> bool {
    let (name, approval, attested) = (name.to_owned(), approval.clone(), attested.clone());
    let approved = store.transact(move |transaction| {
        let machine = (approval.identity.as_str(), &attested);
        approve(transaction, &name, &approval, machine, &judged)
    });
    let approved: Result<_, StoreError> = approved.await;
    approved.unwrap()
}

/// Approves like [`approve_as_judged`], by the current state of the store.
async fn approve_now(store: &dyn Store, name: &str, identity: &NodeIdentity, attested: &AttestedMachine) -> bool {
    let judged = held_now(store, name, Some((identity, attested))).await;
    approve_as_judged(store, name, &approval(identity, &attested.decision), attested, judged).await
}

fn approval(identity: &NodeIdentity, attestation: &str) -> Approval {
    Approval {
        identity: identity.to_string(),
        instance: None,
        pool: "worker".to_owned(),
        at: 100,
        attestation: attestation.to_owned(),
        bound: Bound::Given,
        machine: None,
        csr: "csr-1".to_owned(),
        uid: "uid".to_owned(),
        key_sha256: "00".repeat(32),
    }
}

/// Creates a store with a machine that was given the name, and has attested.
async fn store() -> (tempfile::TempDir, Embedded, NodeIdentity) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    let record = EkRecord {
        name: Some(NODE.to_owned()),
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    };
    allow(&store, ek("a"), record, false).await.unwrap();
    let identity = NodeIdentity::from_ek(ek("a"));
    note(&store, &identity, &attested(50, "one")).await.unwrap();
    (folder, store, identity)
}

async fn hold(store: &dyn Store, identity: &NodeIdentity) -> ApprovalHold {
    held_now(store, NODE, Some((identity, &attested(50, "one")))).await
}

#[tokio::test]
async fn attestation_allows_one_approval() {
    let (_folder, store, identity) = store().await;
    assert!(approve_now(&store, NODE, &identity, &attested(50, "one")).await);
    assert!(list(&store).await.unwrap().is_empty());
    assert_eq!(approvals(&store).await.unwrap(), [(NODE.to_owned(), approval(&identity, "one"))]);
    assert!(!approve_now(&store, NODE, &identity, &attested(50, "one")).await);
    // Another one is another attestation.
    note(&store, &identity, &attested(60, "two")).await.unwrap();
    assert!(!approve_now(&store, NODE, &identity, &attested(50, "one")).await);
    assert!(approve_now(&store, NODE, &identity, &attested(60, "two")).await);
}

#[tokio::test]
async fn unlogged_attestation_approves_nothing() {
    let (_folder, store, identity) = store().await;
    let (noted, of_whom) = (attested(60, "two"), identity.clone());
    let decided = store.decide("two", move |transaction| {
        super::note(transaction, &of_whom, &noted)?;
        transaction.decide(DecisionRecord {
            decision: "two".to_owned(),
            at: 60,
            record: "{}".to_owned(),
        })
    });
    let decided: Result<(), StoreError> = decided.await;
    decided.unwrap();
    assert!(!approve_now(&store, NODE, &identity, &attested(60, "two")).await);
    store.settle("two");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !store.pending().await.unwrap().is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(approve_now(&store, NODE, &identity, &attested(60, "two")).await);
}

#[tokio::test]
async fn approval_aborts_if_the_judged_state_changed() {
    let (_folder, store, identity) = store().await;
    let judged = hold(&store, &identity).await;
    let all = BTreeSet::from([identity.to_string()]);
    revocations::revoke(&store, &all, 1, None).await.unwrap();
    assert!(!approve_as_judged(&store, NODE, &approval(&identity, "one"), &attested(50, "one"), judged).await);
    assert_eq!(list(&store).await.unwrap().len(), 1);
    assert!(approvals(&store).await.unwrap().is_empty());
    assert!(hold(&store, &identity).await.revoked.unwrap().contains("was revoked"));
}

#[tokio::test]
async fn lookup_returns_the_owner_and_its_name() {
    let (_folder, store, identity) = store().await;
    let found = hold(&store, &identity).await;
    assert_eq!(
        (found.owner.as_deref(), found.given, &found.other_name),
        (Some(identity.as_str()), true, &None)
    );
    let other = NodeIdentity::from_ek(ek("b"));
    let found = hold(&store, &other).await;
    assert_eq!((found.owner.as_deref(), found.given), (Some(identity.as_str()), false));
    let found = held_now(&store, "worker-2", Some((&identity, &attested(50, "one")))).await;
    assert_eq!((found.owner, found.given, found.other_name.as_deref()), (None, false, Some(NODE)));
    // Without a machine that asks, it is that which was approved.
    assert!(!approve_now(&store, NODE, &other, &attested(50, "x")).await);
    assert!(approve_now(&store, NODE, &identity, &attested(50, "one")).await);
    revocations::revoke(&store, &BTreeSet::from([identity.to_string()]), 1, None)
        .await
        .unwrap();
    let found = held_now(&store, NODE, None).await;
    assert_eq!(found.approval, Some(approval(&identity, "one")));
    assert!(found.revoked.is_some());
}

#[tokio::test]
async fn approved_machine_is_revoked_by_node_name() {
    let (_folder, store, _) = store().await;
    // An instance that its Machine object has named; its name is in no list.
    let instance = NodeIdentity::from_ek(ek("c"));
    note(&store, &instance, &attested(50, "three")).await.unwrap();
    assert!(approve_now(&store, "worker-3", &instance, &attested(50, "three")).await);
    for who in ["worker-3", instance.as_str()] {
        let machine = revocations::machine(&store, who).await.unwrap();
        assert!(
            machine.seen && machine.all == BTreeSet::from(["worker-3".to_owned(), instance.to_string()]),
            "{machine:?}"
        );
    }
    assert!(forget_name(&store, "worker-3").await.unwrap());
    assert!(!forget_name(&store, "worker-3").await.unwrap());
    assert!(approvals(&store).await.unwrap().is_empty());
}

#[tokio::test]
async fn expired_attestations_are_deleted() {
    let (_folder, store, identity) = store().await;
    let other = NodeIdentity::from_ek(ek("b"));
    note(&store, &other, &attested(70, "two")).await.unwrap();
    forget_before(&store, 50).await.unwrap();
    assert_eq!(list(&store).await.unwrap().len(), 2);
    forget_before(&store, 51).await.unwrap();
    assert_eq!(list(&store).await.unwrap(), [(other.to_string(), attested(70, "two"))]);
    drop(identity);
}

#[test]
fn provider_ids_name_instances_of_aws_and_google() {
    let aws = |instance: &str| {
        Some(Provider::Aws {
            instance: instance.to_owned(),
        })
    };
    let gce = |project: &str, zone: &str, name: &str| {
        let [project, zone, name] = [project, zone, name].map(str::to_owned);
        Some(Provider::Gce { project, zone, name })
    };
    assert_eq!(Provider::read("aws:///us-east-1a/i-0123456789abcdef0"), aws("i-0123456789abcdef0"));
    assert_eq!(
        Provider::read("gce://my-project/us-east1-b/worker-a"),
        gce("my-project", "us-east1-b", "worker-a")
    );
    for none in [
        "",
        "aws:///us-east-1a/",
        "aws:///us-east-1a",
        "aws://us-east-1a/i-0",
        "aws:///us-east-1a/i-0/x",
        "gce://p/z",
        "gce://p/z/",
        "gce:///z/n",
        "gce://p/z/n/x",
        "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/v",
        "baremetalhost:///openshift-machine-api/host/1",
    ] {
        assert_eq!(Provider::read(none), None, "{none}");
    }
}

#[tokio::test]
async fn latest_attestation_replaces_the_earlier() {
    let (_folder, store, identity) = store().await;
    note(&store, &identity, &attested(60, "two")).await.unwrap();
    assert_eq!(list(&store).await.unwrap(), [(identity.to_string(), attested(60, "two"))]);
}

#[tokio::test]
async fn distinguishes_requested_names_from_given_names() {
    let (_folder, store, identity) = store().await;
    let held = hold(&store, &identity).await;
    assert!(held.owner_given && held.given);
    // Of another machine that may be this node, too.
    let other = NodeIdentity::from_ek(ek("b"));
    let held = hold(&store, &other).await;
    assert_eq!(
        (held.owner.as_deref(), held.owner_given, held.given),
        (Some(identity.as_str()), true, false)
    );
    forget_name(&store, NODE).await.unwrap();
    enrolment::give_name(&store, NODE, &other).await.unwrap();
    let held = hold(&store, &identity).await;
    assert_eq!((held.owner.as_deref(), held.owner_given), (Some(other.as_str()), false));
}
