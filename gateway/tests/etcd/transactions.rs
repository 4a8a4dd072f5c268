//! Limits of etcd for one transaction, and work in many.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_counts_a_hundred_thousand_entries() {
    const EACH: usize = 100;
    let site = Site::start();
    let store = site.open("one");
    assert!(EACH <= store.most_writes());
    let fill = (0..1000).map(|hundred| {
        run(&store, move |transaction| {
            (0..EACH).try_for_each(|one| transaction.put(&format!("entry/{:06}", hundred * EACH + one), "{}"))
        })
    });
    // A few at a time: each of them is a commit of its own, and those behind would wait for too long.
    let mut fill = futures_util::stream::StreamExt::buffer_unordered(futures_util::stream::iter(fill), 8);
    while let Some(filled) = futures_util::StreamExt::next(&mut fill).await {
        filled.unwrap();
    }
    put(&store, "entry0", "behind it").await.unwrap();
    assert_eq!(store.count(range("entry/", "entry0")).await.unwrap(), 100_000);
    let (mut from, mut seen) = ("entry/".to_owned(), 0);
    loop {
        let page = store.page(range(&from, "entry0"), 5000).await.unwrap();
        for found in &page {
            assert_eq!(found.key, format!("entry/{seen:06}"));
            seen += 1;
        }
        let Some(last) = page.last() else { break };
        from = format!("{}\0", last.key);
    }
    assert_eq!(seen, 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn splits_large_groups_and_refuses_too_large_transactions() {
    let site = Site::start();
    let store = site.open("one");
    let large = "x".repeat(900_000);
    let together = ["a", "b", "c", "d"].map(|key| put(&store, key, &large));
    for put in futures_util::future::join_all(together).await {
        put.unwrap();
    }
    let too_large = "x".repeat(1_700_000);
    let (refused, beside) = tokio::join!(put(&store, "e", &too_large), put(&store, "f", "1"));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("too large") && refused.contains("nothing was done"), "{refused}");
    beside.unwrap();
    let too_many = |transaction: &mut dyn Transaction| (0..121).try_for_each(|one| transaction.put(&format!("many/{one}"), "1"));
    let refused = run(&store, too_many).await.unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    let too_many = |transaction: &mut dyn Transaction| (0..121).try_for_each(|one| transaction.get(&format!("many/{one}")).map(drop));
    let refused = run(&store, too_many).await.unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    assert_eq!(get(&store, "e").await.unwrap(), None);
    assert_eq!(store.count(range("many/", "many0")).await.unwrap(), 0);
}
