//! Expiry of entries, and its times.

use std::collections::BTreeSet;

use super::*;

fn assert_forgotten(refused: &Result<Spend, StoreError>, by: u64) {
    assert!(
        matches!(refused, Err(StoreError::Forgotten { until, .. }) if *until == by),
        "{refused:?}"
    );
}

pub async fn what_is_forgotten_is_not_given_back<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    spend_for(&*store, "a", 1, "d1").await;
    spend_for(&*store, "b", 1, "d2").await;
    store.give_back("d2").await.unwrap();
    tick(&*store, 10, 0).await;
    tick(&*store, DAY + 11, DAY).await;
    assert!(!store.give_back("d1").await.unwrap());
    for id in ["a", "b"] {
        assert_eq!(store.uses(EntryKind::Ticket, id).await.unwrap(), 0);
        assert_eq!(store.spend(thing(id, 1, 20)).await.unwrap(), granted(1));
        assert_eq!(store.spend(thing(id, 1, 20)).await.unwrap(), Spend::Exhausted, "{id}");
    }
}

pub async fn what_was_spent_is_forgotten_a_day_after_it_expired_and_not_before<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(tick(&*store, 1000, 0).await, 1000);
    store.spend(thing("a", 1, 1000)).await.unwrap();
    for time in [1000, 1001, DAY, DAY + 1000] {
        assert_eq!(tick(&*store, time, DAY).await, time);
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1, "{time}");
    }
    tick(&*store, DAY + 1001, 1).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
}

pub async fn attack_41_a_challenge_is_remembered_for_a_day_and_is_never_good_again<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    tick(&*store, 1000, 0).await;
    store.spend(challenge("a", 1120)).await.unwrap();
    store.spend(thing("t", 1, 1121)).await.unwrap();
    tick(&*store, 1120 + DAY, DAY).await;
    assert_eq!(store.spend(challenge("a", 1120)).await.unwrap(), Spend::Exhausted);
    tick(&*store, 1121 + DAY, 1).await;
    assert_eq!(store.uses(EntryKind::Challenge, "a").await.unwrap(), 0);
    assert_eq!(store.uses(EntryKind::Ticket, "t").await.unwrap(), 1);
    assert_forgotten(&store.spend(challenge("a", 1120)).await, 1120);
    let would = would_spend(&*store, challenge("a", 1120), UseOccasion::Any, 5).await;
    assert_forgotten(&would, 1120);
}

pub async fn attack_41_after_two_hours_with_a_clock_that_is_ahead_tickets_and_challenges_are_good<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let right = 100 * DAY;
    tick(&*store, right, 0).await;
    for step in 1..=120 {
        let ahead = right + 60 * step + 8 * HOUR;
        store.spend(challenge(&format!("c{step}"), ahead + 120)).await.unwrap();
        store.spend(thing(&format!("t{step}"), 1, ahead + 600)).await.unwrap();
        tick(&*store, ahead, 60).await;
    }
    let now = right + 2 * HOUR;
    tick(&*store, now, 60).await;
    for next in [challenge("c", now + 120), thing("t", 1, now + 600)] {
        assert_eq!(store.spend(next).await.unwrap(), granted(1));
    }
}

pub async fn attack_41_a_clock_that_jumps_makes_nothing_forgotten_and_what_is_forgotten_is_never_good_again<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    store.spend(thing("a", 1, 1600)).await.unwrap();
    assert_eq!(tick(&*store, 1000, 0).await, 1000);
    place.close(store).await;
    // Starts with a clock that is far ahead, and some minutes of running with it.
    for _ in 0..10 {
        let store = place.open().await;
        tick(&*store, 1000 + 10 * DAY, 0).await;
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
        place.close(store).await;
    }
    let store = place.open().await;
    assert_eq!(tick(&*store, 1000 + 10 * DAY, 300).await, 4000, "step by step");
    assert_eq!(tick(&*store, 1000, 300).await, 4000, "and never back");
    assert_eq!(store.spend(thing("a", 1, 1600)).await.unwrap(), Spend::Exhausted);
    // What is new is good while the clock is right again.
    assert_eq!(store.spend(thing("b", 1, 1700)).await.unwrap(), granted(1));
    // A clock that stays wrong for days is believed in the end. What was forgotten then is not good again when it is set right.
    assert_eq!(tick(&*store, 10 * DAY, DAY).await, 10 * DAY);
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    for id in ["a", "b", "c"] {
        assert_forgotten(&store.spend(thing(id, 1, 1700)).await, 1700);
    }
    assert_eq!(store.spend(thing("c", 1, 1701)).await.unwrap(), granted(1));
}

pub async fn a_store_that_was_begun_with_a_clock_ahead_goes_on_with_a_right_one<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    tick(&*store, 60 * DAY, 0).await;
    tick(&*store, 1000, 300).await;
    store.spend(thing("a", 1, 1600)).await.unwrap();
    tick(&*store, 1300, 300).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    assert_eq!(store.spend(thing("b", 1, 1420)).await.unwrap(), granted(1));
}

pub async fn attack_41_a_store_begins_with_the_oldest_thing_that_it_remembers<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    store.spend(challenge("a", 1700)).await.unwrap();
    store.spend(thing("a", 1, 1600)).await.unwrap();
    assert_eq!(tick(&*store, 10 * DAY, 0).await, 1600);
    let place = P::empty().await;
    let store = place.open().await;
    assert_eq!(tick(&*store, 10 * DAY, 0).await, 10 * DAY);
}

pub async fn attack_41_the_uses_of_a_token_go_with_it_and_never_by_time<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let token = || Spendable {
        kind: EntryKind::TokenUse,
        ..thing("t", 1, 10)
    };
    store.put(EntryKind::Token, entry("t", "{}")).await.unwrap();
    store.spend(token()).await.unwrap();
    tick(&*store, 1000, 0).await;
    for day in 1..30 {
        tick(&*store, 1000 + day * DAY, DAY).await;
    }
    assert_eq!(store.spend(token()).await.unwrap(), Spend::Exhausted);
    store.remove(EntryKind::Name, "t").await.unwrap();
    assert_eq!(store.uses(EntryKind::TokenUse, "t").await.unwrap(), 1, "another kind of entry");
    assert!(store.remove(EntryKind::Token, "t").await.unwrap());
    assert_eq!(store.uses(EntryKind::TokenUse, "t").await.unwrap(), 0);
}

pub async fn what_is_used_again_is_remembered_as_long_as_its_last_use_says<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    tick(&*store, 1000, 0).await;
    store.spend(thing("a", 3, 1000)).await.unwrap();
    store.spend(thing("a", 3, 2000)).await.unwrap();
    tick(&*store, DAY + 1001, DAY).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 2);
    assert_eq!(store.spend(thing("b", 1, 1001)).await.unwrap(), granted(1), "nothing was forgotten");
    tick(&*store, DAY + 2001, DAY).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    assert_forgotten(&store.spend(thing("c", 1, 2000)).await, 2000);
}

pub async fn a_thousand_things_are_forgotten_and_decisions_come_in_between<P: Place>() {
    const THINGS: u64 = 1500;
    let place = P::empty().await;
    let store = place.open().await;
    tick(&*store, 1000, 0).await;
    let mut spending = tokio::task::JoinSet::new();
    for number in 0..THINGS {
        let store = store.clone();
        spending.spawn(async move { store.spend(challenge(&number.to_string(), 1000 + number % 7)).await.unwrap() });
    }
    assert!(spending.join_all().await.into_iter().all(|spent| spent == granted(1)));
    let forgets = {
        let store = store.clone();
        tokio::spawn(async move { tick(&*store, 2 * DAY, 2 * DAY).await })
    };
    let mut numbers = BTreeSet::new();
    while !forgets.is_finished() {
        let new = numbers.len().to_string();
        let challenge = challenge(&format!("new-{new}"), 2 * DAY + 120);
        let spent = use_for(&*store, challenge, UseOccasion::Any, decided(&new)).await;
        assert_eq!(spent, granted(1));
        numbers.insert(new);
    }
    forgets.await.unwrap();
    for number in 0..THINGS {
        assert_eq!(store.uses(EntryKind::Challenge, &number.to_string()).await.unwrap(), 0);
    }
    assert_forgotten(&store.spend(challenge("old", 1006)).await, 1006);
    assert_eq!(store.spend(challenge("later", 1007)).await.unwrap(), granted(1));
    assert_eq!(store.pending().await.unwrap().len(), numbers.len());
}
