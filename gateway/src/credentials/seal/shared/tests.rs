//! Tests of the known keys under concurrent reads and changes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use attest_store::Embedded;

use super::*;

const NOW: u64 = 1_700_000_000;

async fn shared(folder: &tempfile::TempDir) -> SharedSeal {
    let key_file = folder.path().join("store.key");
    KeyFile::make(&key_file).unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    SharedSeal::open(Arc::new(store), &key_file, NOW.into()).await.unwrap()
}

/// Returns the id of the key that seals.
fn sealing(shared: &SharedSeal) -> String {
    shared.keys().unwrap().0[0].id.clone()
}

#[tokio::test]
async fn adopts_key_sets_unless_a_newer_is_cached() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    let store = shared.current_set().store;
    let mut known = sealing(&shared);
    for (store, changes, is_taken) in [
        (store.as_str(), 7, true),
        (store.as_str(), 6, false),
        // The same number again.
        (store.as_str(), 7, true),
        (store.as_str(), 8, true),
        // What was there is the store no more.
        ("another", 1, true),
        ("another", 0, false),
        (store.as_str(), 0, true),
        (store.as_str(), 0, true),
    ] {
        let keys = SharedKeys::new(store.to_owned(), NOW.into(), changes).unwrap();
        let new = keys.keys(NOW).unwrap().0[0].id.clone();
        shared.take(keys, None);
        assert_eq!(sealing(&shared), if is_taken { &*new } else { &*known }, "{store} {changes}");
        known = sealing(&shared);
    }
}

#[tokio::test]
async fn concurrent_callers_share_one_store_read() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    // Somebody reads.
    let began = Instant::now();
    let mut reading = shared.read.lock().await;
    let read = async {
        *reading = Some(LastRead {
            began,
            ended: Instant::now(),
            could: true,
        });
        drop(reading);
    };
    assert!(tokio::join!(shared.reread(|| false), read).0.unwrap());
    let ended = shared.read.lock().await.as_ref().unwrap().ended;
    let again = shared.reread(|| false).await.unwrap();
    // Unless the second in which that is good is over by now.
    let ended_then = shared.read.lock().await.as_ref().unwrap().ended;
    assert_eq!(again, ended_then != ended);
}

#[tokio::test]
async fn a_cached_key_needs_no_readable_store() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    let arrived = Instant::now();
    *shared.read.lock().await = Some(LastRead {
        began: arrived + Duration::from_secs(3600),
        ended: arrived + Duration::from_secs(3600),
        could: false,
    });
    assert!(!shared.reread(|| true).await.unwrap());
    assert!(matches!(shared.reread(|| false).await, Err(SealError::Unread)));
}

#[tokio::test]
async fn a_late_waiter_gets_the_shared_reads_result() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    let mut reading = shared.read.lock().await;
    let read = async {
        *reading = Some(LastRead {
            began: Instant::now(),
            // As if that were long ago.
            ended: Instant::now().checked_sub(2 * READ_EVERY).unwrap(),
            could: false,
        });
        drop(reading);
    };
    let late = tokio::join!(shared.reread(|| false), read).0;
    assert!(matches!(late, Err(SealError::Unread)), "{late:?}");
    assert!(shared.reread(|| false).await.unwrap(), "who comes then has it read");
}

#[tokio::test]
async fn reads_the_store_only_for_plausible_key_ids() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    let keys = std::sync::RwLock::new(Arc::new(shared.keys().unwrap()));
    let home = super::super::Home::Store(shared);
    let seal = super::super::SealKeyRing { home, keys };
    let own = seal.seal(super::super::Sealed::Ticket, b"x").unwrap();
    for (text, is_read) in [
        (own.as_str(), false),
        ("", false),
        ("0123456789abcdef", false),
        ("x.y", false),
        ("0123456789abcdeg.x", false),
        ("0123456789abcde.x", false),
        ("0123456789abcdef0.x", false),
        ("0123456789abcdef.x", true),
    ] {
        seal.refresh_for(text).await.unwrap();
        let super::super::Home::Store(shared) = &seal.home else { return };
        assert_eq!(shared.read.lock().await.is_some(), is_read, "{text}");
    }
}

/// Replicas whose file is an older one go on until they have the newer.
#[tokio::test]
async fn a_reset_key_set_keeps_its_encryption_key() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared(&folder).await;
    let old = KeyFile::read(&shared.key_file).unwrap().newest().unwrap().id.clone();
    let file = KeyFile::read(&shared.key_file).unwrap().begin_to_replace(&old).unwrap();
    let new = file.newest().unwrap().id.clone();
    for (key_is_lost, expected) in [(false, &old), (true, &new), (false, &new)] {
        let drop = SealChange::Drop { key_is_lost };
        change(&*shared.store, &shared.key_file, NOW.into(), &drop, None).await.unwrap();
        let entry = shared.store.get(EntryKind::SealKey, ENTRY).await.unwrap().unwrap();
        let document = SealDocument::parse(&entry.value).unwrap();
        assert_eq!(&document.store_key(&file).unwrap().id, expected, "{key_is_lost}");
    }
}
