//! One leads, and who does not lead any more writes nothing.

use attest_gateway::store::fence::{Fence, Fenced};

use super::*;

const LEASE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_until_it_leaves() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.lead("rotate", LEASE).await.unwrap().unwrap();
    assert!(two.lead("rotate", LEASE).await.unwrap().is_none());
    assert!(two.lead("forget", LEASE).await.unwrap().is_some(), "that is another work");
    assert!(!leads.is_lost());
    drop(leads);
    while two.lead("rotate", LEASE).await.unwrap().is_none() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_for_longer_than_it_lasts() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.lead("rotate", LEASE).await.unwrap().unwrap();
    // A lease that nobody keeps measures the time.
    let id = site.etcd.ctl(&["lease", "grant", "5"]);
    let id = id.split(' ').nth(1).unwrap();
    site.etcd.ctl(&["put", "clock", "runs", "--lease", id]);
    while site.etcd.ctl(&["get", "clock"]).contains("runs") {
        assert!(two.lead("rotate", LEASE).await.unwrap().is_none());
    }
    assert!(!leads.is_lost());
    put(&Fenced::new(one.clone(), leads.fence()), "a", "1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_who_has_lost_its_lease_and_does_not_know_writes_nothing() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let leads = one.lead("rotate", Duration::from_secs(60)).await.unwrap().unwrap();
    let fenced = Fenced::new(one.clone(), leads.fence());
    put(&fenced, "a", "one").await.unwrap();
    // As if this process had stood still for longer than its lease.
    site.etcd.ctl(&["del", "a/gateway/leader/rotate"]);
    let refused = put(&fenced, "a", "nobody leads").await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    let other = two.lead("rotate", LEASE).await.unwrap().unwrap();
    let refused = put(&fenced, "a", "another leads").await;
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    assert!(!leads.is_lost(), "it does not know");
    put(&Fenced::new(two.clone(), other.fence()), "a", "two").await.unwrap();
    assert_eq!(get(&one, "a").await.unwrap().as_deref(), Some("two"));
    put(&Fenced::new(one, Fence::alone()), "a", "alone").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_keep_its_lease_is_told() {
    let mut site = Site::start();
    let one = site.open("one");
    let mut leads = one.lead("rotate", LEASE).await.unwrap().unwrap();
    site.etcd.kill();
    leads.lost().await;
    assert!(leads.is_lost());
}
