//! Keys in a store that was restored to an old state, and their high-water mark.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

#[tokio::test]
async fn detects_rolled_back_seal_keys_after_a_restart() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let (before, text) = (site.entry().await.unwrap().value, sealed(&seal));
    SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let rotated = site.document().await;
    seal.maintain(NOW + 1, KEEP).await.unwrap();
    // One of the old set in the new one.
    let mut spliced = rotated.clone();
    spliced["keys"].as_array_mut().unwrap().remove(1);
    site.put(spliced.to_string()).await;
    assert!(matches!(seal.maintain(NOW + 2, KEEP).await, Err(SealError::OtherSet)));
    // The old set as a whole.
    site.put(before.clone()).await;
    for refused in [
        seal.maintain(NOW + 2, KEEP).await.map(drop),
        site.try_replica(NOW).await.map(drop),
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await,
    ] {
        assert!(matches!(refused, Err(SealError::SetBack { found: 1, known: 2, .. })), "{refused:?}");
    }
    assert!(
        opens(&seal, &text) && site.entry().await.unwrap().value == before,
        "nothing is overwritten"
    );
    seal.refresh_for("0123456789abcdef.AAAA").await.unwrap_err();
    // What is begun anew is newer than all, for who has read the old ones as well.
    SealKeyRing::replace_shared(&*site.store(), &site.key_file(), NOW, false)
        .await
        .unwrap();
    seal.maintain(NOW + 3, KEEP).await.unwrap();
    assert!(!opens(&seal, &text));
    site.replica(NOW + 3).await;
}

/// Console output of this thread.
#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Console {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn missing_seal_keys_are_recreated_with_one_warning() {
    let console = Console::default();
    let writer = console.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _said = tracing::subscriber::set_default(subscriber);
    let often = || {
        String::from_utf8(console.0.lock().unwrap().clone())
            .unwrap()
            .matches("missing from the store")
            .count()
    };
    let site = Site::new();
    let (one, other) = (site.replica(NOW).await, site.replica(NOW).await);
    let text = sealed(&one);
    assert!(site.store().remove(EntryKind::SealKey, "keys").await.unwrap());
    assert_eq!(often(), 0);
    assert!(one.maintain(NOW + 1, KEEP).await.unwrap());
    assert_eq!(often(), 1);
    assert!(!other.maintain(NOW + 2, KEEP).await.unwrap());
    assert_eq!(often(), 1);
    assert!(!opens(&one, &text) && !opens(&other, &text) && opens(&other, &sealed(&one)));
    // What was removed is not good again by being put back: it is a set of before.
    assert_eq!(site.document().await["changes"], 2);
}

#[tokio::test]
async fn refuses_an_altered_or_foreign_seal_mark() {
    let site = Site::new();
    drop(site.replica(NOW).await);
    let kept = site.folder.path().join("seal.set");
    let good = fs::read_to_string(&kept).unwrap();
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let document: Value = serde_json::from_str(&good).unwrap();
    for (member, value) in [
        ("v", Value::from(0)),
        ("changes", 0.into()),
        ("changes", 9.into()),
        ("store", "00".repeat(16).into()),
        ("tag", "AAAA".into()),
        ("x", 1.into()),
    ] {
        let mut altered = document.clone();
        altered[member] = value;
        fs::write(&kept, altered.to_string()).unwrap();
        assert!(matches!(site.try_replica(NOW).await, Err(SealError::NotKept(_))), "{altered}");
    }
    fs::write(&kept, good.replace("\"v\":1", "\"v\":2")).unwrap();
    assert!(matches!(site.try_replica(NOW).await, Err(SealError::NewerFile { newer, .. }) if newer.found == 2));
    fs::write(&kept, "").unwrap();
    assert!(matches!(site.try_replica(NOW).await, Err(SealError::NotKept(_))));
    // With the key file it is replaced, too.
    fs::write(&kept, &good).unwrap();
    let (old, new) = SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let said = fs::read_to_string(&kept).unwrap();
    assert!(said.contains(&new) && !said.contains(&old), "{said}");
    // Of another store it says nothing.
    let other = Site::new();
    fs::copy(site.key_file(), other.key_file()).unwrap();
    drop(other.replica(NOW).await);
    assert!(said.contains("\"changes\":2"), "{said}");
    fs::write(other.folder.path().join("seal.set"), said).unwrap();
    drop(other.replica(NOW).await);
}

#[tokio::test]
async fn a_serving_gateway_detects_rollback_without_its_mark() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let before = site.entry().await.unwrap().value;
    SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    seal.maintain(NOW + 1, KEEP).await.unwrap();
    let after = site.entry().await.unwrap().value;
    site.put(before).await;
    fs::remove_file(site.folder.path().join("seal.set")).unwrap();
    for refused in [
        seal.maintain(NOW + 2, KEEP).await.map(drop),
        seal.refresh_for("0123456789abcdef.AAAA").await,
    ] {
        assert!(
            matches!(refused, Err(SealError::SetBack { known: 2, .. } | SealError::Unread)),
            "{refused:?}"
        );
    }
    site.put(after).await;
    seal.maintain(NOW + 3, KEEP).await.unwrap();
}

#[tokio::test]
async fn recreated_seal_keys_continue_the_change_counter() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    for _ in 0..3 {
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    }
    assert_eq!(site.document().await["changes"], 4);
    assert!(site.store().remove(EntryKind::SealKey, "keys").await.unwrap());
    let anew = site.replica(NOW).await;
    assert_eq!(site.document().await["changes"], 5);
    // For whoever has read the others as well.
    seal.maintain(NOW + 1, KEEP).await.unwrap();
    assert!(opens(&seal, &sealed(&anew)));
}

/// Two processes, such as a gateway and a command, have one state. The older result of the slower one does not overwrite that of the other.
#[tokio::test]
async fn a_slow_writer_never_lowers_the_seal_mark() {
    let site = Site::new();
    drop(site.replica(NOW).await);
    let (kept, first) = (site.folder.path().join("seal.set"), site.entry().await.unwrap().value);
    for _ in 0..3 {
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    }
    let newest = fs::read_to_string(&kept).unwrap();
    assert!(newest.contains("\"changes\":4"), "{newest}");
    fs::remove_file(&kept).unwrap();
    site.put(first).await;
    let lock = fs::File::open(site.key_file()).unwrap();
    lock.lock().unwrap();
    let (store, file) = (site.store(), site.key_file());
    let rotate = SealKeyRing::rotate_shared(&*store, &file, NOW);
    let other = async {
        while site.document().await["changes"] == 1 {
            tokio::task::yield_now().await;
        }
        fs::write(&kept, &newest).unwrap();
        drop(lock);
    };
    tokio::join!(rotate, other).0.unwrap();
    assert_eq!(site.document().await["changes"], 2);
    assert_eq!(fs::read_to_string(&kept).unwrap(), newest);
}

#[tokio::test]
async fn writes_the_seal_mark_only_if_newer() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let kept = site.folder.path().join("seal.set");
    // Whatever is written is another file.
    let before = fs::metadata(&kept).unwrap().ino();
    let lock = fs::File::open(site.key_file()).unwrap();
    lock.lock().unwrap();
    let tended = tokio::time::timeout(Duration::from_secs(60), seal.maintain(NOW + 1, KEEP)).await;
    drop(lock);
    assert!(!tended.unwrap().unwrap());
    assert_eq!(fs::metadata(&kept).unwrap().ino(), before);
    // Of the store that is in the place of that one it is written, wherever that one had come.
    for _ in 0..2 {
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    }
    let other = Site::new();
    fs::copy(site.key_file(), other.key_file()).unwrap();
    drop(other.replica(NOW).await);
    fs::copy(&kept, other.folder.path().join("seal.set")).unwrap();
    drop(other.replica(NOW).await);
    let said: Value = serde_json::from_slice(&fs::read(other.folder.path().join("seal.set")).unwrap()).unwrap();
    assert_eq!(said["store"], other.store().store_mark().unwrap().id);
}

/// A writer of the store can forge its number of changes, which is therefore not trusted.
#[tokio::test]
async fn a_forged_change_counter_does_not_stop_counting() {
    for (member, value) in [
        ("changes", Value::from(u64::MAX)),
        ("changes", (u64::MAX - 1).into()),
        ("store", "00".repeat(16).into()),
        ("key_file", "00".repeat(8).into()),
    ] {
        let site = Site::new();
        drop(site.replica(NOW).await);
        let mut altered = site.document().await;
        altered["changes"] = u64::MAX.into();
        altered[member] = value;
        site.put(altered.to_string()).await;
        SealKeyRing::replace_shared(&*site.store(), &site.key_file(), NOW, true)
            .await
            .unwrap();
        let changes = async || site.document().await["changes"].as_u64().unwrap();
        assert_eq!(changes().await, NOW, "{altered}");
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
        assert_eq!(changes().await, NOW + 1);
        let before = site.entry().await.unwrap().value;
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
        site.put(before).await;
        assert!(matches!(site.try_replica(NOW).await, Err(SealError::SetBack { .. })));
    }
}

/// For any data of a newer release, the message names the required release, and nothing is overwritten.
#[tokio::test]
async fn leaves_seal_keys_of_a_newer_release_untouched() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let (text, good) = (sealed(&seal), site.document().await);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut newer = good.clone();
        change(&mut newer);
        newer
    };
    let versions = [
        with(&|document| document["v"] = 3.into()),
        with(&|document| {
            document["v"] = 3.into();
            document["more"] = 1.into();
            document["keys"] = "elsewhere".into();
        }),
    ];
    let members = [
        with(&|document| document["more"] = 1.into()),
        with(&|document| document["keys"][0]["more"] = 1.into()),
    ];
    for (newer, is_version) in versions
        .iter()
        .map(|newer| (newer, true))
        .chain(members.iter().map(|newer| (newer, false)))
    {
        site.put(newer.to_string()).await;
        for refused in [
            seal.maintain(NOW + 40 * DAY, KEEP).await.map(drop),
            site.try_replica(NOW).await.map(drop),
            SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await,
            SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(matches!(error, SealError::Version(_)), is_version, "{error}");
            let said = error.to_string();
            assert!(said.contains("a newer one") || said.contains("a newer release"), "{said}");
        }
        assert_eq!(site.document().await, *newer, "nothing is overwritten");
        assert!(opens(&seal, &text) && opens(&seal, &sealed(&seal)));
    }
}

/// A new set counts as newer than the one that it replaces, even if the clock says otherwise.
#[tokio::test]
async fn replaced_seal_keys_are_newest_despite_the_clock() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    for _ in 0..5 {
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    }
    fs::remove_file(site.folder.path().join("seal.set")).unwrap();
    SealKeyRing::replace_shared(&*site.store(), &site.key_file(), 3, false)
        .await
        .unwrap();
    assert_eq!(site.document().await["changes"], 7);
    seal.maintain(NOW + 1, KEEP).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_read_never_replaces_newer_seal_keys() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let rotate = async |now: u64| SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), now).await.unwrap();
    rotate(NOW).await;
    let ((begun, has_begun), (go_on, goes_on)) = (oneshot::channel(), oneshot::channel());
    *reads.held_after.lock().unwrap() = Some((begun, goes_on));
    let slow = Arc::clone(&seal);
    let slow = tokio::spawn(async move { slow.refresh_for("0123456789abcdef.AAAA").await });
    has_begun.await.unwrap();
    // Its key is the newest, of which the set that was read knows nothing.
    rotate(NOW + 1).await;
    seal.maintain(NOW + 2 * HOUR, KEEP).await.unwrap();
    let newest = sealed(&site.replica(NOW + 2 * HOUR).await);
    assert!(opens(&seal, &newest));
    go_on.send(()).unwrap();
    slow.await.unwrap().unwrap();
    assert!(opens(&seal, &newest), "what was read last is there still");
    assert_eq!(key_of(&sealed(&seal)), key_of(&newest));
}
