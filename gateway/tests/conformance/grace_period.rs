//! Grace period: uses of expired credentials.

use attest_store::ExpiredUse;

use super::*;

/// Grace period of a thing that expires at 600: it can be used first until 1000, and then for 100 seconds.
const LATE: UseOccasion = UseOccasion::Late(ExpiredUse {
    first_until: 1000,
    seconds: 100,
});

async fn late(store: &dyn Store, decision: &str, at: u64) -> Spend {
    let ticket = || thing("a", 5, 600);
    let would = would_spend(store, ticket(), LATE, at).await.unwrap();
    let found = use_for(store, ticket(), LATE, decided_at(decision, at)).await;
    assert_eq!(would, found);
    found
}

pub async fn what_has_expired_is_used_first_in_time_and_then_for_a_while<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(late(&*store, "d0", 1001).await, Spend::TooLate, "its first use");
    assert_eq!(late(&*store, "d1", 1000).await, granted(1));
    assert_eq!(late(&*store, "d2", 1100).await, granted(2), "for a while, from its first use on");
    assert_eq!(late(&*store, "d3", 1101).await, Spend::TooLate);
    store.settle("d1");
    store.settle("d2");
    place.close(store).await;
    let store = place.open().await;
    assert_eq!(late(&*store, "d4", 1101).await, Spend::TooLate);
    assert_eq!(late(&*store, "d5", 1100).await, granted(3), "a start changes nothing");
}

pub async fn what_was_used_before_it_expired_is_too_late<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let early = use_for(&*store, thing("a", 5, 600), UseOccasion::Any, decided_at("d1", 599)).await;
    assert_eq!(early, granted(1));
    assert_eq!(late(&*store, "d2", 601).await, Spend::TooLate, "also while that use is pending");
    store.settle("d1");
    assert_eq!(late(&*store, "d3", 601).await, Spend::TooLate);
}

pub async fn a_late_use_that_comes_to_nothing_was_none<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(late(&*store, "d1", 700).await, granted(1));
    assert!(store.give_back("d1").await.unwrap());
    assert_eq!(late(&*store, "d2", 1000).await, granted(1), "and this is the first");
    assert_eq!(late(&*store, "d3", 1100).await, granted(2));
    // One of two that comes to nothing takes nothing from the other.
    assert!(store.give_back("d2").await.unwrap());
    assert_eq!(late(&*store, "d4", 1100).await, granted(1));
    assert_eq!(late(&*store, "d5", 1101).await, Spend::TooLate);
}
