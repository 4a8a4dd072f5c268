//! Another gateway must not record or give back a gateway's pending decisions while that one may come back, because its log knows their
//! results.

use attest_store::etcd::Etcd;
use attest_store::{EntryKind, Pending, Spend, Spendable, Store, Tick, UseOccasion};

use super::Site;
use crate::conformance::{adopted_at, decided_at, use_for};

const DAY: u64 = 86_400;

fn ticket() -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: "t".to_owned(),
        limit: 1,
        remember_until: 1000 * DAY,
    }
}

async fn spend(store: &Etcd, decision: &str) -> Spend {
    use_for(store, ticket(), UseOccasion::Any, decided_at(decision, 1000)).await
}

async fn pending(store: &Etcd) -> Vec<String> {
    let pending = store.pending().await.unwrap();
    pending.into_iter().map(|pending| pending.decided.decision).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn gives_back_no_pending_decisions_of_other_gateways() {
    let site = Site::start();
    let (one, other) = (site.open("one"), site.open("other"));
    assert_eq!(spend(&one, "d1").await, Spend::Granted { use_number: 1 });
    assert!(pending(&other).await.is_empty(), "what the other has decided is in the other's log");
    assert_eq!(spend(&other, "d2").await, Spend::Exhausted);
    // A restart is the same gateway; by its state, and not by its process.
    drop(one);
    let one = site.open("one");
    assert_eq!(pending(&one).await, ["d1"]);
    assert!(one.give_back("d1").await.unwrap());
    assert_eq!(spend(&other, "d3").await, Spend::Granted { use_number: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gateways_pending_uses_count_as_used() {
    let site = Site::start();
    let (one, other) = (site.open("one"), site.open("other"));
    spend(&one, "d1").await;
    let tick = async |store: &Etcd, now: u64| {
        let passed = std::time::Duration::from_secs(2 * DAY);
        store.forget_expired(Tick { now, passed }).await.unwrap()
    };
    tick(&other, 1000).await;
    tick(&other, 1000 + 7 * DAY).await;
    assert_eq!(pending(&one).await, ["d1"], "it may come back");
    tick(&one, 1002 + 7 * DAY).await;
    assert_eq!(pending(&one).await, ["d1"], "it is back");
    tick(&other, 1002 + 7 * DAY).await;
    // It is the other's to record from now on, and its use counts.
    assert!(pending(&one).await.is_empty());
    assert_eq!(other.pending().await.unwrap(), [adopted_at("d1", 1000)]);
    for store in [&one, &other] {
        assert!(!store.give_back("d1").await.unwrap());
    }
    assert_eq!(spend(&other, "d2").await, Spend::Exhausted);
}

/// The clock of a decision is unknown: of two gateways a week apart, each would settle the other's newest decisions.
#[tokio::test(flavor = "multi_thread")]
async fn a_serving_gateway_settles_its_own_pending_decisions() {
    let site = Site::start();
    let (one, other) = (site.open("one"), site.open("other"));
    one.serve().await.unwrap();
    spend(&one, "d1").await;
    let tick = async || {
        let passed = std::time::Duration::from_secs(2 * DAY);
        let now = 1002 + 7 * DAY;
        other.forget_expired(Tick { now, passed }).await.unwrap()
    };
    tick().await;
    assert_eq!(pending(&one).await, ["d1"]);
    assert!(one.give_back("d1").await.unwrap());
    assert_eq!(spend(&one, "d2").await, Spend::Granted { use_number: 1 });
    // It is gone, and for as long as others know.
    drop(one);
    tick().await;
    assert!(pending(&site.open("one")).await.is_empty());
    let given_back = Pending {
        has_use: false,
        ..adopted_at("d1", 1000)
    };
    assert_eq!(other.pending().await.unwrap(), [given_back, adopted_at("d2", 1000)]);
    assert_eq!(spend(&other, "d3").await, Spend::Exhausted);
}

#[test]
fn refuses_a_malformed_replica_id() {
    let site = Site::start();
    drop(site.open("one"));
    let file = site.states.path().join("one/replica.id");
    let id = std::fs::read_to_string(&file).unwrap();
    for broken in ["", "x", &id[1..], &id.replace(|_: char| true, "X")] {
        std::fs::write(&file, broken).unwrap();
        let refused = site.try_open("one").unwrap_err().to_string();
        assert!(
            refused.contains("replica.id") && refused.contains("restore the previous file"),
            "{refused}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), broken);
    }
}
