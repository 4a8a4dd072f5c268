use std::time::Duration;

use attest_store::{Embedded, Tick};
use rustls_pki_types::CertificateDer;

use super::*;

fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint::of(&CertificateDer::from(vec![number]))
}

fn short(number: u8) -> String {
    fingerprint(number).short()
}

struct Case {
    folder: tempfile::TempDir,
    store: Embedded,
    sightings: Sightings,
}

async fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    let sightings = Sightings::open(&store, 0).await.unwrap();
    Case { folder, store, sightings }
}

impl Case {
    fn note(&self, authorities: Option<&[u8]>, now: u64) {
        let authorities = authorities.map(|all| all.iter().map(|number| short(*number)).collect());
        self.sightings
            .note("worker", authorities, fingerprint(1), format!("192.0.2.{now}"), now);
    }

    /// Returns the first and last times that the store has, by the claims of pointers.
    async fn stored(&self) -> BTreeMap<Option<usize>, (u64, u64, String)> {
        let all = list(&self.store).await.unwrap();
        all.into_iter()
            .map(|one| (one.authorities.map(|all| all.len()), (one.first, one.last, one.peer)))
            .collect()
    }
}

#[tokio::test]
async fn writes_sightings_immediately_and_updates_each_minute() {
    let case = case().await;
    let seen = |first: u64, last: u64| (first, last, format!("192.0.2.{last}"));
    case.note(Some(&[1]), 100);
    case.sightings.first().await;
    case.sightings.write_due(&case.store, 100).await.unwrap();
    assert_eq!(case.stored().await, BTreeMap::from([(Some(1), seen(100, 100))]));
    // Another says something else, which is known for the first time.
    case.note(Some(&[1]), 130);
    case.note(None, 130);
    case.sightings.write_due(&case.store, 130).await.unwrap();
    assert_eq!(
        case.stored().await,
        BTreeMap::from([(Some(1), seen(100, 100)), (None, seen(130, 130))])
    );
    case.sightings.write_due(&case.store, 160).await.unwrap();
    assert_eq!(case.stored().await[&Some(1)], seen(100, 130));
    // At the end, whatever the time.
    case.note(Some(&[1]), 161);
    case.note(None, 162);
    case.note(Some(&[]), 163);
    case.sightings.write_all(&case.store, 163).await.unwrap();
    let expected = [(Some(1), seen(100, 161)), (None, seen(130, 162)), (Some(0), seen(163, 163))];
    assert_eq!(case.stored().await, BTreeMap::from(expected));
}

#[tokio::test]
async fn first_sighting_time_survives_a_restart() {
    let case = case().await;
    case.note(Some(&[1, 2]), 100);
    case.sightings.write_all(&case.store, 100).await.unwrap();
    let sightings = Sightings::open(&case.store, 200).await.unwrap();
    let again = Case { sightings, ..case };
    again.note(Some(&[1, 2]), 200);
    again.sightings.write_due(&again.store, 200).await.unwrap();
    assert_eq!(again.stored().await[&Some(2)], (100, 200, "192.0.2.200".to_owned()));
    drop(again.folder);
}

#[tokio::test]
async fn merges_sightings_of_two_gateways() {
    let one = case().await;
    let other = Sightings::open(&one.store, 0).await.unwrap();
    one.note(Some(&[1]), 100);
    one.note(Some(&[1]), 170);
    other.note("worker", Some(vec![short(1)]), fingerprint(1), "192.0.2.9".to_owned(), 90);
    other.note("worker", Some(vec![short(1)]), fingerprint(1), "192.0.2.9".to_owned(), 150);
    one.sightings.write_all(&one.store, 170).await.unwrap();
    other.write_all(&one.store, 170).await.unwrap();
    let both = (90, 170, "192.0.2.170".to_owned());
    assert_eq!(one.stored().await, BTreeMap::from([(Some(1), both)]));
    // Whoever knows less takes nothing away.
    other.note("worker", Some(vec![short(1)]), fingerprint(1), "192.0.2.9".to_owned(), 180);
    other.write_all(&one.store, 180).await.unwrap();
    assert_eq!(one.stored().await[&Some(1)], (90, 180, "192.0.2.9".to_owned()));
}

#[tokio::test]
async fn deletes_sightings_that_both_clocks_call_expired() {
    let case = case().await;
    case.note(Some(&[1]), 100);
    case.note(None, 100 + REMEMBERED_SECONDS);
    case.sightings.write_all(&case.store, 100).await.unwrap();
    let entry = StoreEntry {
        id: "broken".to_owned(),
        value: "{}".to_owned(),
    };
    case.store.put(EntryKind::Pointer, entry).await.unwrap();
    assert_eq!(list(&case.store).await.unwrap().len(), 2, "the others are told");
    let (now, passed) = (101 + REMEMBERED_SECONDS, Duration::from_secs(REMEMBERED_SECONDS));
    // One gateway's clock is ahead by a year.
    Sightings::open(&case.store, now).await.unwrap();
    assert_eq!(case.stored().await.len(), 2);
    // The year goes by.
    case.store.forget_expired(Tick { now, passed }).await.unwrap();
    Sightings::open(&case.store, 100).await.unwrap();
    assert_eq!(case.stored().await.len(), 2, "its own clock does not say so");
    Sightings::open(&case.store, now).await.unwrap();
    assert_eq!(case.stored().await.into_keys().collect::<Vec<_>>(), [None]);
    let left = case.store.get(EntryKind::Pointer, "broken").await.unwrap();
    assert_eq!(left.map(|left| left.value).as_deref(), Some("{}"));
}

#[tokio::test]
async fn a_concurrent_update_prevents_deletion_of_a_sighting() {
    let case = case().await;
    case.note(Some(&[1]), 100);
    case.sightings.write_all(&case.store, 100).await.unwrap();
    let old = case.store.list(EntryKind::Pointer).await.unwrap().remove(0);
    case.note(Some(&[1]), 200);
    case.sightings.write_all(&case.store, 200).await.unwrap();
    forget(&case.store, &old).await.unwrap();
    assert_eq!(case.stored().await[&Some(1)].1, 200);
    let now = case.store.list(EntryKind::Pointer).await.unwrap().remove(0);
    forget(&case.store, &now).await.unwrap();
    assert!(case.stored().await.is_empty());
}

#[tokio::test]
async fn retries_a_failed_sighting_write() {
    let case = case().await;
    case.note(Some(&[1]), 100);
    let database = rusqlite::Connection::open(case.folder.path().join("gateway.db")).unwrap();
    database.execute_batch("ALTER TABLE pairs RENAME TO gone").unwrap();
    assert!(case.sightings.write_due(&case.store, 100).await.is_err());
    database.execute_batch("ALTER TABLE gone RENAME TO pairs").unwrap();
    case.sightings.write_due(&case.store, 160).await.unwrap();
    assert_eq!(case.stored().await[&Some(1)].0, 100);
}

#[tokio::test]
async fn number_of_cached_sightings_is_limited() {
    let case = case().await;
    for number in 0..2 * SIGHTINGS_LIMIT {
        case.sightings.note(&number.to_string(), None, fingerprint(1), String::new(), 100);
    }
    assert_eq!(case.sightings.sightings.lock().unwrap().len(), SIGHTINGS_LIMIT);
}
