//! Key file that replicas share, and its replacement.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::support::interleaving::interleave;

#[tokio::test]
async fn another_key_file_is_refused_without_changes() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let (text, before) = (sealed(&seal), site.entry().await);
    let mine = fs::read(site.key_file()).unwrap();
    fs::remove_file(site.key_file()).unwrap();
    let other = SealKeyRing::make_key_file(&site.key_file()).unwrap();
    for error in [
        site.try_replica(NOW).await.unwrap_err(),
        seal.maintain(NOW + 40 * DAY, KEEP).await.unwrap_err(),
        SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap_err(),
        SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW)
            .await
            .unwrap_err(),
    ] {
        let said = error.to_string();
        let wanted = site.document().await["key_file"].as_str().unwrap().to_owned();
        assert!(
            said.contains("store.key") && said.contains(&other) && said.contains(&wanted),
            "{said}"
        );
    }
    assert_eq!(site.entry().await, before);
    assert!(opens(&seal, &text));
    fs::write(site.key_file(), mine).unwrap();
    assert!(opens(&site.replica(NOW).await, &text));
}

#[tokio::test]
async fn refuses_malformed_or_readable_key_files() {
    let site = Site::new();
    let file = site.key_file();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(
        matches!(SealKeyRing::make_key_file(&file), Err(SealError::Io { .. })),
        "it is there"
    );
    let good = fs::read_to_string(&file).unwrap();
    let key = good.lines().nth(1).unwrap();
    assert_eq!(key.len(), 64);
    for bad in [
        String::new(),
        key.to_owned(),
        format!("attestation-gateway store key 0\n{key}\n"),
        "attestation-gateway store key 1\n".to_owned(),
        format!("attestation-gateway store key 1\n{}\n", &key[2..]),
        format!("attestation-gateway store key 1\n{key}00\n"),
        format!("attestation-gateway store key 1\n{key}\n{key}\n{key}\n"),
        format!("attestation-gateway store key 1\n{key} x\n"),
        format!("attestation-gateway store key 1\n\n{key}\n"),
    ] {
        fs::write(&file, &bad).unwrap();
        assert!(matches!(site.try_replica(NOW).await, Err(SealError::NoStoreKey(_))), "{bad:?}");
    }
    fs::write(&file, &good).unwrap();
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(site.try_replica(NOW).await, Err(SealError::Mode { .. })), "{mode:o}");
    }
    fs::remove_file(&file).unwrap();
    let missing = site.try_replica(NOW).await.unwrap_err().to_string();
    assert!(missing.contains("store.key"), "{missing}");
}

#[tokio::test]
async fn a_key_file_is_replaced_while_replicas_serve() {
    let site = Site::new();
    let elsewhere = site.folder.path().join("other-host.key");
    fs::copy(site.key_file(), &elsewhere).unwrap();
    let one = site.replica(NOW).await;
    let other = SealKeyRing::open_shared(site.store(), &elsewhere, NOW).await.unwrap();
    let text = sealed(&one);
    let (old, new) = SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let document = site.document().await;
    assert_eq!(document["key_file"], new.as_str());
    assert_ne!(old, new);
    // Who has the new file goes on at once; who has not goes on with what it has, until the file is there.
    assert!(!one.maintain(NOW + 1, KEEP).await.unwrap());
    let said = other.maintain(NOW + 1, KEEP).await.unwrap_err().to_string();
    assert!(
        said.contains("other-host.key") && said.contains(&old) && said.contains(&new),
        "{said}"
    );
    assert!(opens(&other, &text) && opens(&one, &sealed(&other)));
    fs::copy(site.key_file(), &elsewhere).unwrap();
    assert!(!other.maintain(NOW + 2, KEEP).await.unwrap());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap().lines().count(), 2, "the head, and one key");
}

#[tokio::test]
async fn an_interrupted_key_file_replacement_can_resume() {
    let site = Site::new();
    let text = sealed(&site.replica(NOW).await);
    // The new key is in the file, and the store is not encrypted by it yet.
    let key = |file: String| file.lines().nth(1).unwrap().to_owned();
    let read = || fs::read_to_string(site.key_file()).unwrap();
    let (old, begun) = (key(read()), key(fs::read_to_string(Site::new().key_file()).unwrap()));
    fs::write(site.key_file(), format!("attestation-gateway store key 1\n{begun}\n{old}\n")).unwrap();
    assert!(opens(&site.replica(NOW).await, &text));
    let before = site.document().await["key_file"].clone();
    site.replica(NOW).await.maintain(NOW + 30 * DAY, KEEP).await.unwrap();
    assert_eq!(site.document().await["key_file"], before, "others have the old one only");
    SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    assert_ne!(site.document().await["key_file"], before);
    let new = key(read());
    assert!(new != old && new != begun, "whoever has read the file has read both");
    // The store is encrypted by it, and the old one is in the file still.
    fs::write(site.key_file(), format!("attestation-gateway store key 1\n{new}\n{old}\n")).unwrap();
    assert!(opens(&site.replica(NOW).await, &text));
    SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let newest = key(read());
    assert!(newest != new && newest != old && read().lines().count() == 2);
    assert!(opens(&site.replica(NOW).await, &text));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_key_file_replacements_lose_no_key() {
    let site = Arc::new(Site::new());
    let text = sealed(&site.replica(NOW).await);
    let replacing: Vec<_> = (0..8)
        .map(|_| {
            let site = Arc::clone(&site);
            tokio::spawn(async move { SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap() })
        })
        .collect();
    let mut steps = Vec::new();
    for replaced in replacing {
        steps.push(replaced.await.unwrap());
    }
    assert!(opens(&site.replica(NOW).await, &text));
    // One after the other: each begins with what one of them has made, or with the first.
    let begun = steps.iter().filter(|(old, _)| steps.iter().all(|(_, new)| new != old)).count();
    assert_eq!(begun, 1, "{steps:?}");
}

#[tokio::test]
async fn detects_an_overwritten_key_file_during_replacement() {
    let site = Arc::new(Site::new());
    drop(site.replica(NOW).await);
    let (file, before) = (site.key_file(), fs::read(site.key_file()).unwrap());
    // While the keys are encrypted anew, somebody copies the old file over the new one.
    let step = move |_| {
        let (file, before) = (file.clone(), before.clone());
        async move { fs::write(file, before).unwrap() }
    };
    let store: Arc<dyn Store> = site.store();
    let store = interleave(&store, 1, step);
    let refused = SealKeyRing::replace_key_file(&store, &site.key_file(), NOW).await;
    assert!(matches!(refused, Err(SealError::KeyFileReplaced(_))), "{refused:?}");
}

#[tokio::test]
async fn refuses_an_older_key_file_unless_key_lost() {
    let site = Site::new();
    let text = sealed(&site.replica(NOW).await);
    let old = fs::read(site.key_file()).unwrap();
    let (_, new) = SealKeyRing::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    fs::write(site.key_file(), old).unwrap();
    let before = site.entry().await;
    let refused = SealKeyRing::replace_shared(&*site.store(), &site.key_file(), NOW, false).await;
    assert!(
        matches!(&refused, Err(SealError::OtherStoreKey { wanted, .. }) if *wanted == new),
        "{refused:?}"
    );
    assert_eq!(site.entry().await, before);
    SealKeyRing::replace_shared(&*site.store(), &site.key_file(), NOW, true)
        .await
        .unwrap();
    let seal = site.replica(NOW).await;
    assert!(!opens(&seal, &text) && opens(&seal, &sealed(&seal)));
}

/// Another process has the lock: a task that waits for it does not block others.
#[test]
fn waiting_for_a_key_file_lock_blocks_nothing() {
    let site = Site::new();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(site.replica(NOW).await);
            let lock = fs::File::open(site.key_file()).unwrap();
            lock.lock().unwrap();
            let (store, file) = (site.store(), site.key_file());
            let rotate = SealKeyRing::rotate_shared(&*store, &file, NOW);
            let others = async {
                // It has written by then, and waits.
                while site.document().await["keys"].as_array().unwrap().len() < 2 {
                    tokio::task::yield_now().await;
                }
                drop(lock);
            };
            tokio::join!(rotate, others).0.unwrap();
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}

/// A backup from before the key file was replaced: its keys are worthless, even to those who could decrypt them.
#[tokio::test]
async fn ignores_seal_keys_of_another_store() {
    let (site, other) = (Site::new(), Site::new());
    drop((site.replica(NOW).await, other.store()));
    let of_another = site.entry().await.unwrap().value;
    other.put(of_another).await;
    let store = other.store().store_mark().unwrap();
    let entry = other.entry().await.unwrap();
    SealKeyRing::check_shared(&entry, &store, &other.key_file()).unwrap();
    // Nor of who drops all of them.
    SealKeyRing::replace_shared(&*other.store(), &other.key_file(), NOW, false)
        .await
        .unwrap();
    let elsewhere = other.replica(NOW).await;
    assert!(opens(&other.replica(NOW).await, &sealed(&elsewhere)));
    let document = other.document().await;
    assert_eq!(document["store"], store.id);
    assert_ne!(document["key_file"], site.document().await["key_file"]);
}
