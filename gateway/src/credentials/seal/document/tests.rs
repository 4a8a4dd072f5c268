//! Tests of which key seals, which opens, and until when.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::Path;

use attest_log::TICKET_LATE_LIMIT_SECONDS;

use super::*;
use crate::settings::Settings;

const DAY: u64 = 24 * 3600;
const NOW: u64 = 20_000 * DAY;

fn ids(keys: &SealKeys) -> Vec<&str> {
    keys.0.iter().map(|key| key.id.as_str()).collect()
}

#[test]
fn longest_ticket_lifetime_is_within_seal_key_retention() {
    let mut settings = Settings::defaults(Path::new("/")).unwrap();
    settings.ticket.late = std::time::Duration::from_secs(TICKET_LATE_LIMIT_SECONDS);
    settings.ticket.lifetime = std::time::Duration::from_secs(DAY);
    assert!(settings.seal_keep().as_secs() < KEEP_SECONDS);
}

fn new(now: impl Into<Times>) -> SharedKeys {
    SharedKeys::new("store".to_owned(), now.into(), 1).unwrap()
}

fn makes_one(keys: &mut SharedKeys, now: impl Into<Times>) -> bool {
    keys.maintain(now.into()).unwrap().made
}

fn sealing(keys: &SharedKeys, now: u64) -> String {
    ids(&keys.keys(now).unwrap())[0].to_owned()
}

#[test]
fn rotates_seal_keys_with_lead_time_and_retention() {
    let mut keys = new(NOW);
    let first = keys.keys[0].id.clone();
    let month = NOW + 30 * DAY;
    assert!(!makes_one(&mut keys, month - LEAD_SECONDS - 1));
    assert!(makes_one(&mut keys, month - LEAD_SECONDS), "in time");
    assert!(!makes_one(&mut keys, month - LEAD_SECONDS), "one is enough");
    let second = keys.keys[1].id.clone();
    assert_eq!(ids(&keys.keys(month - 1).unwrap()), [first.as_str(), &second]);
    assert_eq!(ids(&keys.keys(month).unwrap()), [second.as_str(), &first]);
    // Whoever's clock is far behind seals with what is there for longest.
    assert_eq!(ids(&keys.keys(0).unwrap()), [first.as_str(), &second]);
    assert!(keys.maintain(month.into()).unwrap().changed, "it is noted that it seals");
    assert!(!keys.maintain((month + 1).into()).unwrap().changed);
    keys.drop_over((month + KEEP_SECONDS).into());
    assert_eq!(keys.keys.len(), 2);
    keys.drop_over((month + KEEP_SECONDS + 1).into());
    assert_eq!(ids(&keys.keys(month + KEEP_SECONDS + 1).unwrap()), [second.as_str()]);
}

#[test]
fn a_seal_key_expires_without_a_successor() {
    let mut keys = new(NOW);
    let first = keys.keys[0].id.clone();
    keys.drop_over((NOW + 70 * DAY).into());
    assert_eq!(ids(&keys.keys(NOW + 70 * DAY).unwrap()), [first.as_str()]);
    // It does not seal any more by then, as what it sealed would outlive it.
    assert!(makes_one(&mut keys, NOW + 60 * DAY));
    assert_ne!(sealing(&keys, NOW + 60 * DAY), first);
    let mut keys = new(NOW);
    keys.drop_over((NOW + 70 * DAY + 1).into());
    assert!(keys.keys(NOW + 70 * DAY + 1).unwrap().0.is_empty());
    assert!(makes_one(&mut keys, NOW + 70 * DAY + 1));
}

#[test]
fn a_manually_rotated_key_also_waits_lead_time() {
    let mut keys = new(NOW);
    let first = keys.keys[0].id.clone();
    keys.rotate(NOW + 10).unwrap();
    assert_eq!(sealing(&keys, NOW + 10 + LEAD_SECONDS - 1), first);
    assert_ne!(sealing(&keys, NOW + 10 + LEAD_SECONDS), first);
}

/// The gateways were away for a month, or the clock has jumped: the store's time is behind it, and passes ten times as fast.
#[test]
fn keeps_a_key_while_store_time_catches_up() {
    let mut keys = new(NOW);
    let first = keys.keys[0].id.clone();
    keys.rotate(NOW).unwrap();
    let at = |running: u64| Times {
        store: NOW + LEAD_SECONDS + 10 * running,
        clock: NOW + 30 * DAY + running,
    };
    keys.maintain(at(0)).unwrap();
    assert_ne!(sealing(&keys, at(0).store), first);
    for running in [2 * DAY, 5 * DAY, 10 * DAY] {
        let mut keys_then = SharedKeys {
            keys: keys.keys.iter().map(copy_key).collect(),
            ..new(NOW)
        };
        keys_then.maintain(at(running)).unwrap();
        assert!(
            keys_then.keys.iter().any(|key| key.id == first),
            "what it sealed at last is good for days after {running} s"
        );
    }
    keys.maintain(at(KEEP_SECONDS + 1)).unwrap();
    assert!(!keys.keys.iter().any(|key| key.id == first));
}

/// A clock that has jumped ahead alone does not do it, either: both have to say so.
#[test]
fn a_clock_ahead_alone_expires_no_replaced_key() {
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    let seals = NOW + LEAD_SECONDS;
    keys.maintain(seals.into()).unwrap();
    let (store, clock) = (seals + KEEP_SECONDS, seals + 100 * DAY);
    keys.maintain(Times { store, clock }).unwrap();
    assert_eq!(keys.keys.len(), 2);
    let (store, clock) = (seals + KEEP_SECONDS + 1, seals + KEEP_SECONDS);
    keys.maintain(Times { store, clock }).unwrap();
    assert_eq!(keys.keys.len(), 2);
    let clock = seals + KEEP_SECONDS + 1;
    keys.maintain(Times { store, clock }).unwrap();
    assert_eq!(keys.keys.len(), 1);
}

fn copy_key(key: &SharedKey) -> SharedKey {
    SharedKey {
        id: key.id.clone(),
        made: key.made,
        seals_from: key.seals_from,
        ends: key.ends,
        sealing_since: key.sealing_since,
        secret: KeyBytes::from_bytes(key.secret.bytes()).unwrap(),
    }
}

#[test]
fn a_future_dated_key_delays_no_successor() {
    const AHEAD: u64 = 3000 * DAY;
    let mut keys = new(NOW + AHEAD);
    let first = keys.keys[0].id.clone();
    // The clock is set right.
    assert!(!makes_one(&mut keys, NOW));
    assert_eq!(sealing(&keys, NOW), first);
    let month = NOW + 30 * DAY;
    assert!(!makes_one(&mut keys, month - LEAD_SECONDS - 1));
    assert!(makes_one(&mut keys, month - LEAD_SECONDS));
    assert!(!makes_one(&mut keys, month - 1));
    assert_eq!(sealing(&keys, month - 1), first);
    assert!(!makes_one(&mut keys, month));
    let second = sealing(&keys, month);
    assert_ne!(second, first);
    assert_eq!(keys.keys.len(), 2, "what the first one has sealed is good still");
    // Nor does it seal again when its date has come.
    assert_eq!(sealing(&keys, NOW + AHEAD + 1), second);
    assert!(!makes_one(&mut keys, month + KEEP_SECONDS + 1));
    assert_eq!(ids(&keys.keys(month + KEEP_SECONDS + 1).unwrap()), [second.as_str()]);
}

#[test]
fn replica_with_a_slow_clock_changes_no_keys() {
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    keys.maintain((NOW + LEAD_SECONDS).into()).unwrap();
    let (first, second) = (keys.keys[0].id.clone(), keys.keys[1].id.clone());
    let behind = Times { store: 7, clock: 7 };
    assert!(!makes_one(&mut keys, behind));
    assert!(!keys.maintain(behind).unwrap().changed, "once is enough");
    assert_eq!(sealing(&keys, 7), first);
    // For the others nothing is otherwise.
    assert_eq!(sealing(&keys, NOW + DAY), second);
    assert!(!makes_one(&mut keys, NOW + DAY));
    assert_eq!(keys.keys.len(), 2);
    keys.maintain((NOW + LEAD_SECONDS + KEEP_SECONDS).into()).unwrap();
    assert_eq!(keys.keys.len(), 2);
}

#[test]
fn sealing_since_field_is_authenticated() {
    let file_key = |byte| super::super::key_file::tests::key(byte);
    let keys = new(NOW);
    let document = keys.encrypt(&file_key(1)).unwrap();
    assert!(document.clone().decrypt(&file_key(1)).is_ok());
    for altered in [None, Some(NOW - 1), Some(NOW + 1)] {
        let mut other = document.clone();
        other.keys[0].sealing_since = altered;
        assert!(matches!(other.decrypt(&file_key(1)), Err(SealError::Altered(_))), "{altered:?}");
    }
}

/// A key without a successor has ended only if both clocks say so.
#[test]
fn a_key_expires_only_by_both_clocks() {
    const END: u64 = NOW + 70 * DAY;
    for (store, clock, is_there) in [
        (END, END, true),
        (END, END + 1, true),
        (END + 1, END, true),
        (END + 1, END + 1, false),
    ] {
        let mut keys = new(NOW);
        keys.drop_over(Times { store, clock });
        assert_eq!(!keys.keys.is_empty(), is_there, "{} {}", store - NOW, clock - NOW);
    }
}

#[test]
fn dropping_an_expired_key_keeps_its_successors() {
    const AFTER: u64 = NOW + 70 * DAY + 1;
    for (rotated, left) in [
        // It seals already: what the first has sealed is good still.
        (NOW + 65 * DAY, &[0, 1][..]),
        (AFTER - LEAD_SECONDS, &[0, 1]),
        // It is to seal, and the first no more.
        (AFTER - LEAD_SECONDS + 1, &[1]),
        (AFTER, &[1]),
    ] {
        let mut keys = new(NOW);
        keys.rotate(rotated).unwrap();
        let before: Vec<String> = keys.keys.iter().map(|key| key.id.clone()).collect();
        keys.drop_over(AFTER.into());
        let after: Vec<&str> = keys.keys.iter().map(|key| key.id.as_str()).collect();
        let left: Vec<&str> = left.iter().map(|index: &usize| before[*index].as_str()).collect();
        assert_eq!(after, left, "{}", rotated - NOW);
    }
}

#[test]
fn dropping_keys_reports_a_change() {
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    let seals = NOW + LEAD_SECONDS;
    assert!(keys.maintain(seals.into()).unwrap().changed);
    let tended = keys.maintain((seals + KEEP_SECONDS + 1).into()).unwrap();
    assert_eq!((tended.made, tended.changed, keys.keys.len()), (false, true, 1));
}

#[test]
fn future_dated_manual_rotation_delays_no_later_key() {
    let mut keys = new(NOW);
    keys.rotate(NOW + 3000 * DAY).unwrap();
    let month = NOW + 30 * DAY;
    assert!(!makes_one(&mut keys, month - LEAD_SECONDS - 1));
    assert!(makes_one(&mut keys, month - LEAD_SECONDS));
}

#[test]
fn resets_sealing_since_only_for_future_dated_keys() {
    for (ahead, is_noted) in [(CLOCKS_DIFFER_SECONDS, false), (CLOCKS_DIFFER_SECONDS + 1, true)] {
        let mut keys = new(NOW + ahead);
        assert_eq!(keys.maintain(NOW.into()).unwrap().changed, is_noted, "{ahead}");
        assert!(!keys.maintain(NOW.into()).unwrap().changed);
    }
    // It seals rightly, and only who has seen it first had a clock that was ahead.
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    let seals = NOW + LEAD_SECONDS;
    let ahead = Times {
        store: seals,
        clock: seals + 100 * DAY,
    };
    assert!(keys.maintain(ahead).unwrap().changed);
    assert!(!keys.maintain(seals.into()).unwrap().changed);
}

fn file_key() -> StoreKey {
    super::super::key_file::tests::key(1)
}

#[test]
fn key_set_is_authenticated_with_its_change_number() {
    let keys = SharedKeys { changes: 7, ..new(NOW) };
    let good = keys.encrypt(&file_key()).unwrap();
    let other = SharedKeys { changes: 8, ..keys }.encrypt(&file_key()).unwrap();
    for changes in [0, 7, 8] {
        for set in [String::new(), "AAAA".to_owned(), good.set.clone(), other.set.clone()] {
            let is_good = changes == 7 && set == good.set;
            let document = SealDocument {
                changes,
                set,
                ..good.clone()
            };
            let said = format!("{document:?}");
            match document.decrypt(&file_key()) {
                Ok(keys) => assert!(is_good && keys.changes == 7, "{said}"),
                Err(error) => assert!(!is_good && matches!(error, SealError::OtherSet), "{said}"),
            }
        }
    }
}

#[test]
fn refuses_a_key_entry_from_an_older_set() {
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    let before = keys.encrypt(&file_key()).unwrap();
    // It is noted that the second one seals.
    keys.maintain((NOW + LEAD_SECONDS).into()).unwrap();
    let mut document = keys.encrypt(&file_key()).unwrap();
    assert!(document.clone().decrypt(&file_key()).is_ok());
    document.keys[1] = before.keys[1].clone();
    assert!(matches!(document.decrypt(&file_key()), Err(SealError::OtherSet)));
}

/// Holds even without the authentication of all keys together.
#[test]
fn metadata_of_each_key_is_authenticated() {
    let mut keys = new(NOW);
    keys.rotate(NOW).unwrap();
    keys.maintain((NOW + LEAD_SECONDS).into()).unwrap();
    let good = keys.encrypt(&file_key()).unwrap();
    assert!(good.clone().decrypt(&file_key()).is_ok());
    let refused = |what: &str, alter: &dyn Fn(&mut SealDocument)| {
        let mut altered = good.clone();
        alter(&mut altered);
        assert!(matches!(altered.decrypt(&file_key()), Err(SealError::Altered(_))), "{what}");
    };
    refused("another store", &|document| document.store = "another".to_owned());
    refused("another's name", &|document| document.keys[0].id = document.keys[1].id.clone());
    refused("made", &|document| document.keys[0].made += 1);
    refused("seals from", &|document| document.keys[0].seals_from += 1);
    refused("ends", &|document| document.keys[0].ends += 1);
    refused("since", &|document| document.keys[0].sealing_since = None);
    // The same text is authenticated, and each date is the next one.
    refused("a name that goes on in the dates", &|document| {
        let EncryptedKey {
            id,
            made,
            seals_from,
            ends,
            sealing_since,
            ciphertext,
        } = document.keys[0].clone();
        let (store, key) = (document.store.clone(), file_key());
        let shifted = EncryptedKey {
            id: format!("{id}\n{made}"),
            made: seals_from,
            seals_from: ends,
            ends: sealing_since.unwrap(),
            sealing_since: None,
            ciphertext,
        };
        assert_eq!(
            shifted.associated_data(&key, &store),
            document.keys[0].associated_data(&key, &store)
        );
        document.keys[0] = shifted;
    });
}
