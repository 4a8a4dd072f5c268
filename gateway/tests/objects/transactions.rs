//! Reads and changes of entries that compaction has moved into leaves.

use super::*;

/// Returns a value so large that compaction moves every few of them.
fn large(number: usize) -> String {
    format!("{number}-{}", "x".repeat(10_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_entries_can_be_read_changed_and_removed() {
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
async fn splits_large_groups_and_refuses_too_large_transactions() {
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

/// Four replicas compact their own and the others' writes concurrently.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_compactions_lose_nothing() {
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
