//! Gateways that are killed between any two requests.

use cloud_fixtures::kubernetes::Mishap;

use super::*;

/// Timeout for requests that are answered at once or never.
const SHORT: Duration = Duration::from_secs(2);

fn value(number: usize) -> String {
    format!("{number}-{}", "x".repeat(15_000))
}

/// Writes pairs, one transaction each, until one is not answered. Returns the number of answered ones.
async fn write(store: &Kubernetes, pairs: usize) -> usize {
    for number in 0..pairs {
        let text = value(number);
        let written = run(store, move |transaction| {
            transaction.put(&format!("a/{number:02}"), &text)?;
            transaction.put(&format!("b/{number:02}"), "beside it")
        });
        if written.await.is_err() {
            return number;
        }
    }
    pairs
}

/// After this number of writes, the API gets no request of this gateway. All acknowledged transactions are complete, and each other one is
/// complete or absent.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_transactions_survive_a_kill_at_any_request() {
    const PAIRS: usize = 8;
    let mut last = 0;
    for writes in 0.. {
        let site = Site::start();
        let store = site.open_for("one", SHORT).unwrap();
        site.api.forget_asked();
        site.api.befall((0..writes).map(|_| Mishap::None).chain([Mishap::NotDone; 400]));
        let answered = write(&store, PAIRS).await;
        std::mem::forget(store);
        if answered == PAIRS && site.api.asked().iter().filter(|asked| asked.verb != "get").count() < writes {
            assert!(writes > 12, "{writes} writes: something was put away between them");
            return;
        }
        site.api.recover();
        let other = site.open("two");
        let found = other.page(range("a/", "c"), 1000).await.unwrap();
        let of = |kind: &str| found.iter().filter(|pair| pair.key.starts_with(kind)).count();
        assert_eq!(of("a/"), of("b/"), "after {writes} writes: half of a transaction");
        assert!(
            of("a/") == answered || of("a/") == answered + 1,
            "after {writes} writes: {answered} answered, {} there",
            of("a/")
        );
        for (number, pair) in found.iter().filter(|pair| pair.key.starts_with("a/")).enumerate() {
            assert_eq!((pair.key.clone(), pair.value.clone()), (format!("a/{number:02}"), value(number)));
        }
        assert!(answered >= last, "after {writes} writes");
        last = answered;
        // And others go on.
        count_up(&other, "counter").await.unwrap();
    }
}

/// A gateway was killed during compaction. No other starts one before its lease has expired; then one does, and removes the leftovers.
#[tokio::test(flavor = "multi_thread")]
async fn another_replica_cleans_up_a_killed_compaction() {
    let site = Site::start();
    let store = site.open_briefly("one", SHORT);
    // Four commits, one that says who puts away, and a leaf; not the one that names it.
    site.api.befall([Mishap::None; 6].into_iter().chain([Mishap::NotDone; 400]));
    assert_eq!(write(&store, 8).await, 4);
    std::mem::forget(store);
    site.cut_off("one");
    site.api.recover();
    let left = site.leaves();
    assert_eq!(left.len(), 1, "{left:?}");
    let other = site.open_briefly("two", TIMEOUT);
    let mut every = tokio::time::interval(Duration::from_millis(200));
    let begun = std::time::Instant::now();
    for number in 0.. {
        every.tick().await;
        put(&other, &format!("c/{}", number % 20), &value(number)).await.unwrap();
        if !site.leaves().contains(&left[0]) {
            break;
        }
        assert!(begun.elapsed() < crate::support::LIMIT, "what it left stays");
    }
    assert_eq!(other.count(range("a/", "a0")).await.unwrap(), 4);
    assert!(!site.leaves().is_empty(), "and what was written is put away");
}
