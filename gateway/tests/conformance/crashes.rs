//! Processes that are killed, and an engine that hangs.

use super::*;

pub async fn what_was_answered_is_there_after_a_crash<P: Place>() {
    let place = P::empty().await;
    for round in 1..=5 {
        let store = place.open().await;
        let decision = round.to_string();
        let id = decision.clone();
        let written = store.decide(&decision, move |transaction| {
            let found = transaction.spend(&thing("a", 9, 10), &UseOccasion::Any, 5)?;
            transaction.put(EntryKind::Name, entry(&id, "1"))?;
            transaction.decide(decided(&id))?;
            Ok::<_, StoreError>(found)
        });
        assert_eq!(written.await.unwrap(), granted(round));
        crash(store);
        let store = place.open().await;
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), round);
        assert_eq!(store.list(EntryKind::Name).await.unwrap().len(), round as usize);
        let expected: Vec<_> = (1..=round).map(|round| pending(&round.to_string())).collect();
        assert_eq!(store.pending().await.unwrap(), expected);
        crash(store);
    }
}

/// Verifies that a settle may be lost in a crash, because it is not durable by itself. The decision can then be settled again.
pub async fn a_settle_that_a_crash_has_lost_is_found_again<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    for decision in ["d1", "d2", "d3"] {
        spend_for(&*store, decision, 1, decision).await;
    }
    store.settle("d1");
    crash(store);
    let store = place.open().await;
    let left = decisions(&*store).await;
    assert!(left == ["d1", "d2", "d3"] || left == ["d2", "d3"], "{left:?}");
    assert_eq!(
        store.uses(EntryKind::Ticket, "d1").await.unwrap(),
        1,
        "it is used, one way or the other"
    );
    store.settle("d1");
    store.settle("d2");
    assert!(store.give_back("d3").await.unwrap());
    assert_eq!(store.pending().await.unwrap(), [without_use("d3")]);
    store.settle("d3");
    place.close(store).await;
    let store = place.open().await;
    assert_eq!(store.pending().await.unwrap(), []);
    for (id, uses) in [("d1", 1), ("d2", 1), ("d3", 0)] {
        assert_eq!(store.uses(EntryKind::Ticket, id).await.unwrap(), uses, "{id}");
    }
}

/// Grants no use while the engine hangs, and in total, acknowledged or not, no more than the limit.
pub async fn an_engine_that_stands_still_makes_nothing_good_twice<P: Place>() {
    let place = P::alone().await;
    let stores = [place.open().await, place.open().await];
    assert_eq!(stores[0].spend(thing("a", 3, 10)).await.unwrap(), granted(1));
    let held = place.hold().await;
    let (told, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for store in (0..10).flat_map(|_| stores.clone()) {
        let told = told.clone();
        tokio::spawn(async move { told.send(store.spend(thing("a", 3, 10)).await).unwrap() });
    }
    drop(told);
    // What is told now is told by a store that cannot know.
    let early = tokio::time::timeout(Duration::from_millis(300), answers.recv()).await;
    assert!(!matches!(early, Ok(Some(Ok(_)))), "{early:?}");
    drop(held);
    let mut numbers = vec![1];
    while let Some(answer) = answers.recv().await {
        if let Ok(Spend::Granted { use_number }) = answer {
            numbers.push(use_number);
        }
    }
    while let Ok(Spend::Granted { use_number }) = stores[0].spend(thing("a", 3, 10)).await {
        numbers.push(use_number);
    }
    numbers.sort_unstable();
    // One may be used up without anybody having been told.
    assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.last() <= Some(&3), "{numbers:?}");
    assert_eq!(stores[1].uses(EntryKind::Ticket, "a").await.unwrap(), 3);
}
