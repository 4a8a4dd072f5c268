use std::collections::BTreeSet;

use attest_store::Embedded;

use super::*;
use crate::enrolment::{EkRecord, allow, forget_name};

const NODE: &str = "worker-1";

fn ek(digit: &str) -> EkDigest {
    digit.repeat(64).parse().unwrap()
}

fn attested(at: u64, decision: &str) -> Attested {
    Attested {
        at,
        pool: "worker".to_owned(),
        name: Some(NODE.to_owned()),
        instance: None,
        provider: None,
        key_sha256: None,
        decision: decision.to_owned(),
    }
}

/// An attestation that is recorded.
async fn note(store: &dyn Store, identity: &NodeIdentity, attested: &Attested) -> Result<(), StoreError> {
    let decision = pending(&attested.decision);
    claim(&mut Reading::of(store), identity, attested, &decision).await?;
    store.settle(&decision.decision);
    while !is_recorded(store, identity.as_str(), attested).await? {
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn pending(decision: &str) -> Pending {
    Pending {
        decision: decision.to_owned(),
        at: 1,
    }
}

fn of(identity: &NodeIdentity, attestation: &str) -> Approval {
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

/// A store with a machine that was given the name, and has attested.
async fn store() -> (tempfile::TempDir, Embedded, NodeIdentity) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    let record = EkRecord {
        name: Some(NODE.to_owned()),
        added: 1,
        pools: Vec::new(),
        removed: None,
    };
    allow(&store, ek("a"), record, false).await.unwrap();
    let identity = NodeIdentity::of_tpm(ek("a"));
    note(&store, &identity, &attested(50, "one")).await.unwrap();
    (folder, store, identity)
}

async fn look(store: &dyn Store, identity: &NodeIdentity) -> Held {
    let known = attested(50, "one");
    held(&mut Reading::of(store), NODE, Some((identity.as_str(), &known)))
        .await
        .unwrap()
}

#[tokio::test]
async fn an_attestation_is_good_for_one_approval() {
    let (_folder, store, identity) = store().await;
    let mut reading = Reading::of(&store);
    approve(&mut reading, &store, NODE, &of(&identity, "one")).await.unwrap();
    assert!(list(&store).await.unwrap().is_empty());
    assert_eq!(approvals(&store).await.unwrap(), [(NODE.to_owned(), of(&identity, "one"))]);
    let again = approve(&mut Reading::of(&store), &store, NODE, &of(&identity, "one")).await;
    assert!(matches!(again, Err(StoreError::Changed { .. })), "{again:?}");
    // Another one is another attestation.
    note(&store, &identity, &attested(60, "two")).await.unwrap();
    let stale = approve(&mut Reading::of(&store), &store, NODE, &of(&identity, "one")).await;
    assert!(matches!(stale, Err(StoreError::Changed { .. })), "{stale:?}");
    approve(&mut Reading::of(&store), &store, NODE, &of(&identity, "two"))
        .await
        .unwrap();
}

#[tokio::test]
async fn what_changes_between_reading_and_approving_is_judged_anew() {
    let (_folder, store, identity) = store().await;
    let known = attested(50, "one");
    let mut reading = Reading::of(&store);
    held(&mut reading, NODE, Some((identity.as_str(), &known))).await.unwrap();
    let all = BTreeSet::from([identity.to_string()]);
    revocations::revoke(&store, &all, 1, None).await.unwrap();
    let raced = approve(&mut reading, &store, NODE, &of(&identity, "one")).await;
    assert!(matches!(raced, Err(StoreError::Changed { .. })), "{raced:?}");
    assert_eq!(list(&store).await.unwrap().len(), 1);
    assert!(look(&store, &identity).await.revoked.unwrap().contains("was revoked"));
}

#[tokio::test]
async fn whose_a_name_is_and_who_gave_it_is_what_the_store_says() {
    let (_folder, store, identity) = store().await;
    let found = look(&store, &identity).await;
    assert_eq!(
        (found.owner.as_deref(), found.given, &found.other_name),
        (Some(identity.as_str()), true, &None)
    );
    let other = NodeIdentity::of_tpm(ek("b"));
    let found = look(&store, &other).await;
    assert_eq!((found.owner.as_deref(), found.given), (Some(identity.as_str()), false));
    let found = held(
        &mut Reading::of(&store),
        "worker-2",
        Some((identity.as_str(), &attested(50, "one"))),
    )
    .await
    .unwrap();
    assert_eq!((found.owner, found.given, found.other_name.as_deref()), (None, false, Some(NODE)));
    // Without a machine that asks, it is that which was approved.
    approve(&mut Reading::of(&store), &store, NODE, &of(&other, "x")).await.unwrap_err();
    approve(&mut Reading::of(&store), &store, NODE, &of(&identity, "one"))
        .await
        .unwrap();
    revocations::revoke(&store, &BTreeSet::from([identity.to_string()]), 1, None)
        .await
        .unwrap();
    let found = held(&mut Reading::of(&store), NODE, None).await.unwrap();
    assert_eq!(found.approval, Some(of(&identity, "one")));
    assert!(found.revoked.is_some());
}

#[tokio::test]
async fn who_was_approved_is_revoked_by_the_nodes_name_and_forgotten_with_it() {
    let (_folder, store, _) = store().await;
    // An instance that its Machine object has named; its name is in no list.
    let instance = NodeIdentity::of_tpm(ek("c"));
    note(&store, &instance, &attested(50, "three")).await.unwrap();
    approve(&mut Reading::of(&store), &store, "worker-3", &of(&instance, "three"))
        .await
        .unwrap();
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
async fn attestations_that_are_too_old_are_forgotten_and_no_others() {
    let (_folder, store, identity) = store().await;
    let other = NodeIdentity::of_tpm(ek("b"));
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
async fn an_attestation_is_there_with_its_record_and_not_without() {
    let (_folder, store, identity) = store().await;
    let attest = async |decision: &str, at: u64| {
        let new = attested(at, decision);
        claim(&mut Reading::of(&store), &identity, &new, &pending(decision))
            .await
            .map(|()| new)
    };
    let found = async || {
        list(&store)
            .await
            .unwrap()
            .into_iter()
            .map(|(_, attested)| attested.decision)
            .collect::<Vec<_>>()
    };
    let is_recorded = async |attested: &Attested| is_recorded(&store, identity.as_str(), attested).await.unwrap();
    let one = attested(50, "one");
    assert!(is_recorded(&one).await);
    // It is not recorded, and never is: then it is the one before that counts.
    let two = attest("two", 60).await.unwrap();
    assert_eq!(found().await, ["two"]);
    assert!(!is_recorded(&two).await && !is_recorded(&one).await);
    assert!(store.give_back("two").await.unwrap());
    assert!(is_recorded(&one).await);
    // Judged anew it is the same decision, which has the moment of the first time; with another name nothing is left but to begin again.
    let three = attest("three", 70).await.unwrap();
    attest("three", 71).await.unwrap();
    let renamed = Attested {
        name: Some("worker-2".to_owned()),
        ..three.clone()
    };
    let again = claim(&mut Reading::of(&store), &identity, &renamed, &pending("three")).await;
    assert!(matches!(again, Err(StoreError::Changed { .. })), "{again:?}");
    // A second one at the same moment: the later one counts, whichever is recorded first.
    attest("four", 72).await.unwrap();
    store.settle("three");
    assert!(store.give_back("four").await.unwrap());
    assert_eq!(found().await, ["three"]);
    assert!(is_recorded(&three).await);
    // Revoked in between: decided anew, and nothing is claimed.
    let mut reading = Reading::of(&store);
    revocations::refuse(&mut reading, &[], &[identity.as_str()]).await.unwrap();
    revocations::revoke(&store, &BTreeSet::from([identity.to_string()]), 1, None)
        .await
        .unwrap();
    let late = claim(&mut reading, &identity, &attested(80, "five"), &pending("five")).await;
    assert!(matches!(late, Err(StoreError::Changed { .. })), "{late:?}");
    assert_eq!(found().await, ["three"]);
}

#[tokio::test]
async fn a_name_that_its_owner_has_only_asked_for_is_told_from_a_given_one() {
    let (_folder, store, identity) = store().await;
    let held = look(&store, &identity).await;
    assert!(held.owner_given && held.given);
    // Of another machine that may be this node, too.
    let other = NodeIdentity::of_tpm(ek("b"));
    let held = look(&store, &other).await;
    assert_eq!(
        (held.owner.as_deref(), held.owner_given, held.given),
        (Some(identity.as_str()), true, false)
    );
    forget_name(&store, NODE).await.unwrap();
    enrolment::give_name(&store, NODE, &other).await.unwrap();
    let held = look(&store, &identity).await;
    assert_eq!((held.owner.as_deref(), held.owner_given), (Some(other.as_str()), false));
    assert_eq!(
        owner(&mut Reading::of(&store), NODE).await.unwrap().as_deref(),
        Some(other.as_str())
    );
}
