//! Leader election: a process that has lost its lease writes nothing.

use attest_store::fence::{Fence, Fenced};
use attest_store::{EntryKind, LeaderTask, StoreEntry};

use super::*;

/// Lease that outlasts the test.
const LEASE: Duration = Duration::from_secs(60);
/// Lease for tests that wait for its end.
const SHORT: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn one_process_leads_until_it_resigns() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.acquire_lease("rotate", LEASE).await.unwrap().unwrap();
    assert!(two.acquire_lease("rotate", LEASE).await.unwrap().is_none());
    assert!(two.acquire_lease("forget", LEASE).await.unwrap().is_some(), "that is another work");
    assert!(!leads.is_lost());
    drop(leads);
    while two.acquire_lease("rotate", LEASE).await.unwrap().is_none() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_renews_its_lease() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.acquire_lease("rotate", SHORT).await.unwrap().unwrap();
    // A lease that nobody keeps measures the time.
    let id = site.etcd.ctl(&["lease", "grant", "9"]);
    let id = id.split(' ').nth(1).unwrap();
    site.etcd.ctl(&["put", "clock", "runs", "--lease", id]);
    while site.etcd.ctl(&["get", "clock"]).contains("runs") {
        assert!(two.acquire_lease("rotate", LEASE).await.unwrap().is_none());
    }
    assert!(!leads.is_lost());
    put(&Fenced::new(one.clone(), leads.fence()), "a", "1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_a_leader_whose_lease_was_lost_writes_nothing() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.acquire_lease("rotate", LEASE).await.unwrap().unwrap();
    let fenced = Fenced::new(one.clone(), leads.fence());
    put(&fenced, "a", "one").await.unwrap();
    // As if this process had stood still for longer than its lease.
    site.etcd.ctl(&["del", "a/gateway/leader/rotate"]);
    assert!(!leads.is_lost(), "it does not know");
    let refused = put(&fenced, "a", "nobody leads").await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    let other = two.acquire_lease("rotate", LEASE).await.unwrap().unwrap();
    let refused = put(&fenced, "a", "another leads").await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    assert!(leads.is_lost(), "it was told");
    put(&Fenced::new(two.clone(), other.fence()), "a", "two").await.unwrap();
    assert_eq!(get(&one, "a").await.unwrap().as_deref(), Some("two"));
    put(&Fenced::new(one, Fence::alone()), "a", "alone").await.unwrap();
}

fn entry(value: &str) -> StoreEntry {
    StoreEntry {
        id: "a".to_owned(),
        value: value.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_passes_on_when_the_leader_dies() {
    let site = Site::start();
    let [one, two, three] = ["one", "two", "three"].map(|gateway| LeaderTask::new(Arc::new(site.open(gateway)), "tend"));
    let mut turns = [one, two, three];
    let mut leads = Vec::new();
    for turn in &mut turns {
        leads.push(turn.take().await.unwrap().is_some());
    }
    assert_eq!(leads, [true, false, false]);
    let [mut one, mut two, three] = turns;
    let store = one.take().await.unwrap().expect("it stays its own");
    store.put(EntryKind::Name, entry("one")).await.unwrap();
    // As if it stood still for longer than its lease.
    site.etcd.ctl(&["del", "a/gateway/leader/tend"]);
    assert!(two.take().await.unwrap().is_some());
    let store = one.take().await.unwrap().expect("it does not know");
    let refused = store.put(EntryKind::Name, entry("stale")).await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    assert!(one.take().await.unwrap().is_none(), "it knows now");
    let store = two.take().await.unwrap().unwrap();
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), Some(entry("one")));
    drop((two, three));
    let left = std::time::Instant::now();
    while one.take().await.unwrap().is_none() {}
    assert!(left.elapsed() < Duration::from_secs(10), "it was given back, and not waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_notices_a_failed_lease_renewal() {
    let mut site = Site::start();
    let one = site.open("one");
    let mut leads = one.acquire_lease("rotate", SHORT).await.unwrap().unwrap();
    site.etcd.kill();
    leads.lost().await;
    assert!(leads.is_lost());
}
