//! Transactions: whole, one after the other, whoever races; and what was written before, where it lies.

use std::sync::atomic::{AtomicBool, Ordering};

use attest_gateway::store::{self, EntryKind, Occasion, Pending, Spend, Spendable};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_done_as_a_whole_or_not_at_all() {
    let site = Site::start();
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

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_of_two_replicas_that_race_for_one_ticket_exactly_one_spends_it() {
    let site = Site::start();
    let (one, two) = (site.open("one"), site.open("two"));
    let spend = async |store: &dyn store::Store, id: String, decision: String| {
        let ticket = Spendable {
            kind: EntryKind::Ticket,
            id,
            limit: 1,
            remember_until: 10,
        };
        let decision = Pending { decision, at: 5 };
        store.spend_for(ticket, Occasion::Any, decision.into()).await.unwrap()
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

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_conflicts_ends_and_loses_nothing() {
    let site = Site::start();
    let stores: Vec<Kubernetes> = ["one", "two", "three", "four"].map(|name| site.open(name)).into();
    let storm = stores.iter().flat_map(|store| (0..50).map(move |_| count_up(store, "counter")));
    let mut numbers: Vec<u32> = futures_util::future::join_all(storm)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=200).collect::<Vec<u32>>());
}

/// An administrator's command is one of many that want the same object, and begins only now.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_into_a_storm_that_does_not_end_is_heard() {
    let site = Site::start();
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

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_one_process_share_commits_and_do_not_conflict() {
    let site = Site::start();
    let store = site.open("one");
    let before = store.standing().unwrap().mark;
    let tasks = (0..500).map(|_| count_up(&store, "counter"));
    let mut numbers: Vec<u32> = futures_util::future::join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=500).collect::<Vec<u32>>());
    let commits = store.standing().unwrap().mark - before;
    assert!(commits < 50, "{commits} commits");
}

/// Values so large that each few of them are put away.
fn large(number: usize) -> String {
    format!("{number}-{}", "x".repeat(10_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_away_is_read_counted_changed_and_removed_as_any_other() {
    let site = Site::start();
    let (store, other) = (site.open("one"), site.open("two"));
    for number in 0..40 {
        put(&store, &format!("e/{number:02}"), &large(number)).await.unwrap();
    }
    assert!(site.leaves().len() > 2, "{:?}", site.leaves());
    for number in [0, 17, 39] {
        let read = get(&other, &format!("e/{number:02}")).await.unwrap();
        assert_eq!(read.unwrap(), large(number));
    }
    assert_eq!(get(&other, "e/00a").await.unwrap(), None);
    put(&other, "e/05", "changed").await.unwrap();
    put(&other, "a", "before all of them").await.unwrap();
    run(&other, |transaction| transaction.delete("e/06")).await.unwrap();
    run(&other, |transaction| transaction.delete_range(&range("e/10", "e/30")))
        .await
        .unwrap();
    put(&other, "e/20", "put again").await.unwrap();
    let expected: Vec<String> = ["a"]
        .into_iter()
        .map(str::to_owned)
        .chain(
            (0..40)
                .filter(|number| *number != 6 && (!(10..30).contains(number) || *number == 20))
                .map(|number| format!("e/{number:02}")),
        )
        .collect();
    // As it is, and after all of that was put away.
    for round in 0..2 {
        for store in [&store, &other] {
            let (mut found, mut from) = (Vec::new(), String::new());
            loop {
                let page = store.page(range(&from, "f"), 7).await.unwrap();
                let Some(last) = page.last() else { break };
                from = format!("{}\0", last.key);
                found.extend(page.into_iter().map(|pair| pair.key));
            }
            assert_eq!(found, expected, "round {round}");
            assert_eq!(store.count(range("", "f")).await.unwrap(), expected.len() as u64);
            assert_eq!(get(store, "e/05").await.unwrap().as_deref(), Some("changed"));
            assert_eq!(get(store, "e/20").await.unwrap().as_deref(), Some("put again"));
        }
        for number in 0..12 {
            put(&store, &format!("z/{number}"), &large(number)).await.unwrap();
        }
    }
    let remove = range("", "~");
    run(&other, move |transaction| transaction.delete_range(&remove)).await.unwrap();
    for number in 0..12 {
        put(&store, &format!("last/{number}"), &large(number)).await.unwrap();
    }
    assert_eq!(store.count(range("", "~")).await.unwrap(), 12);
    assert!(site.leaves().len() <= 3, "what nobody needs is removed: {:?}", site.leaves());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_together_is_split_and_what_is_too_large_alone_is_refused() {
    let site = Site::start();
    let store = site.open("one");
    let half: String = "x".repeat(200_000);
    let together = ["a", "b", "c", "d", "e", "f"].map(|key| put(&store, key, &half));
    for put in futures_util::future::join_all(together).await {
        put.unwrap();
    }
    let too_large = "x".repeat(300_000);
    let (refused, beside) = tokio::join!(put(&store, "g", &too_large), put(&store, "h", "1"));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("too large") && refused.contains("nothing was done"), "{refused}");
    beside.unwrap();
    assert_eq!(get(&store, "g").await.unwrap(), None);
    assert_eq!(get(&store, "f").await.unwrap(), Some(half));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_is_done_soon_and_at_the_end() {
    let site = Site::start();
    let (store, other) = (site.open("one"), site.open("two"));
    store.later(Box::new(|transaction| transaction.put("soon", "1")));
    while get(&other, "soon").await.unwrap().is_none() {}
    store.later(Box::new(|transaction| transaction.put("at the end", "1")));
    drop(store);
    assert_eq!(get(&other, "at the end").await.unwrap().as_deref(), Some("1"));
}

/// Four that put away what they and the others write, at once.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_put_away_at_once_lose_nothing() {
    let site = Site::start();
    let stores: Vec<Kubernetes> = ["one", "two", "three", "four"].map(|name| site.open(name)).into();
    let writes = stores.iter().enumerate().map(|(who, store)| async move {
        for number in 0..25 {
            put(store, &format!("{who}/{number:02}"), &large(number)).await.unwrap();
            count_up(store, "counter").await.unwrap();
        }
    });
    futures_util::future::join_all(writes).await;
    for store in &stores {
        assert_eq!(get(store, "counter").await.unwrap().as_deref(), Some("100"));
        assert_eq!(store.count(range("", "~")).await.unwrap(), 101);
    }
    let page = stores[0].page(range("0/", "4"), 1000).await.unwrap();
    assert!(page.iter().all(|pair| pair.value == large(pair.key[2..].parse().unwrap())));
}
