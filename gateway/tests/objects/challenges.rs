//! Number of spent challenges that are remembered: fewer than on other engines, because each commit names all objects that have them.

use attest_store::{EntryKind, Spend, Spendable, Store, Tick};

use super::*;

/// Maximum number of remembered challenges here.
const MOST: u64 = 200;
const NOW: u64 = 1_000_000;

fn challenge(number: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Challenge,
        id: format!("{number}"),
        limit: 1,
        remember_until: NOW + number,
    }
}

/// Beyond the limit the oldest are forgotten, as on each engine. A client with one of those has to retry with another challenge.
#[tokio::test(flavor = "multi_thread")]
async fn attack_41_forgets_the_oldest_challenges_beyond_the_limit() {
    let site = Site::start();
    let limits = KubernetesLimits {
        challenges: MOST,
        ..KubernetesLimits::default()
    };
    let store = site.open_within("one", limits).unwrap();
    let passed = Duration::ZERO;
    store.forget_expired(Tick { now: NOW, passed }).await.unwrap();
    let spends = (0..3 * MOST).map(|number| store.spend(challenge(number)));
    for spend in futures_util::future::join_all(spends).await {
        assert_eq!(spend.unwrap(), Spend::Granted { use_number: 1 });
    }
    let remembered = range("expiry/challenge/", "expiry/challenge0");
    assert_eq!(store.count(remembered.clone()).await.unwrap(), 3 * MOST);
    store.forget_expired(Tick { now: NOW, passed }).await.unwrap();
    assert_eq!(store.count(remembered).await.unwrap(), MOST);
    assert_eq!(store.count(range("use/challenge/", "use/challenge0")).await.unwrap(), MOST);
    let oldest = 2 * MOST;
    for gateway in ["one", "two"] {
        let store = site.open(gateway);
        for number in [0, oldest - 1] {
            let refused = store.spend(challenge(number)).await;
            assert!(matches!(refused, Err(StoreError::Forgotten { .. })), "{number}: {refused:?}");
        }
        for number in [oldest, 3 * MOST - 1] {
            assert_eq!(store.spend(challenge(number)).await.unwrap(), Spend::Exhausted, "{number}");
        }
        let new = challenge(9 * MOST + u64::from(gateway == "two"));
        assert_eq!(store.spend(new).await.unwrap(), Spend::Granted { use_number: 1 });
    }
}

/// The number of challenges that are spent between two expiries is limited, and other work continues.
#[tokio::test(flavor = "multi_thread")]
async fn attack_41_refuses_challenges_until_spent_ones_expire() {
    let site = Site::start();
    let limits = KubernetesLimits {
        challenges: 20,
        leaves: 3,
        ..KubernetesLimits::default()
    };
    let (store, other) = (site.open_within("one", limits).unwrap(), site.open_within("two", limits).unwrap());
    let passed = Duration::ZERO;
    store.forget_expired(Tick { now: NOW, passed }).await.unwrap();
    let mut spent = 0;
    let refused = loop {
        let spends = (spent..spent + 100).map(|number| store.spend(challenge(number)));
        let spends = futures_util::future::join_all(spends).await;
        if let Some(refused) = spends.into_iter().find_map(Result::err) {
            break refused.to_string();
        }
        spent += 100;
        assert!(spent < 5000, "nobody is refused");
    };
    assert!(refused.contains("the store is full of spent challenges"), "{refused}");
    let ticket = Spendable {
        kind: EntryKind::Ticket,
        ..challenge(1)
    };
    assert_eq!(store.spend(ticket).await.unwrap(), Spend::Granted { use_number: 1 });
    // Whoever did not make them is told so, too, once it has looked.
    put(&other, "a", "1").await.unwrap();
    other.spend(challenge(9_999)).await.unwrap_err();
    other.forget_expired(Tick { now: NOW, passed }).await.unwrap();
    for store in [&other, &store] {
        let begun = std::time::Instant::now();
        // It looks when it has something to do.
        while store.spend(challenge(10_000)).await.is_err() {
            put(store, "a", "2").await.unwrap();
            assert!(begun.elapsed() < crate::support::LIMIT);
        }
    }
}

#[test]
fn the_document_states_the_challenge_limit() {
    let said = format!("on objects of the cluster {}", grouped(KubernetesLimits::default().challenges));
    let document = include_str!("../../../docs/how-to/replicas.md");
    assert!(document.contains(&said), "{said}");
}

/// Formats a number with a comma between thousands.
fn grouped(number: u64) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}
