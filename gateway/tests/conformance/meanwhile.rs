//! What a decision was made from is unchanged when what comes of it is written.

use attest_gateway::store::{Claim, Deciding, Reading, Seen, StoreError};

use super::*;

fn made_from(decision: &str, seen: &Seen) -> Deciding {
    Deciding {
        pending: pending(decision),
        seen: seen.clone(),
    }
}

pub async fn attack_44_what_was_decided_from_what_has_changed_since_is_not_written<P: Place>() {
    let place = P::empty().await;
    let (store, other) = (place.open().await, place.open().await);
    store.put(EntryKind::Ek, entry("a", "1")).await.unwrap();
    let mut reading = Reading::of(&*store);
    for (kind, id, value) in [(EntryKind::Ek, "a", Some("1")), (EntryKind::Revoked, "a", None)] {
        let found = reading.get(kind, id).await.unwrap();
        assert_eq!(found, value.map(|value| entry(id, value)));
    }
    let seen = reading.seen();
    let (any, claim) = (Occasion::Any, |id: &str| Claim {
        entry: entry(id, "d"),
        instead_of: None,
    });
    let mut decision = 0;
    let mut tries = async |granted: bool| {
        decision += 1;
        let (name, claimed) = (format!("d{decision}"), format!("name {decision}"));
        let made_from = || made_from(&name, seen);
        let done = [
            store.spend_for(thing("t", 9, 10), any.clone(), made_from()).await.map(drop),
            store.claim(EntryKind::Name, claim(&claimed), made_from()).await.map(drop),
            store.share(EntryKind::Name, entry("shared", "s"), made_from()).await.map(drop),
            store.confirm(seen.clone()).await,
        ];
        for done in done {
            assert_eq!(done.is_ok(), granted, "{name}");
            assert!(granted || matches!(done, Err(StoreError::Changed { .. })), "{done:?}");
        }
        assert_eq!(store.get(EntryKind::Name, &claimed).await.unwrap().is_some(), granted);
        assert_eq!(store.give_back(&name).await.unwrap(), granted, "{name}");
        assert_eq!(store.uses(EntryKind::Ticket, "t").await.unwrap(), 0);
    };
    tries(true).await;
    // What was there is another, is gone, is there again.
    other.put(EntryKind::Ek, entry("a", "2")).await.unwrap();
    tries(false).await;
    other.remove(EntryKind::Ek, "a").await.unwrap();
    tries(false).await;
    other.put(EntryKind::Ek, entry("a", "1")).await.unwrap();
    tries(true).await;
    // What was not there is there, also by a decision that is not recorded.
    other.put(EntryKind::Revoked, entry("a", "")).await.unwrap();
    tries(false).await;
    other.remove(EntryKind::Revoked, "a").await.unwrap();
    let by_another = pending("other").into();
    other
        .claim(
            EntryKind::Revoked,
            Claim {
                entry: entry("a", "1"),
                instead_of: None,
            },
            by_another,
        )
        .await
        .unwrap();
    tries(false).await;
    other.give_back("other").await.unwrap();
    tries(true).await;
    // Another id, and another kind.
    other.put(EntryKind::Revoked, entry("b", "")).await.unwrap();
    other.put(EntryKind::Token, entry("a", "")).await.unwrap();
    tries(true).await;
}

pub async fn what_a_decision_has_written_itself_is_no_change_to_it<P: Place>() {
    let place = P::empty().await;
    let store = place.open().await;
    let mut reading = Reading::of(&*store);
    for name in ["own", "shared"] {
        reading.get(EntryKind::Name, name).await.unwrap();
    }
    let claim = |id: &str| Claim {
        entry: entry(id, "n"),
        instead_of: None,
    };
    let decision = made_from("d", reading.seen());
    let claims = async |id: &str, decision: &Deciding| store.claim(EntryKind::Name, claim(id), decision.clone()).await;
    claims("own", &decision).await.unwrap();
    claims("second", &decision).await.unwrap();
    // One that has read it by then is told when it is gone, and when it is written over by the administrator.
    let mut later = Reading::of(&*store);
    later.get(EntryKind::Name, "own").await.unwrap();
    let other = made_from("other", later.seen());
    claims("third", &other).await.unwrap();
    assert!(store.share(EntryKind::Name, entry("own", "n"), other.clone()).await.unwrap());
    claims("fourth", &other).await.unwrap();
    store.put(EntryKind::Name, entry("own", "m")).await.unwrap();
    for decision in [&decision, &other] {
        let refused = claims("fifth", decision).await;
        assert!(matches!(refused, Err(StoreError::Changed { .. })), "{refused:?}");
    }
}
