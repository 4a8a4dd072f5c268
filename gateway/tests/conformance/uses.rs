//! Things with a limited number of uses.

use super::*;

pub async fn attack_18_of_many_that_race_for_few_uses_just_so_many_win<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    let racing: Vec<_> = (0..60)
        .flat_map(|_| stores.clone())
        .map(|store| tokio::spawn(async move { store.spend(thing("a", 3, 10)).await.unwrap() }))
        .collect();
    let mut numbers = Vec::new();
    for spend in racing {
        if let Spend::Granted { use_number } = spend.await.unwrap() {
            numbers.push(use_number);
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
}

pub async fn attack_18_giving_back_makes_nothing_good_twice<P: Place>() {
    let place = P::empty().await;
    let stores = [place.open().await, place.open().await];
    // Each tries, and every second that gets a use gives it back, from both processes at once.
    let racing: Vec<_> = (0..60)
        .flat_map(|_| stores.clone())
        .enumerate()
        .map(|(index, store)| {
            let (other, decision) = (stores[(index + 1) % 2].clone(), format!("d{index}"));
            tokio::spawn(async move {
                let Spend::Granted { use_number } = spend_for(&*store, "a", 3, &decision).await else {
                    return None;
                };
                if index % 2 == 0 {
                    store.settle(&decision);
                    return Some(use_number);
                }
                let (one, two) = tokio::join!(store.give_back(&decision), other.give_back(&decision));
                assert!(one.unwrap() != two.unwrap(), "given back once");
                None
            })
        })
        .collect();
    let mut kept = Vec::new();
    for spend in racing {
        kept.extend(spend.await.unwrap());
    }
    // Whatever is left: all together there are three.
    while let Spend::Granted { use_number } = stores[0].spend(thing("a", 3, 10)).await.unwrap() {
        kept.push(use_number);
    }
    kept.sort_unstable();
    assert_eq!(kept, [1, 2, 3]);
}

pub async fn a_use_that_is_given_back_is_free_again_once_and_with_its_number<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(spend_for(&*store, "a", 2, "d1").await, granted(1));
    assert_eq!(spend_for(&*store, "a", 2, "d2").await, granted(2));
    assert_eq!(spend_for(&*store, "a", 2, "d3").await, Spend::Exhausted);
    store.settle("d2");
    assert!(store.give_back("d1").await.unwrap());
    assert!(!store.give_back("d1").await.unwrap(), "once");
    assert!(!store.give_back("d2").await.unwrap(), "it is recorded");
    assert!(!store.give_back("d3").await.unwrap(), "it used nothing up");
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    assert_eq!(spend_for(&*store, "a", 2, "d4").await, granted(1));
    assert_eq!(spend_for(&*store, "a", 2, "d5").await, Spend::Exhausted);
    assert_eq!(store.pending().await.unwrap(), [without_use("d1"), pending("d4")]);
    store.settle("d1");
    store.settle("d4");
    place.close(store).await;
    let store = place.open().await;
    assert_eq!(store.pending().await.unwrap(), [], "settled at the latest at the end");
    assert_eq!(spend_for(&*store, "a", 2, "d6").await, Spend::Exhausted);
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 2);
}

pub async fn what_was_spent_is_spent_after_a_restart<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), granted(1));
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    place.close(store).await;
    let store = place.open().await;
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    let other_kind = store.spend(challenge("a", 10)).await.unwrap();
    assert_eq!(other_kind, granted(1), "each kind has its own ids");
}

pub async fn a_decision_without_a_use_gives_none_back<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(spend_for(&*store, "a", 1, "d1").await, granted(1));
    let written = store.decide("d2", |transaction| {
        transaction.put(EntryKind::Name, entry("n", "1"))?;
        transaction.decide(decided("d2"))
    });
    written.await.unwrap();
    assert_eq!(store.pending().await.unwrap(), [pending("d1"), without_use("d2")]);
    assert!(!store.give_back("d2").await.unwrap());
    assert!(!store.give_back("never there").await.unwrap());
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
}

pub async fn what_is_pending_is_told_the_oldest_first<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let mut told = Vec::new();
    for (decision, at) in [("d3", 7), ("d1", 9), ("d2", 7), ("d4", 1)] {
        told.push(pending_at(decision, at));
        let spent = use_for(&*store, thing(decision, 1, 10), UseOccasion::Any, decided_at(decision, at)).await;
        assert_eq!(spent, granted(1));
    }
    told.sort_by(|a, b| (a.decided.at, &a.decided.decision).cmp(&(b.decided.at, &b.decided.decision)));
    assert_eq!(store.pending().await.unwrap(), told);
}

pub async fn to_look_uses_nothing_up<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    for _ in 0..3 {
        let would = would_spend(&*store, thing("a", 1, 10), UseOccasion::Any, 5).await.unwrap();
        assert_eq!(would, granted(1));
    }
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), granted(1));
    assert_eq!(
        would_spend(&*store, thing("a", 1, 10), UseOccasion::Any, 5).await.unwrap(),
        Spend::Exhausted
    );
}
