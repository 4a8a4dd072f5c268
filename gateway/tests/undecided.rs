//! What another decision has claimed, of which nobody knows yet whether it stays: who is in its way is told to come again, and refused by nothing
//! that may come to nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest::protocol::CHALLENGE_PATH;
use attest::{EkDigest, NodeIdentity};
use attest_machines::{enrolment, revocations};
use attest_store::{Pending, Reading, Store};

use crate::support::kubelet::{self, Cluster, PATH, embedded, in_process};
use crate::support::{Gateway, POOL, challenge_request, next_boot, tpm};

const NAME: &str = "worker-0";

fn another() -> NodeIdentity {
    NodeIdentity::of_tpm("cd".repeat(32).parse::<EkDigest>().unwrap())
}

/// Another machine claims the name for a decision that is not recorded, and is revoked.
async fn claimed_by_one_who_is_revoked(store: &dyn Store) {
    let (decision, at) = ("another".to_owned(), 1);
    let claimed = enrolment::claim_name(&mut Reading::of(store), NAME, &another(), &Pending { decision, at }).await;
    claimed.unwrap();
    let all = BTreeSet::from([another().to_string()]);
    revocations::revoke(store, &all, 1, None).await.unwrap();
}

/// What becomes of that decision.
async fn decided(store: &dyn Store, comes_to_nothing: bool) {
    if comes_to_nothing {
        assert!(store.give_back("another").await.unwrap());
    } else {
        store.settle("another");
        assert_eq!(store.pending().await.unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_name_of_one_who_is_revoked_and_may_not_get_it_is_waited_for() {
    for comes_to_nothing in [true, false] {
        let gateway = Gateway::init();
        let case = tpm();
        gateway.endorse(&case, &[]);
        let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
        in_process(&gateway, Arc::clone(&store)).await;
        claimed_by_one_who_is_revoked(&*store).await;
        let mut asked = challenge_request(&case, POOL);
        asked.name = Some(NAME.to_owned());
        gateway.post(CHALLENGE_PATH, &asked).await.refused(503, "undecided");
        let answer = gateway.attest(next_boot(&case), Some(NAME)).await;
        answer.refused(503, "undecided");
        assert!(!String::from_utf8_lossy(&answer.body).contains(another().as_str()));
        assert_eq!(gateway.records().len(), 0, "nothing is decided");
        decided(&*store, comes_to_nothing).await;
        let (challenge, answer) = (
            gateway.post(CHALLENGE_PATH, &asked).await,
            gateway.attest(next_boot(&case), Some(NAME)).await,
        );
        if comes_to_nothing {
            assert_eq!(challenge.status, 200);
            answer.ticket();
        } else {
            challenge.refused(403, "node-revoked");
            answer.refused(403, "node-revoked");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_who_is_revoked_by_what_is_decided_is_refused_whatever_is_not() {
    let gateway = Gateway::init();
    let case = tpm();
    let ek = gateway.endorse(&case, &[]);
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    in_process(&gateway, Arc::clone(&store)).await;
    claimed_by_one_who_is_revoked(&*store).await;
    let all = BTreeSet::from([format!("tpm:{ek}")]);
    revocations::revoke(&*store, &all, 1, None).await.unwrap();
    gateway.attest(next_boot(&case), Some(NAME)).await.refused(403, "node-revoked");
    // Its own name is revoked, which is known.
    revocations::restore(&*store, &format!("tpm:{ek}"), true).await.unwrap();
    enrolment::give_name(&*store, "own", &NodeIdentity::of_tpm(ek.parse().unwrap()))
        .await
        .unwrap();
    let all = BTreeSet::from(["own".to_owned()]);
    revocations::revoke(&*store, &all, 1, None).await.unwrap();
    gateway.attest(next_boot(&case), Some(NAME)).await.refused(403, "node-revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_kubelet_whose_name_another_may_not_get_is_told_to_come_again() {
    let cluster = Cluster::new();
    for comes_to_nothing in [true, false] {
        let gateway = kubelet::init(&cluster);
        let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
        in_process(&gateway, Arc::clone(&store)).await;
        claimed_by_one_who_is_revoked(&*store).await;
        let get = async || kubelet::get(&gateway, &cluster.kubelet(NAME), PATH).await;
        get().await.try_again();
        decided(&*store, comes_to_nothing).await;
        match comes_to_nothing {
            true => get().await.is_config(&gateway.rendered(POOL, "full")),
            false => get().await.refused(403, "node-revoked"),
        }
    }
}
