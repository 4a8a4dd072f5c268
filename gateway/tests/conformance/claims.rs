//! What a decision writes before it is recorded.

use attest_store::Claim;

use super::*;

const KIND: EntryKind = EntryKind::Instance;

/// Claims `a` for a decision, in the place of nothing or of this; whether it has it.
async fn claims(store: &dyn Store, value: &str, instead_of: Option<&str>, decision: &str) -> bool {
    let claim = Claim {
        entry: entry("a", value),
        instead_of: instead_of.map(str::to_owned),
    };
    store.claim(KIND, claim, pending(decision).into()).await.unwrap().is_none()
}

async fn holder(store: &dyn Store) -> Option<String> {
    store.get(KIND, "a").await.unwrap().map(|entry| entry.value)
}

pub async fn what_was_claimed_for_nothing_is_given_back_once_and_nothing_else<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert!(claims(&*store, "1", None, "d1").await);
    assert!(!claims(&*store, "2", None, "d2").await && !claims(&*store, "2", Some("3"), "d2").await);
    assert!(!store.give_back("d2").await.unwrap(), "it has nothing");
    assert_eq!(store.pending().await.unwrap(), [pending("d1")]);
    assert!(store.give_back("d1").await.unwrap() && !store.give_back("d1").await.unwrap());
    assert_eq!(holder(&*store).await, None);
    // Recorded, it stays, also over a restart.
    assert!(claims(&*store, "2", None, "d3").await);
    store.settle("d3");
    place.close(store).await;
    let store = place.open().await;
    assert!(!store.give_back("d3").await.unwrap());
    assert_eq!(holder(&*store).await.as_deref(), Some("2"));
    assert_eq!(store.pending().await.unwrap(), []);
    // What takes another's place gives it back to that one.
    assert!(claims(&*store, "3", Some("2"), "d4").await);
    store.give_back("d4").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("2"));
    // Somebody has released it meanwhile, and somebody else has it.
    assert!(claims(&*store, "3", Some("2"), "d5").await);
    store.put(KIND, entry("a", "4")).await.unwrap();
    store.give_back("d5").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("4"));
}

pub async fn what_two_decisions_stand_on_stays_until_both_come_to_nothing<P: Place>() {
    for (first, then, stays) in [("d1", "d2", false), ("d2", "d1", false), ("d1", "", true), ("d2", "", true)] {
        let place = P::empty().await;
        let store = place.open().await;
        assert!(claims(&*store, "1", None, "d1").await);
        assert!(store.share(KIND, entry("a", "1"), pending("d2").into()).await.unwrap());
        assert!(!store.share(KIND, entry("a", "2"), pending("d3").into()).await.unwrap());
        store.give_back(first).await.unwrap();
        assert_eq!(holder(&*store).await.as_deref(), Some("1"));
        if stays {
            store.settle(if first == "d1" { "d2" } else { "d1" });
            assert!(store.pending().await.unwrap().is_empty());
        } else {
            store.give_back(then).await.unwrap();
        }
        assert_eq!(holder(&*store).await.is_some(), stays, "{first}");
    }
    // One of them is recorded while the other is not decided.
    let place = P::empty().await;
    let store = place.open().await;
    assert!(claims(&*store, "1", None, "d1").await);
    store.share(KIND, entry("a", "1"), pending("d2").into()).await.unwrap();
    store.settle("d2");
    assert!(!store.give_back("d1").await.unwrap());
    assert_eq!(holder(&*store).await.as_deref(), Some("1"));
}

pub async fn who_took_the_place_of_a_claim_that_comes_to_nothing_gives_it_back_to_nobody<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert!(claims(&*store, "1", None, "d1").await && claims(&*store, "2", Some("1"), "d2").await);
    store.give_back("d1").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("2"));
    store.give_back("d2").await.unwrap();
    assert_eq!(holder(&*store).await, None);
}

pub async fn what_the_administrator_writes_is_not_undone_with_a_claim_that_comes_to_nothing<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    // The same again, if there is none: it is there, and stays.
    assert!(claims(&*store, "1", None, "d1").await);
    assert_eq!(store.insert(KIND, entry("a", "2")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.pending().await.unwrap(), [pending("d1")], "what is not written says nothing");
    assert_eq!(store.insert(KIND, entry("a", "1")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.pending().await.unwrap(), []);
    assert!(!store.give_back("d1").await.unwrap());
    assert_eq!(holder(&*store).await.as_deref(), Some("1"));
    // Put there, or changed to it.
    assert!(claims(&*store, "2", Some("1"), "d2").await);
    store.put(KIND, entry("a", "2")).await.unwrap();
    store.give_back("d2").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("2"));
    assert!(claims(&*store, "3", Some("2"), "d3").await);
    let same = || vec![entry("a", "3")];
    assert!(store.change(KIND, same(), same()).await.unwrap());
    store.give_back("d3").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("3"));
    // Removed, and there again by another decision, which is recorded.
    assert!(claims(&*store, "4", Some("3"), "d4").await);
    assert!(store.remove(KIND, "a").await.unwrap());
    assert!(claims(&*store, "4", None, "d5").await);
    store.settle("d5");
    store.give_back("d4").await.unwrap();
    assert_eq!(holder(&*store).await.as_deref(), Some("4"));
    assert_eq!(store.pending().await.unwrap(), []);
}

pub async fn what_stays_and_what_stands_waits_for_decisions<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let stays = async || store.stays(KIND, "a").await.unwrap();
    let stands = async |value: &str| store.stands(KIND, entry("a", value)).await.unwrap();
    assert!(!stays().await && !stands("1").await, "nothing is there");
    assert!(claims(&*store, "1", None, "d1").await);
    assert!(!stays().await && !stands("1").await, "nobody knows yet");
    store.settle("d1");
    assert!(stays().await && stands("1").await && !stands("2").await);
    assert!(claims(&*store, "2", Some("1"), "d2").await);
    assert!(stays().await, "one or the other");
    assert!(!stands("2").await && !stands("1").await);
    store.give_back("d2").await.unwrap();
    assert!(stays().await && stands("1").await);
}

pub async fn attack_13_of_many_that_claim_the_same_one_has_it<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    let racing: Vec<_> = (0..30)
        .flat_map(|_| stores.clone())
        .enumerate()
        .map(|(index, store)| {
            let (value, decision) = (index.to_string(), format!("d{index}"));
            tokio::spawn(async move { claims(&*store, &value, None, &decision).await })
        })
        .collect();
    let mut winners = Vec::new();
    for (index, claim) in racing.into_iter().enumerate() {
        if claim.await.unwrap() {
            winners.push(index.to_string());
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(holder(&*stores[0]).await, winners.pop());
}
