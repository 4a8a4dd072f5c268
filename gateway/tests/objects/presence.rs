//! Presence: two gateways with one state, of which one serves, and leader election. A gateway whose lease has expired does neither.

use attest_store::fence::Fenced;
use attest_store::{EntryKind, LeaderTask, StoreEntry};
use cloud_fixtures::kubernetes::Mishap;

use super::*;
use crate::support::LIMIT;

#[tokio::test(flavor = "multi_thread")]
async fn one_process_leads_until_it_resigns() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.acquire_lease("rotate").await.unwrap().unwrap();
    assert!(two.acquire_lease("rotate").await.unwrap().is_none());
    assert!(two.acquire_lease("forget").await.unwrap().is_some(), "that is another work");
    assert!(!leads.is_lost());
    drop(leads);
    let begun = std::time::Instant::now();
    while two.acquire_lease("rotate").await.unwrap().is_none() {
        assert!(begun.elapsed() < LIMIT);
    }
}

/// The gateway has a lease whose grant it did not see, and renews its presence: without a retry there would never be a leader.
#[tokio::test(flavor = "multi_thread")]
async fn retries_after_a_lost_answer_to_an_election() {
    let site = Site::start();
    let (one, two) = (site.open_for("one", Duration::from_millis(600)).unwrap(), site.open("two"));
    one.serve().await.unwrap();
    // It is done, and whatever would say so does not come.
    site.api.befall([Mishap::Done]);
    let asked = async {
        let led = one.acquire_lease("tend").await;
        drop(led);
    };
    let cut = async {
        while !site.api.is_over() {
            tokio::task::yield_now().await;
        }
        site.api.disturb(cloud_fixtures::kubernetes::Disturbance::Silent);
    };
    tokio::join!(asked, cut);
    site.api.recover();
    let begun = std::time::Instant::now();
    let leads = loop {
        if let Ok(Some(leads)) = one.acquire_lease("tend").await {
            break leads;
        }
        assert!(begun.elapsed() < LIMIT);
    };
    assert!(two.acquire_lease("tend").await.unwrap().is_none());
    assert!(!leads.is_lost());
}

fn entry(value: &str) -> StoreEntry {
    StoreEntry {
        id: "a".to_owned(),
        value: value.to_owned(),
    }
}

/// A gateway is cut off for longer than its lease, and another one takes over. Later writes of the first one are refused, and so are those
/// that it had sent.
#[tokio::test(flavor = "multi_thread")]
async fn attack_18_an_expired_replica_is_removed_and_writes_nothing() {
    let site = Site::start();
    let one = site.open_briefly("one", Duration::from_secs(2));
    one.serve().await.unwrap();
    let mut turn = LeaderTask::new(Arc::new(one.clone()), "tend");
    let leads = turn.take().await.unwrap().expect("nobody else does");
    leads.put(EntryKind::Name, entry("one")).await.unwrap();
    let two = site.open_briefly("two", TIMEOUT);
    two.serve().await.unwrap();
    assert!(two.acquire_lease("tend").await.unwrap().is_none());
    // What it sends last comes when it is put out.
    site.api.befall([Mishap::Late].into_iter().chain([Mishap::NotDone; 400]));
    let first = std::time::Instant::now();
    put(&one, "late", "1").await.unwrap_err();
    site.cut_off("one");
    site.api.recover();
    assert!(put(&one, "a", "1").await.is_err());
    let other = loop {
        if let Some(other) = two.acquire_lease("tend").await.unwrap() {
            break other;
        }
        assert!(first.elapsed() < LIMIT);
    };
    assert!(first.elapsed() >= LEASE * 3 / 5, "{:?}: it was heard of last", first.elapsed());
    site.api.let_through();
    put(&Fenced::new(two.clone(), other.fence()), "a", "two").await.unwrap();
    assert_eq!(get(&two, "late").await.unwrap(), None);
    // It is heard of again, and its turn is over.
    site.readmit("one");
    let refused = leads.put(EntryKind::Name, entry("stale")).await.unwrap_err();
    assert!(!refused.to_string().is_empty());
    let two: &dyn attest_store::Store = &two;
    assert_eq!(two.get(EntryKind::Name, "a").await.unwrap(), Some(entry("one")));
}

/// A gateway loses its leadership after an absence of a lease's length.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_gateway_resumes_without_leadership() {
    let site = Site::start();
    let one = site.open_briefly("one", Duration::from_secs(2));
    one.serve().await.unwrap();
    let leads = one.acquire_lease("tend").await.unwrap().unwrap();
    let two = site.open_briefly("two", TIMEOUT);
    two.serve().await.unwrap();
    site.cut_off("one");
    let begun = std::time::Instant::now();
    while two.acquire_lease("tend").await.unwrap().is_none() {
        assert!(begun.elapsed() < LIMIT);
    }
    site.readmit("one");
    let fenced = Fenced::new(one.clone(), leads.fence());
    while put(&one, "a", "1").await.is_err() {
        assert!(begun.elapsed() < LIMIT);
    }
    let refused = put(&fenced, "a", "2").await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    assert!(leads.is_lost(), "it was told");
    assert_eq!(get(&two, "a").await.unwrap().as_deref(), Some("1"));
}
