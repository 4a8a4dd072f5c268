#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::*;

fn open() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

fn thing(id: &str, limit: u32, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: id.to_owned(),
        limit,
        remember_until,
    }
}

fn entry(id: &str, value: &str) -> Entry {
    Entry {
        id: id.to_owned(),
        value: value.to_owned(),
    }
}

#[tokio::test]
async fn a_change_is_made_only_of_what_was_expected() {
    let (_folder, store) = open();
    store.put(EntryKind::Token, entry("a", "1")).await.unwrap();
    let change = |expected: &[(&str, &str)], write: &[(&str, &str)]| {
        let entries = |pairs: &[(&str, &str)]| pairs.iter().map(|(id, value)| entry(id, value)).collect();
        store.change(EntryKind::Token, entries(expected), entries(write))
    };
    assert!(!change(&[("a", "2")], &[("a", "3"), ("b", "3")]).await.unwrap(), "another value");
    assert!(!change(&[("a", "1"), ("b", "1")], &[("a", "3")]).await.unwrap(), "one is missing");
    assert_eq!(store.list(EntryKind::Token).await.unwrap(), [entry("a", "1")]);
    assert!(change(&[("a", "1")], &[("a", "2"), ("b", "1")]).await.unwrap());
    assert!(!change(&[("a", "1")], &[("a", "3")]).await.unwrap(), "somebody was faster");
    assert!(change(&[], &[("c", "1")]).await.unwrap());
    assert_eq!(
        store.list(EntryKind::Token).await.unwrap(),
        [entry("a", "2"), entry("b", "1"), entry("c", "1")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_of_many_that_race_for_few_uses_just_so_many_win() {
    let (folder, store) = open();
    // A second process on the same file races along.
    let stores = [
        Arc::new(store),
        Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap()),
    ];
    let racing: Vec<_> = (0..60)
        .flat_map(|_| stores.clone())
        .map(|store| tokio::spawn(async move { store.spend(thing("a", 3, 10)).await.unwrap() }))
        .collect();
    let mut granted = Vec::new();
    for spend in racing {
        if let Spend::Granted { use_number } = spend.await.unwrap() {
            granted.push(use_number);
        }
    }
    granted.sort_unstable();
    assert_eq!(granted, [1, 2, 3]);
}

fn pending(decision: &str) -> Pending {
    Pending {
        decision: decision.to_owned(),
        at: 5,
    }
}

#[tokio::test]
async fn a_use_that_is_given_back_is_free_again_once_and_with_its_number() {
    let (folder, store) = open();
    let spend =
        async |store: &Embedded, decision: &str| store.spend_for(thing("a", 2, 10), Occasion::Any, pending(decision)).await.unwrap();
    assert_eq!(spend(&store, "d1").await, Spend::Granted { use_number: 1 });
    assert_eq!(spend(&store, "d2").await, Spend::Granted { use_number: 2 });
    assert_eq!(spend(&store, "d3").await, Spend::Exhausted);
    store.settle("d2");
    assert!(store.give_back("d1").await.unwrap());
    assert!(!store.give_back("d1").await.unwrap(), "once");
    assert!(!store.give_back("d2").await.unwrap(), "it is recorded");
    assert!(!store.give_back("d3").await.unwrap(), "it used nothing up");
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    assert_eq!(spend(&store, "d4").await, Spend::Granted { use_number: 1 });
    assert_eq!(spend(&store, "d5").await, Spend::Exhausted);
    assert_eq!(store.pending().await.unwrap(), [pending("d4")]);
    store.settle("d4");
    drop(store);
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    assert_eq!(store.pending().await.unwrap(), [], "settled at the latest at the end");
    assert_eq!(spend(&store, "d6").await, Spend::Exhausted);
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 2);
}

#[tokio::test]
async fn what_is_forgotten_is_not_given_back() {
    let (_folder, store) = open();
    store.spend_for(thing("a", 1, 10), Occasion::Any, pending("d1")).await.unwrap();
    store.spend_for(thing("b", 1, 10), Occasion::Any, pending("d2")).await.unwrap();
    store.give_back("d2").await.unwrap();
    tick(&store, 10, 0).await;
    tick(&store, DAY + 11, DAY).await;
    assert!(store.give_back("d1").await.unwrap());
    for id in ["a", "b"] {
        assert_eq!(store.uses(EntryKind::Ticket, id).await.unwrap(), 0);
        assert_eq!(store.spend(thing(id, 1, 20)).await.unwrap(), Spend::Granted { use_number: 1 });
        assert_eq!(store.spend(thing(id, 1, 20)).await.unwrap(), Spend::Exhausted, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_giving_back_makes_nothing_good_twice() {
    let (folder, store) = open();
    let stores = [
        Arc::new(store),
        Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap()),
    ];
    // Each tries, and every second that gets a use gives it back, from both processes at once.
    let racing: Vec<_> = (0..60)
        .flat_map(|_| stores.clone())
        .enumerate()
        .map(|(index, store)| {
            let (other, decision) = (stores[(index + 1) % 2].clone(), format!("d{index}"));
            tokio::spawn(async move {
                let Spend::Granted { use_number } = store.spend_for(thing("a", 3, 10), Occasion::Any, pending(&decision)).await.unwrap()
                else {
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

#[tokio::test]
async fn what_was_spent_is_spent_after_a_restart_and_until_it_is_forgotten() {
    let (folder, store) = open();
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Granted { use_number: 1 });
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    drop(store);
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    let other_kind = Spendable {
        kind: EntryKind::Challenge,
        ..thing("a", 1, 10)
    };
    assert_eq!(
        store.spend(other_kind).await.unwrap(),
        Spend::Granted { use_number: 1 },
        "each kind has its own ids"
    );
}

/// Claims `a` for a decision, in the place of nothing or of this; whether it has it.
async fn claims(store: &Embedded, value: &str, instead_of: Option<&str>, decision: &str) -> bool {
    let claim = Claim {
        entry: entry("a", value),
        instead_of: instead_of.map(str::to_owned),
    };
    store.claim(EntryKind::Instance, claim, pending(decision)).await.unwrap().is_none()
}

async fn holder(store: &Embedded) -> Option<String> {
    store.get(EntryKind::Instance, "a").await.unwrap().map(|entry| entry.value)
}

#[tokio::test]
async fn what_was_claimed_for_nothing_is_given_back_once_and_nothing_else() {
    let (folder, store) = open();
    assert!(claims(&store, "1", None, "d1").await);
    assert!(!claims(&store, "2", None, "d2").await && !claims(&store, "2", Some("3"), "d2").await);
    assert!(!store.give_back("d2").await.unwrap(), "it has nothing");
    assert_eq!(store.pending().await.unwrap(), [pending("d1")]);
    assert!(store.give_back("d1").await.unwrap() && !store.give_back("d1").await.unwrap());
    assert_eq!(holder(&store).await, None);
    // Recorded, it stays, also over a restart.
    assert!(claims(&store, "2", None, "d3").await);
    store.settle("d3");
    drop(store);
    let store = Embedded::open(&file(&folder)).unwrap();
    assert!(!store.give_back("d3").await.unwrap());
    assert_eq!(
        (holder(&store).await.as_deref(), store.pending().await.unwrap()),
        (Some("2"), vec![])
    );
    // What takes another's place gives it back to that one.
    assert!(claims(&store, "3", Some("2"), "d4").await);
    store.give_back("d4").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("2"));
    // Somebody has released it meanwhile, and somebody else has it.
    assert!(claims(&store, "3", Some("2"), "d5").await);
    store.put(EntryKind::Instance, entry("a", "4")).await.unwrap();
    store.give_back("d5").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("4"));
}

#[tokio::test]
async fn what_two_decisions_stand_on_stays_until_both_come_to_nothing() {
    for (first, then, stays) in [("d1", "d2", false), ("d2", "d1", false), ("d1", "", true), ("d2", "", true)] {
        let (_folder, store) = open();
        assert!(claims(&store, "1", None, "d1").await);
        assert!(store.share(EntryKind::Instance, entry("a", "1"), pending("d2")).await.unwrap());
        assert!(!store.share(EntryKind::Instance, entry("a", "2"), pending("d3")).await.unwrap());
        store.give_back(first).await.unwrap();
        assert_eq!(holder(&store).await.as_deref(), Some("1"));
        if stays {
            store.settle(if first == "d1" { "d2" } else { "d1" });
            assert!(store.pending().await.unwrap().is_empty());
        } else {
            store.give_back(then).await.unwrap();
        }
        assert_eq!(holder(&store).await.is_some(), stays, "{first}");
    }
    // One of them is recorded while the other is not decided.
    let (_folder, store) = open();
    assert!(claims(&store, "1", None, "d1").await);
    store.share(EntryKind::Instance, entry("a", "1"), pending("d2")).await.unwrap();
    store.settle("d2");
    assert!(!store.give_back("d1").await.unwrap());
    assert_eq!(holder(&store).await.as_deref(), Some("1"));
}

#[tokio::test]
async fn who_took_the_place_of_a_claim_that_comes_to_nothing_gives_it_back_to_nobody() {
    let (_folder, store) = open();
    assert!(claims(&store, "1", None, "d1").await && claims(&store, "2", Some("1"), "d2").await);
    store.give_back("d1").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("2"));
    store.give_back("d2").await.unwrap();
    assert_eq!(holder(&store).await, None);
}

#[tokio::test]
async fn what_the_administrator_writes_is_not_undone_with_a_claim_that_comes_to_nothing() {
    let (_folder, store) = open();
    let instance = EntryKind::Instance;
    // The same again, if there is none: it is there, and stays.
    assert!(claims(&store, "1", None, "d1").await);
    assert_eq!(store.insert(instance, entry("a", "2")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.pending().await.unwrap(), [pending("d1")], "what is not written says nothing");
    assert_eq!(store.insert(instance, entry("a", "1")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.pending().await.unwrap(), []);
    assert!(!store.give_back("d1").await.unwrap());
    assert_eq!(holder(&store).await.as_deref(), Some("1"));
    // Put there, or changed to it.
    assert!(claims(&store, "2", Some("1"), "d2").await);
    store.put(instance, entry("a", "2")).await.unwrap();
    store.give_back("d2").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("2"));
    assert!(claims(&store, "3", Some("2"), "d3").await);
    let same = || vec![entry("a", "3")];
    assert!(store.change(instance, same(), same()).await.unwrap());
    store.give_back("d3").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("3"));
    // Removed, and there again by another decision, which is recorded.
    assert!(claims(&store, "4", Some("3"), "d4").await);
    assert!(store.remove(instance, "a").await.unwrap());
    assert!(claims(&store, "4", None, "d5").await);
    store.settle("d5");
    store.give_back("d4").await.unwrap();
    assert_eq!(holder(&store).await.as_deref(), Some("4"));
    assert_eq!(store.pending().await.unwrap(), []);
}

const DAY: u64 = 24 * 3600;

/// Lets time go on: what the clock says, and how many seconds the gateway has run.
async fn tick(store: &Embedded, now: u64, passed: u64) -> u64 {
    let passed = Duration::from_secs(passed);
    store.forget_expired(Tick { now, passed }).await.unwrap()
}

#[tokio::test]
async fn what_was_spent_is_forgotten_a_day_after_it_expired_and_not_before() {
    let (_folder, store) = open();
    assert_eq!(tick(&store, 1000, 0).await, 1000);
    store.spend(thing("a", 1, 1000)).await.unwrap();
    for time in [1000, 1001, DAY, DAY + 1000] {
        assert_eq!(tick(&store, time, DAY).await, time);
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1, "{time}");
    }
    tick(&store, DAY + 1001, 1).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
}

fn challenge(id: &str, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Challenge,
        ..thing(id, 1, remember_until)
    }
}

async fn rows(store: &Embedded) -> u64 {
    let count = store.transact(|connection| connection.query_row("SELECT count(*) FROM uses", [], |row| row.get::<_, i64>(0)));
    count.await.unwrap().unsigned_abs()
}

#[tokio::test]
async fn attack_41_the_store_does_not_grow_with_what_strangers_ask_for_whatever_time_it_believes() {
    const MOST: u64 = 1500;
    let (_folder, store) = open();
    // Its time lags behind, as after a pause.
    tick(&store, 1000, 0).await;
    let now = 10 * DAY;
    store.spend(thing("t", 1, now)).await.unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                INSERT INTO uses SELECT 'challenge', printf('%064x', i), 1, ?2 + i FROM n";
    let rows_now = i64::try_from(4 * MOST).unwrap();
    let start = believed::integer(now);
    let filled = store.transact(move |connection| connection.execute(fill, [rows_now, start]));
    filled.await.unwrap();
    store.forget(1000, 4 * MOST).await.unwrap();
    assert_eq!(rows(&store).await, 4 * MOST + 1, "there is room");
    store.forget(1000, MOST).await.unwrap();
    assert_eq!(rows(&store).await, MOST + 1, "and the ticket, whoever asks for challenges");
    // The oldest of them are gone, and not good again.
    let last = now + 3 * MOST;
    let refused = store.spend(challenge("gone", last)).await;
    assert!(
        matches!(refused, Err(StoreError::Forgotten { until, .. }) if until == last),
        "{refused:?}"
    );
    let granted = store.spend(challenge("new", last + 1)).await.unwrap();
    assert_eq!(granted, Spend::Granted { use_number: 1 });
    assert_eq!(
        believed::CHALLENGES_LIMIT_ROWS,
        3600 * 250,
        "the documents say an hour of all that there are"
    );
}

#[tokio::test]
async fn attack_41_a_challenge_is_remembered_for_a_day_and_is_never_good_again() {
    let (_folder, store) = open();
    tick(&store, 1000, 0).await;
    store.spend(challenge("a", 1120)).await.unwrap();
    store.spend(thing("t", 1, 1121)).await.unwrap();
    tick(&store, 1120 + DAY, DAY).await;
    assert_eq!(store.spend(challenge("a", 1120)).await.unwrap(), Spend::Exhausted);
    tick(&store, 1121 + DAY, 1).await;
    assert_eq!(store.uses(EntryKind::Challenge, "a").await.unwrap(), 0);
    assert_eq!(store.uses(EntryKind::Ticket, "t").await.unwrap(), 1);
    let refused = store.spend(challenge("a", 1120)).await;
    assert!(matches!(refused, Err(StoreError::Forgotten { until: 1120, .. })), "{refused:?}");
}

#[tokio::test]
async fn attack_41_after_two_hours_with_a_clock_that_is_ahead_tickets_and_challenges_are_good() {
    const HOUR: u64 = 3600;
    let (_folder, store) = open();
    let right = 100 * DAY;
    tick(&store, right, 0).await;
    for step in 1..=120 {
        let ahead = right + 60 * step + 8 * HOUR;
        store.spend(challenge(&format!("c{step}"), ahead + 120)).await.unwrap();
        store.spend(thing(&format!("t{step}"), 1, ahead + 600)).await.unwrap();
        tick(&store, ahead, 60).await;
    }
    let now = right + 2 * HOUR;
    tick(&store, now, 60).await;
    for next in [challenge("c", now + 120), thing("t", 1, now + 600)] {
        assert_eq!(store.spend(next).await.unwrap(), Spend::Granted { use_number: 1 });
    }
}

#[tokio::test]
async fn what_an_older_release_remembered_is_forgotten_by_and_by_and_decisions_come_in_between() {
    const ROWS: usize = 20 * believed::FORGET_ROWS;
    let (_folder, store) = open();
    tick(&store, 1000, 0).await;
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                INSERT INTO uses SELECT 'challenge', printf('%064x', i), 1, 1000 + i % 7 FROM n";
    let filled = store.transact(move |connection| connection.execute(fill, [i64::try_from(ROWS).unwrap()]));
    assert_eq!(filled.await.unwrap(), ROWS);
    let forgets = {
        let store = store.clone();
        tokio::spawn(async move { tick(&store, 2 * DAY, 2 * DAY).await })
    };
    let mut seen = std::collections::BTreeSet::new();
    while !forgets.is_finished() {
        let spent = store.spend(challenge(&format!("new-{}", seen.len()), 2 * DAY + 120));
        assert!(matches!(spent.await.unwrap(), Spend::Granted { .. } | Spend::Exhausted));
        let old = store.transact(|connection| {
            connection.query_row("SELECT count(*) FROM uses WHERE remember_until < 2000", [], |row| {
                row.get::<_, i64>(0)
            })
        });
        seen.insert(old.await.unwrap());
    }
    assert!(seen.len() > 5, "{seen:?}");
    let left = store.transact(|connection| {
        connection.query_row("SELECT count(*) FROM uses WHERE remember_until < 2000", [], |row| {
            row.get::<_, i64>(0)
        })
    });
    assert_eq!(left.await.unwrap(), 0);
    let refused = store.spend(challenge("old", 1006)).await;
    assert!(matches!(refused, Err(StoreError::Forgotten { until: 1006, .. })), "{refused:?}");
}

#[test]
fn files_that_are_too_large_to_be_looked_through_are_given_up_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let store = Embedded::open(&file).unwrap();
    drop(store);
    let (connection, _) = embedded::connect(&file).unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
                INSERT INTO uses SELECT 'challenge', printf('%064x', i), 1, i FROM n";
    connection.execute(fill, []).unwrap();
    let looked = |limit| embedded::look_through(&file, &connection, limit).unwrap();
    assert!(!looked(Duration::ZERO));
    assert!(looked(Duration::from_secs(600)));
}

#[tokio::test]
async fn attack_41_a_clock_that_jumps_makes_nothing_forgotten_and_what_is_forgotten_is_never_good_again() {
    let (folder, store) = open();
    store.spend(thing("a", 1, 1600)).await.unwrap();
    assert_eq!(tick(&store, 1000, 0).await, 1000);
    drop(store);
    // Starts with a clock that is far ahead, and some minutes of running with it.
    for _ in 0..10 {
        let store = Embedded::open(&file(&folder)).unwrap();
        tick(&store, 1000 + 10 * DAY, 0).await;
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    }
    let store = Embedded::open(&file(&folder)).unwrap();
    assert_eq!(tick(&store, 1000 + 10 * DAY, 300).await, 4000, "step by step");
    assert_eq!(tick(&store, 1000, 300).await, 4000, "and never back");
    assert_eq!(store.spend(thing("a", 1, 1600)).await.unwrap(), Spend::Exhausted);
    // What is new is good while the clock is right again.
    assert_eq!(store.spend(thing("b", 1, 1700)).await.unwrap(), Spend::Granted { use_number: 1 });
    // A clock that stays wrong for days is believed in the end. What was forgotten then is not good again when it is set right.
    assert_eq!(tick(&store, 10 * DAY, DAY).await, 10 * DAY);
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 0);
    for id in ["a", "b", "c"] {
        let refused = store.spend(thing(id, 1, 1700)).await;
        assert!(
            matches!(refused, Err(StoreError::Forgotten { until: 1700, .. })),
            "{id}: {refused:?}"
        );
    }
    assert_eq!(store.spend(thing("c", 1, 1701)).await.unwrap(), Spend::Granted { use_number: 1 });
}

#[tokio::test]
async fn a_store_that_was_begun_with_a_clock_ahead_goes_on_with_a_right_one() {
    let (_folder, store) = open();
    tick(&store, 60 * DAY, 0).await;
    tick(&store, 1000, 300).await;
    store.spend(thing("a", 1, 1600)).await.unwrap();
    tick(&store, 1300, 300).await;
    assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
    assert_eq!(store.spend(thing("b", 1, 1420)).await.unwrap(), Spend::Granted { use_number: 1 });
}

#[tokio::test]
async fn attack_41_a_store_of_an_older_release_begins_with_the_oldest_thing_that_it_remembers() {
    let (_folder, store) = open();
    store.spend(thing("a", 1, 1600)).await.unwrap();
    assert_eq!(tick(&store, 10 * DAY, 0).await, 1600);
    let (_folder, store) = open();
    assert_eq!(tick(&store, 10 * DAY, 0).await, 10 * DAY);
}

#[tokio::test]
async fn attack_41_the_uses_of_a_token_go_with_it_and_never_by_time() {
    let (_folder, store) = open();
    let token = || Spendable {
        kind: EntryKind::TokenUse,
        ..thing("t", 1, 10)
    };
    store.put(EntryKind::Token, entry("t", "{}")).await.unwrap();
    store.spend(token()).await.unwrap();
    tick(&store, 1000, 0).await;
    for day in 1..30 {
        tick(&store, 1000 + day * DAY, DAY).await;
    }
    assert_eq!(store.spend(token()).await.unwrap(), Spend::Exhausted);
    store.remove(EntryKind::Name, "t").await.unwrap();
    assert_eq!(store.uses(EntryKind::TokenUse, "t").await.unwrap(), 1, "another kind of entry");
    assert!(store.remove(EntryKind::Token, "t").await.unwrap());
    assert_eq!(store.uses(EntryKind::TokenUse, "t").await.unwrap(), 0);
}

#[tokio::test]
async fn the_first_entry_stays_until_it_is_put_or_removed() {
    let (_folder, store) = open();
    assert_eq!(store.insert(EntryKind::Name, entry("a", "1")).await.unwrap(), None);
    assert_eq!(store.insert(EntryKind::Name, entry("a", "2")).await.unwrap(), Some(entry("a", "1")));
    assert_eq!(store.get(EntryKind::Ek, "a").await.unwrap(), None);
    store.put(EntryKind::Name, entry("a", "3")).await.unwrap();
    store.put(EntryKind::Name, entry("0", "x")).await.unwrap();
    assert_eq!(store.list(EntryKind::Name).await.unwrap(), [entry("0", "x"), entry("a", "3")]);
    assert!(store.remove(EntryKind::Name, "a").await.unwrap());
    assert!(!store.remove(EntryKind::Name, "a").await.unwrap());
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_statement_fails_for_whoever_asked_and_for_nobody_else() {
    let (folder, store) = open();
    let wrong = store.transact(|connection| connection.execute("INSERT INTO nobodys VALUES (1)", []));
    let (wrong, right) = tokio::join!(wrong, store.put(EntryKind::Name, entry("a", "1")));
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("no such table: nobodys") && wrong.contains("SQLite, "), "{wrong}");
    assert!(wrong.contains(&file(&folder).display().to_string()), "{wrong}");
    right.unwrap();
    assert_eq!(store.get(EntryKind::Name, "a").await.unwrap(), Some(entry("a", "1")));
}

#[test]
fn what_the_engine_says_comes_with_its_file_and_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        file(&folder),
        "this is no database at all, and long enough to be looked at".repeat(20),
    )
    .unwrap();
    let StoreError::Engine {
        engine: "SQLite",
        place,
        problem,
        advice,
    } = Embedded::open(&file(&folder)).unwrap_err()
    else {
        panic!("another error");
    };
    assert_eq!(Path::new(&place), file(&folder));
    assert!(
        problem.contains("not a database") && advice == "bring back a copy that is whole",
        "{problem}: {advice}"
    );
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("gateway.db")
}

/// What a backup has: the database after its last user has closed it.
fn copy(from: &tempfile::TempDir) -> Vec<u8> {
    fs::read(file(from)).unwrap()
}

/// Puts a database in the place of the one that is there, as a careful administrator does.
fn restore(folder: &tempfile::TempDir, database: &[u8]) {
    for beside in ["gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(folder.path().join(beside)));
    }
    fs::write(file(folder), database).unwrap();
}

fn log(folder: &tempfile::TempDir, lines: &[&str]) {
    fs::write(
        folder.path().join("attestation.jsonl"),
        lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>(),
    )
    .unwrap();
}

#[tokio::test]
async fn a_commit_is_on_disk_before_it_is_answered() {
    let (_folder, store) = open();
    let pragma =
        |name: &'static str| store.transact(move |connection| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0)));
    assert_eq!(pragma("journal_mode").await.unwrap(), "wal");
    let synchronous = store.transact(|connection| connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0)));
    // 2 is FULL: in WAL mode the log is synced with each commit.
    assert_eq!(synchronous.await.unwrap(), 2);
}

#[tokio::test]
async fn what_is_written_raises_the_mark_and_what_is_read_does_not() {
    let (folder, store) = open();
    let standing = || store.standing().unwrap();
    let first = standing();
    store.get(EntryKind::Name, "a").await.unwrap();
    store.remove(EntryKind::Name, "a").await.unwrap();
    assert_eq!(standing(), first);
    store.put(EntryKind::Name, entry("a", "1")).await.unwrap();
    store.spend(thing("a", 1, 10)).await.unwrap();
    assert_eq!(standing().mark, first.mark + 2);
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    assert_eq!(standing().mark, first.mark + 2, "nothing was written");
    // Another process on the same file.
    Embedded::open(&file(&folder))
        .unwrap()
        .put(EntryKind::Name, entry("b", "1"))
        .await
        .unwrap();
    store.get(EntryKind::Name, "a").await.unwrap();
    assert_eq!((standing().mark, standing().id), (first.mark + 3, first.id));
}

#[tokio::test]
async fn attack_42_a_store_from_before_is_refused() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    store.put(EntryKind::Revoked, entry("a", "{}")).await.unwrap();
    let now = store.standing().unwrap();
    let line = serde_json::json!({ "store": now, "v": 1 }).to_string();
    let unsaid = fs::read(folder.path().join("store.mark")).unwrap();
    store.keep_mark().await.unwrap();
    let said = fs::read(folder.path().join("store.mark")).unwrap();
    drop(store);
    restore(&folder, &backup);
    let refused = || match Embedded::open(&file(&folder)) {
        Err(StoreError::Older { found, known, .. }) => (found, known),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(), (now.mark - 1, now.mark), "by store.mark");
    fs::write(folder.path().join("store.mark"), &unsaid).unwrap();
    drop(Embedded::open(&file(&folder)).unwrap());
    log(&folder, &[&line, "{}", "no JSON"]);
    assert_eq!(refused(), (now.mark - 1, now.mark), "by the log");
    fs::remove_file(folder.path().join("store.mark")).unwrap();
    assert_eq!(refused(), (now.mark - 1, now.mark), "by the log alone");
    fs::write(folder.path().join("store.mark"), &said).unwrap();
    log(&folder, &[]);
    assert_eq!(refused(), (now.mark - 1, now.mark));
    fs::write(folder.path().join("store.mark"), "half").unwrap();
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Mark { .. })));
}

/// Lines that were written together are in no order, and there may be older ones about another store.
#[tokio::test]
async fn attack_42_a_store_from_before_is_refused_whichever_of_the_logs_last_lines_says_so() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    for id in ["a", "b"] {
        store.put(EntryKind::Revoked, entry(id, "{}")).await.unwrap();
    }
    let now = store.standing().unwrap();
    drop(store);
    restore(&folder, &backup);
    fs::remove_file(folder.path().join("store.mark")).unwrap();
    let line = |id: &str, mark: u64| serde_json::json!({ "store": { "id": id, "mark": mark } }).to_string();
    let (before, then) = (line(&now.id, now.mark - 2), line(&now.id, now.mark));
    let other = line("another", now.mark + 9);
    let long = serde_json::json!({ "event_log": "x".repeat(2 * 1024 * 1024) }).to_string();
    for lines in [
        [&other, &before, &then],
        [&other, &then, &before],
        [&then, &other, &before],
        [&other, &then, &long],
    ] {
        log(&folder, &lines.map(String::as_str));
        match Embedded::open(&file(&folder)) {
            Err(StoreError::Older { found, known, .. }) => assert_eq!((found, known), (now.mark - 2, now.mark)),
            refused => panic!("{:?}: {refused:?}", lines.map(|line| &line[..20])),
        }
    }
    log(&folder, &[&other, &before]);
    Embedded::open(&file(&folder)).unwrap();
}

#[test]
fn attack_42_what_cannot_be_read_says_not_that_there_was_no_store() {
    for unreadable in ["store.mark", "attestation.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(unreadable, folder.path().join(unreadable)).unwrap();
        assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Io { .. })), "{unreadable}");
        assert!(!file(&folder).exists());
    }
    // An empty file has not been written yet: a gateway that came no further may begin again.
    for empty in ["seal.key", "attestation.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(empty), "").unwrap();
        Embedded::open(&file(&folder)).unwrap();
    }
}

#[test]
fn attack_42_a_mark_is_not_set_back_by_who_comes_late() {
    let folder = tempfile::tempdir().unwrap();
    let said = |id: &str, mark: u64| {
        let written = StoreMark { id: id.to_owned(), mark };
        super::known::write_mark(&file(&folder), &written).unwrap();
        let text = fs::read_to_string(folder.path().join("store.mark")).unwrap();
        let StoreMark { id, mark } = serde_json::from_str(&text).unwrap();
        (id, mark)
    };
    let is = |id: &str, mark: u64| (id.to_owned(), mark);
    assert_eq!(said("a", 5), is("a", 5));
    assert_eq!(said("a", 4), is("a", 5));
    assert_eq!(said("a", 6), is("a", 6));
    assert_eq!(said("b", 3), is("b", 3), "another store");
}

#[tokio::test]
async fn attack_42_a_store_that_is_lost_or_another_is_refused_until_it_is_accepted() {
    let (folder, store) = open();
    store.put(EntryKind::Revoked, entry("a", "{}")).await.unwrap();
    store.keep_mark().await.unwrap();
    let known = store.standing().unwrap();
    drop(store);
    let other = {
        let (other, store) = open();
        drop(store);
        copy(&other)
    };
    let lost = || assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Lost { .. })));
    fs::remove_file(file(&folder)).unwrap();
    lost();
    assert!(!file(&folder).exists(), "nothing takes its place");
    restore(&folder, b"");
    lost();
    restore(&folder, &other);
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Other { known: by, .. }) if by == known));
    let accepts = |folder: &tempfile::TempDir| accept::<StoreError>(&file(folder), |_| Ok(()));
    let accepted = accepts(&folder).unwrap();
    assert_eq!(accepted.replacement.known, Some(known.clone()));
    assert!(
        accepted.now.id != known.id
            && accepted.now.mark > known.mark
            && Some(&accepted.now.id) != accepted.replacement.found.map(|found| found.id).as_ref()
    );
    let store = Embedded::open(&file(&folder)).unwrap();
    assert_eq!(store.standing(), Some(accepted.now));
    drop(store);
    assert!(matches!(accepts(&folder), Err(StoreError::Known(_))), "there is nothing to accept");
    // What is accepted is not what was there before either.
    restore(&folder, &other);
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Other { .. })));
    // The log's last lines are about the store of before: store.mark is newer.
    accepts(&folder).unwrap();
    log(&folder, &[&serde_json::json!({ "store": known }).to_string()]);
    Embedded::open(&file(&folder)).unwrap();
    for trace in ["seal.key", "attestation.jsonl"] {
        let (folder, store) = open();
        drop(store);
        fs::remove_file(file(&folder)).unwrap();
        fs::remove_file(folder.path().join("store.mark")).unwrap();
        fs::write(folder.path().join(trace), "x").unwrap();
        assert!(
            matches!(Embedded::open(&file(&folder)), Err(StoreError::Lost { .. })),
            "{trace} says that there was one"
        );
        accepts(&folder).unwrap();
        Embedded::open(&file(&folder)).unwrap();
    }
}

#[tokio::test]
async fn attack_42_a_store_that_loses_its_name_or_is_set_back_answers_nothing() {
    let (folder, store) = open();
    let away = folder.path().join("away");
    let answers = async || store.get(EntryKind::Revoked, "a").await;
    fs::rename(file(&folder), &away).unwrap();
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "deleted");
    fs::copy(&away, file(&folder)).unwrap();
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "a copy is another file");
    fs::rename(&away, file(&folder)).unwrap();
    answers().await.unwrap();
    let set = |sql: &'static str| {
        let other = rusqlite::Connection::open(file(&folder)).unwrap();
        other.execute_batch(sql).unwrap();
    };
    set("UPDATE store SET mark = mark - 1");
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "set back");
    set("UPDATE store SET mark = mark + 1");
    answers().await.unwrap();
    set("UPDATE store SET id = 'other'");
    assert!(matches!(answers().await, Err(StoreError::Replaced(_))), "another");
}

/// A database as a release made it that knew no identity of stores.
fn of_older_release(path: &Path) {
    let old = rusqlite::Connection::open(path).unwrap();
    old.execute_batch(
        "CREATE TABLE uses (kind TEXT NOT NULL, id TEXT NOT NULL, uses INTEGER NOT NULL, remember_until INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
         CREATE TABLE entries (kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
         INSERT INTO uses VALUES ('ticket', 'a', 1, 10);
         INSERT INTO entries VALUES ('name', 'a', '1');",
    )
    .unwrap();
}

#[tokio::test]
async fn an_older_release_s_store_is_brought_up_to_date_and_a_newer_one_s_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    of_older_release(&file(&folder));
    log(&folder, &["{\"v\":1}"]);
    let store = Embedded::open(&file(&folder)).unwrap();
    assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
    assert_eq!(store.list(EntryKind::Name).await.unwrap(), [entry("a", "1")]);
    let version = store.transact(|connection| connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)));
    assert_eq!(version.await.unwrap(), schema::VERSION);
    drop(store);
    // Restored from before the upgrade.
    fs::remove_file(file(&folder)).unwrap();
    of_older_release(&file(&folder));
    assert!(matches!(Embedded::open(&file(&folder)), Err(StoreError::Other { .. })));
    rusqlite::Connection::open(file(&folder))
        .unwrap()
        .pragma_update(None, "user_version", 7)
        .unwrap();
    let error = Embedded::open(&file(&folder)).unwrap_err();
    assert!(matches!(
        error,
        StoreError::Schema {
            found: 7,
            known: schema::VERSION,
            ..
        }
    ));
    assert!(
        error.to_string().contains("version 7") && error.to_string().contains("knows 3"),
        "{error}"
    );
}

#[tokio::test]
async fn a_log_of_transactions_of_another_state_is_not_mixed_in() {
    let (folder, store) = open();
    drop(store);
    let backup = copy(&folder);
    let store = Embedded::open(&file(&folder)).unwrap();
    for number in 0..200 {
        store.put(EntryKind::Name, entry(&format!("{number:0>1000}"), "1")).await.unwrap();
    }
    store.transact(|connection| connection.execute_batch("SELECT 1")).await.unwrap();
    // What a crash leaves: the log of transactions is there still.
    let left = fs::read(folder.path().join("gateway.db-wal")).unwrap();
    drop(store);
    restore(&folder, &backup);
    fs::write(folder.path().join("gateway.db-wal"), &left).unwrap();
    // Either SQLite finds that they fit, and all of it is there, or it is refused: never a half of each.
    match Embedded::open(&file(&folder)) {
        Ok(store) => assert_eq!(store.list(EntryKind::Name).await.unwrap().len(), 200),
        Err(error) => assert!(
            matches!(
                error,
                StoreError::Damaged { .. } | StoreError::Older { .. } | StoreError::Engine { .. }
            ),
            "{error}"
        ),
    }
}
