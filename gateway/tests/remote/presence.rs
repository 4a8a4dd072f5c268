//! Two gateways with one state, because it was copied: only one serves.

use attest_store::{EntryKind, StoreEntry, Transact};

use super::*;

pub async fn a_gateway_with_a_copied_state_does_not_start_beside_the_other<S: Site>() {
    let site = S::start();
    let one = site.open("one");
    one.serve().await.unwrap();
    let (state, copied) = (site.state("one"), site.state("copied"));
    for file in ["replica.id", "store.mark"] {
        std::fs::copy(state.join(file), copied.join(file)).unwrap();
    }
    let refused = site.open("copied").serve().await.unwrap_err();
    assert!(matches!(refused, StoreError::Copied { .. }), "{refused}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for named in [host.trim(), "state folder was copied here", "start with an empty state folder"] {
        assert!(refused.to_string().contains(named), "{refused}");
    }
    put(&one, "a", "1").await.unwrap();
    drop(one);
    // It was stopped, so this is the one.
    site.open("copied").serve().await.unwrap();
}

pub async fn a_gateway_that_starts_again_where_it_was_needs_not_wait_and_the_one_before_decides_nothing<S: Site>() {
    let site = S::start();
    let (before, again) = (site.open("one"), site.open("one"));
    before.serve().await.unwrap();
    put(&before, "a", "1").await.unwrap();
    again.serve().await.unwrap();
    put(&again, "a", "2").await.unwrap();
    for refused in [
        put(&before, "a", "3").await,
        get(&before, "a").await.map(drop),
        before.page(range("a", "z"), 1).await.map(drop),
        before.count(range("a", "z")).await.map(drop),
    ] {
        assert!(refused.unwrap_err().to_string().contains(S::ABSENT));
    }
    // A command decides nothing that is this gateway's alone.
    assert_eq!(get(&site.open("one"), "a").await.unwrap().as_deref(), Some("2"));
}

pub async fn an_entry_is_not_changed_while_the_gateway_serves_that_is_named<S: Site>() {
    let site = S::start();
    let (one, two) = (site.open("one"), site.open("two"));
    one.serve().await.unwrap();
    two.serve().await.unwrap();
    let entry = |value: &str| StoreEntry {
        id: "c".to_owned(),
        value: format!("{value:?}"),
    };
    let kind = EntryKind::Checkpoint;
    attest_store::Store::put(&two, kind, entry("a")).await.unwrap();
    let id = attest_store::Store::serves_as(&one).unwrap().to_owned();
    let change = async |expected: &str, to: &str| {
        let (id, expected, to) = (id.clone(), entry(expected), entry(to));
        let changed = Transact::transact(&two, move |transaction| {
            if transaction.is_served_by(&id)? {
                return Ok::<_, StoreError>("served");
            }
            if transaction.get(kind, "c")?.as_ref() != Some(&expected) {
                return Ok("otherwise");
            }
            transaction.put(kind, to.clone())?;
            Ok("changed")
        });
        changed.await.unwrap()
    };
    assert_eq!(change("a", "b").await, "served");
    drop(one);
    let begun = std::time::Instant::now();
    // What it holds is given back soon after.
    while change("a", "b").await != "changed" {
        assert!(begun.elapsed() < crate::support::LIMIT);
    }
    assert_eq!(change("a", "c").await, "otherwise");
    assert_eq!(attest_store::Store::get(&two, kind, "c").await.unwrap(), Some(entry("b")));
}
