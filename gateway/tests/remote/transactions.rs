//! Transactions are atomic and serializable under contention.

use std::sync::atomic::{AtomicBool, Ordering};

use attest_store::{EntryKind, Spend, Spendable, Store, UseOccasion};

use super::*;
use crate::conformance::{decided, use_for};

pub async fn a_transaction_is_done_as_a_whole_or_not_at_all<S: Site>() {
    let site = S::start();
    let (store, other) = (site.open("one"), site.open("two"));
    run(&store, |transaction| {
        transaction.put("a", "1")?;
        assert_eq!(transaction.get("a")?.as_deref(), Some("1"), "it sees what it has written");
        transaction.put("b", "1")?;
        transaction.delete("b")?;
        assert_eq!(transaction.get("b")?, None);
        transaction.put("c", "1")
    })
    .await
    .unwrap();
    for key in ["a", "b", "c"] {
        assert_eq!(get(&other, key).await.unwrap().is_some(), key != "b", "{key}");
    }
    let refused = |transaction: &mut dyn Transaction| {
        transaction.get("a")?;
        transaction.put("a", "2")?;
        transaction.put("d", "2")?;
        Err::<(), _>(StoreError::Random.into())
    };
    // It takes nobody else of the same commit down.
    let (refused, beside) = tokio::join!(run(&store, refused), put(&store, "e", "1"));
    assert!(matches!(refused, Err(StoreError::Random)), "{refused:?}");
    beside.unwrap();
    assert_eq!(get(&other, "a").await.unwrap().as_deref(), Some("1"));
    assert_eq!(get(&other, "d").await.unwrap(), None);
    assert_eq!(get(&other, "e").await.unwrap().as_deref(), Some("1"));
}

pub async fn attack_18_of_two_replicas_that_race_for_one_key_exactly_one_wins<S: Site>() {
    let site = S::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let claim = async |store: &S::Store, key: String, who: &'static str| {
        run(store, move |transaction| {
            let free = transaction.get(&key)?.is_none();
            if free {
                transaction.put(&key, who)?;
            }
            Ok(free)
        })
        .await
        .unwrap()
    };
    for round in 0..300 {
        let key = format!("race/{round}");
        let (first, second) = tokio::join!(claim(&one, key.clone(), "one"), claim(&two, key.clone(), "two"));
        assert!(first != second, "round {round}: {first} {second}");
        let winner = if first { "one" } else { "two" };
        assert_eq!(get(&two, &key).await.unwrap().as_deref(), Some(winner), "round {round}");
    }
}

pub async fn attack_18_of_two_replicas_that_race_for_one_ticket_exactly_one_spends_it<S: Site>() {
    let site = S::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let spend = async |store: &dyn Store, id: String, decision: String| {
        let ticket = Spendable {
            kind: EntryKind::Ticket,
            id,
            limit: 1,
            remember_until: 10,
        };
        use_for(store, ticket, UseOccasion::Any, decided(&decision)).await
    };
    for round in 0..200 {
        let id = format!("t{round}");
        let spends = tokio::join!(
            spend(&one, id.clone(), format!("one-{round}")),
            spend(&two, id.clone(), format!("two-{round}"))
        );
        let granted = Spend::Granted { use_number: 1 };
        let won = [spends.0, spends.1].into_iter().filter(|spend| *spend == granted).count();
        assert_eq!(won, 1, "round {round}: {spends:?}");
    }
}

pub async fn a_storm_of_conflicts_ends_and_loses_nothing<S: Site>() {
    let site = S::start();
    let stores: Vec<S::Store> = ["one", "two", "three", "four"].map(|name| site.open(name)).into();
    let storm = stores.iter().flat_map(|store| (0..50).map(move |_| count_up(store, "counter")));
    let mut numbers: Vec<u32> = futures_util::future::join_all(storm)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=200).collect::<Vec<u32>>());
}

/// Each replica always has something to write under the same key: a replica that loses a conflict commits soon, and not after its deadline.
pub async fn replicas_that_contend_for_one_key_commit_in_turn<S: Site>() {
    const COMMITS: usize = 60;
    /// Number of commits that a busy machine may delay. When three replicas take turns, two commits lie between two of the third.
    const DELAYED: usize = 3;
    const MOST_BETWEEN: u32 = 20;
    let site = S::start();
    let storm = ["one", "two", "three"].map(|name| {
        let store = site.open(name);
        async move {
            let mut numbers = Vec::new();
            for _ in 0..COMMITS {
                numbers.push(count_up(&store, "counter").await.unwrap());
            }
            numbers
        }
    });
    let steps = |numbers: Vec<u32>| numbers.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    let mut steps: Vec<u32> = futures_util::future::join_all(storm).await.into_iter().flat_map(steps).collect();
    steps.sort_unstable();
    steps.reverse();
    assert!(steps[DELAYED] <= MOST_BETWEEN, "a replica waits for many others: {steps:?}");
    assert!(steps[steps.len() / 2] > 1, "one replica commits again and again: {steps:?}");
}

/// An administrator's command is the last one to start among many that write the same key.
pub async fn whoever_comes_into_a_storm_that_does_not_end_is_heard<S: Site>() {
    let site = S::start();
    let ended = AtomicBool::new(false);
    let storm = ["one", "two", "three"].map(|name| {
        let (store, ended) = (site.open(name), &ended);
        async move {
            while !ended.load(Ordering::SeqCst) {
                count_up(&store, "counter").await.unwrap();
            }
        }
    });
    let command = async {
        let store = site.open("command");
        let mut heard = Vec::new();
        for _ in 0..40 {
            heard.push(count_up(&store, "counter").await);
        }
        ended.store(true, Ordering::SeqCst);
        heard
    };
    let (heard, _) = tokio::join!(command, futures_util::future::join_all(storm));
    assert!(heard.iter().all(Result::is_ok), "{heard:?}");
}

pub async fn the_tasks_of_one_process_share_commits_and_do_not_conflict<S: Site>() {
    let site = S::start();
    let store = site.open("one");
    let before = Engine::store_mark(&store).unwrap().mark;
    let tasks = (0..500).map(|_| count_up(&store, "counter"));
    let mut numbers: Vec<u32> = futures_util::future::join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=500).collect::<Vec<u32>>());
    let commits = Engine::store_mark(&store).unwrap().mark - before;
    assert!(commits < 50, "{commits} commits");
}

pub async fn a_range_is_removed_with_what_others_have_put_into_it<S: Site>() {
    let site = S::start();
    let (store, other) = (site.open("one"), site.open("two"));
    for key in ["holder/a", "holder/b", "holder0", "holdes"] {
        put(&other, key, "1").await.unwrap();
    }
    let remove = |transaction: &mut dyn Transaction| {
        transaction.delete_range(&range("holder/", "holder0"))?;
        transaction.delete_range(&range("z", "a"))?;
        transaction.put("removed", "1")
    };
    // In one commit they would be one too many for etcd: it takes no key twice.
    let beside = futures_util::future::join_all(["holder/b", "holder/c", "other"].map(|key| put(&store, key, "2")));
    let (before, removed, after) = tokio::join!(beside, run(&store, remove), get(&store, "holder/a"));
    assert!(before.into_iter().all(|put| put.is_ok()));
    removed.unwrap();
    assert_eq!(after.unwrap(), None);
    let left = store.page(range("", "~"), 10).await.unwrap();
    let left: Vec<&str> = left.iter().map(|left| left.key.as_str()).collect();
    assert_eq!(left, ["holder0", "holdes", "other", "removed"]);
}

pub async fn what_nobody_waits_for_is_done_soon_and_at_the_end<S: Site>() {
    let site = S::start();
    let (store, other) = (site.open("one"), site.open("two"));
    store.later(Box::new(|transaction| transaction.put("soon", "1")));
    while get(&other, "soon").await.unwrap().is_none() {}
    store.later(Box::new(|transaction| transaction.put("at the end", "1")));
    drop(store);
    assert_eq!(get(&other, "at the end").await.unwrap().as_deref(), Some("1"));
}
