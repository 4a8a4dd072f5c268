//! The seal's keys in a store that replicas share: each handle of it here is a replica's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::meanwhile::meanwhile;
use crate::support::stand_in::{Beside, StandIn};
use async_trait::async_trait;
use attest_gateway::credentials::seal::{NotSealed, Seal, SealError, Sealed};
use attest_gateway::store::{Embedded, Entry, EntryKind, Store};
use serde_json::Value;
use tokio::sync::oneshot;

pub(crate) const DAY: u64 = 24 * 3600;
pub(crate) const HOUR: u64 = 3600;
pub(crate) const NOW: u64 = 20_000 * DAY;
/// Of no meaning to keys in a store.
pub(crate) const KEEP: Duration = Duration::ZERO;
/// For how long what was read of the store is good.
const GOOD: Duration = Duration::from_secs(1);

pub(crate) struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        let site = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        Seal::make_key_file(&site.key_file()).unwrap();
        site
    }

    fn key_file(&self) -> PathBuf {
        self.folder.path().join("store.key")
    }

    fn store(&self) -> Arc<Embedded> {
        Arc::new(Embedded::open(&self.folder.path().join("gateway.db")).unwrap())
    }

    pub(crate) async fn try_replica(&self, now: u64) -> Result<Seal, SealError> {
        Seal::open_shared(self.store(), &self.key_file(), now).await
    }

    pub(crate) async fn replica(&self, now: u64) -> Seal {
        self.try_replica(now).await.unwrap()
    }

    pub(crate) async fn entry(&self) -> Option<Entry> {
        self.store().get(EntryKind::SealKey, "keys").await.unwrap()
    }

    pub(crate) async fn document(&self) -> Value {
        serde_json::from_str(&self.entry().await.unwrap().value).unwrap()
    }

    pub(crate) async fn put(&self, value: String) {
        let id = "keys".to_owned();
        self.store().put(EntryKind::SealKey, Entry { id, value }).await.unwrap();
    }
}

pub(crate) fn sealed(seal: &Seal) -> String {
    seal.seal(Sealed::Ticket, b"content").unwrap()
}

pub(crate) fn opens(seal: &Seal, text: &str) -> bool {
    seal.unseal(Sealed::Ticket, text).is_ok()
}

fn key_of(text: &str) -> &str {
    text.split_once('.').unwrap().0
}

#[tokio::test]
async fn what_one_replica_has_sealed_the_others_open_also_after_a_restart() {
    let site = Site::new();
    let (one, other) = (site.replica(NOW).await, site.replica(NOW + 5).await);
    assert!(opens(&other, &sealed(&one)) && opens(&one, &sealed(&other)));
    assert_eq!(other.unseal(Sealed::Challenge, &sealed(&one)), Err(NotSealed));
    let text = sealed(&one);
    drop((one, other));
    assert!(opens(&site.replica(NOW + DAY).await, &text));
    let shown = format!("{:?}", site.replica(NOW).await);
    assert_eq!(shown, "Seal(<secret>)");
    assert!(!site.entry().await.unwrap().value.contains("content"));
}

#[tokio::test]
async fn a_new_key_seals_when_every_replica_has_had_time_to_read_it() {
    let site = Site::new();
    let (one, other) = (site.replica(NOW).await, site.replica(NOW).await);
    let old = sealed(&one);
    let due = NOW + 30 * DAY - HOUR;
    assert!(one.tend(due, KEEP).await.unwrap());
    assert!(!other.tend(due, KEEP).await.unwrap(), "it is made already");
    assert_eq!((key_of(&sealed(&one)), key_of(&sealed(&other))), (key_of(&old), key_of(&old)));
    // This one sees the hour pass first.
    one.tend(due + HOUR, KEEP).await.unwrap();
    let new = sealed(&one);
    assert_ne!(key_of(&new), key_of(&old));
    assert!(opens(&other, &new) && opens(&one, &old) && opens(&other, &old));
    // Nothing that the old one has sealed is good any longer: it is gone, from the store, too.
    assert!(!one.tend(due + HOUR + 10 * DAY + 1, KEEP).await.unwrap());
    assert!(!opens(&one, &old) && opens(&one, &new));
    other.tend(due + HOUR + 10 * DAY + 1, KEEP).await.unwrap();
    assert!(!opens(&other, &old) && opens(&other, &new));
    assert_eq!(site.document().await["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_rotate_at_once_agree() {
    const ROUNDS: u64 = 1000;
    let site = Site::new();
    let (one, other) = (Arc::new(site.replica(NOW).await), Arc::new(site.replica(NOW).await));
    for round in 1..=ROUNDS {
        let now = NOW + round * 30 * DAY;
        let tend = |seal: &Arc<Seal>| {
            let seal = Arc::clone(seal);
            tokio::spawn(async move { seal.tend(now, KEEP).await.unwrap() })
        };
        let (first, second) = (tend(&one), tend(&other));
        let made = [first.await.unwrap(), second.await.unwrap()];
        assert_eq!(
            made.iter().filter(|made| **made).count(),
            1,
            "round {round}: one of them makes a key"
        );
        // The winner's key, an hour later.
        for seal in [&one, &other] {
            seal.tend(now + HOUR, KEEP).await.unwrap();
        }
        let (text, others) = (sealed(&one), sealed(&other));
        assert_eq!(key_of(&text), key_of(&others), "round {round}");
        assert!(opens(&other, &text) && opens(&one, &others), "round {round}");
    }
    assert!(site.document().await["keys"].as_array().unwrap().len() <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_begin_at_once_have_one_key() {
    for round in 0..50 {
        let site = Arc::new(Site::new());
        // Who makes the file is not what this is about.
        drop(site.store());
        let begin = || {
            let site = Arc::clone(&site);
            tokio::spawn(async move { site.replica(NOW).await })
        };
        let (one, other) = (begin(), begin());
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        assert!(opens(&one, &sealed(&other)) && opens(&other, &sealed(&one)), "round {round}");
    }
}

/// How often the keys were read, and whether they can be.
#[derive(Debug, Default)]
struct Reads {
    count: AtomicUsize,
    fail: AtomicBool,
    /// Who comes next waits for word of it.
    held: Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>,
}

#[async_trait]
impl Beside for Arc<Reads> {
    async fn reads(&self, kind: EntryKind) {
        if kind != EntryKind::SealKey {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let held = self.held.lock().unwrap().take();
        if let Some((begun, go_on)) = held {
            begun.send(()).unwrap();
            go_on.await.unwrap();
        }
    }

    fn can_read(&self, _: EntryKind) -> bool {
        !self.fail.load(Ordering::Relaxed)
    }
}

async fn watched(site: &Site) -> (Arc<Seal>, Arc<Reads>) {
    let reads = Arc::new(Reads::default());
    let store = StandIn::new(Embedded::clone(&site.store()), Arc::clone(&reads));
    let seal = Seal::open_shared(Arc::new(store), &site.key_file(), NOW).await.unwrap();
    (Arc::new(seal), reads)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_not_known_is_looked_for_at_most_once_a_second() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let other = site.replica(NOW).await;
    // The other one has a new key, and this one has not looked since.
    other.tend(NOW + 30 * DAY, KEEP).await.unwrap();
    other.tend(NOW + 31 * DAY, KEEP).await.unwrap();
    let text = sealed(&other);
    assert!(!opens(&seal, &text));
    let before = reads.count.load(Ordering::Relaxed);
    seal.look_for_key_of(&text).await.unwrap();
    assert!(opens(&seal, &text));
    assert_eq!(reads.count.load(Ordering::Relaxed) - before, 1);
    // What is known is not looked for, and what cannot be a key's is not, either.
    for known in [
        text.as_str(),
        &sealed(&seal),
        "",
        "x.y",
        "ticket.x",
        "0123456789abcdeg.x",
        "0123456789abcdef0.x",
    ] {
        seal.look_for_key_of(known).await.unwrap();
    }
    assert_eq!(reads.count.load(Ordering::Relaxed) - before, 1);
    // Strangers, all at once.
    let began = Instant::now();
    let strangers: Vec<_> = (0..2000)
        .map(|number| {
            let seal = Arc::clone(&seal);
            tokio::spawn(async move { seal.look_for_key_of(&format!("{number:016x}.AAAA")).await })
        })
        .collect();
    for stranger in strangers {
        stranger.await.unwrap().unwrap();
    }
    let (reads, seconds) = (reads.count.load(Ordering::Relaxed) - before - 1, began.elapsed().as_secs());
    assert!(u64::try_from(reads).unwrap() <= seconds + 1, "{reads} reads in {seconds} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_who_asks_for_keys_that_are_none_has_nobody_wait_for_a_slow_store_in_turn() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let ((begun, has_begun), (go_on, goes_on)) = (oneshot::channel(), oneshot::channel());
    *reads.held.lock().unwrap() = Some((begun, goes_on));
    let before = reads.count.load(Ordering::Relaxed);
    let strangers = (0..20).map(|number| {
        let seal = Arc::clone(&seal);
        tokio::spawn(async move { seal.look_for_key_of(&format!("{number:016x}.AAAA")).await })
    });
    let strangers: Vec<_> = strangers.collect();
    has_begun.await.unwrap();
    // The store takes longer for it than what was read is good.
    let began = Instant::now();
    while began.elapsed() <= GOOD {
        tokio::task::yield_now().await;
    }
    go_on.send(()).unwrap();
    for stranger in strangers {
        stranger.await.unwrap().unwrap();
    }
    // Who came while the first one was read for is told by that.
    assert_eq!(reads.count.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_read_the_store_keeps_its_keys_until_their_ends_and_says_of_others_nothing() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let text = sealed(&seal);
    reads.fail.store(true, Ordering::Relaxed);
    assert!(matches!(seal.tend(NOW + 60 * DAY, KEEP).await, Err(SealError::Store(_))));
    assert!(opens(&seal, &text));
    // Whether there is such a key is not known: neither at once nor for whoever comes within the second.
    for _ in 0..2 {
        seal.look_for_key_of("0123456789abcdef.AAAA").await.unwrap_err();
    }
    assert!(seal.tend(NOW + 70 * DAY + 1, KEEP).await.is_err());
    assert!(!opens(&seal, &text));
    assert!(matches!(seal.seal(Sealed::Ticket, b"x"), Err(SealError::NoneSeals)));
    let store = StandIn::new(Embedded::clone(&site.store()), reads);
    assert!(matches!(
        Seal::open_shared(Arc::new(store), &site.key_file(), NOW).await,
        Err(SealError::Store(_))
    ));
}

#[tokio::test]
async fn what_was_altered_in_the_store_is_refused_and_stays_as_it_is() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    seal.tend(NOW + 30 * DAY - HOUR, KEEP).await.unwrap();
    let text = sealed(&seal);
    let good = site.document().await;
    let check = async |what: &str, alter: &dyn Fn(&mut Value)| {
        let mut altered = good.clone();
        alter(&mut altered);
        assert_ne!(altered, good, "{what}");
        let altered = altered.to_string();
        site.put(altered.clone()).await;
        assert!(site.try_replica(NOW).await.is_err(), "{what}");
        assert!(seal.tend(NOW + 40 * DAY, KEEP).await.is_err(), "{what}");
        assert!(opens(&seal, &text), "{what}: what is known goes on");
        assert_eq!(site.entry().await.unwrap().value, altered, "{what}: nothing is overwritten");
    };
    for key in 0..2 {
        for date in ["made", "seals_from", "ends"] {
            check(date, &|document| document["keys"][key][date] = (NOW + 7).into()).await;
            check(date, &|document| {
                document["keys"][key].as_object_mut().unwrap().remove(date);
            })
            .await;
        }
        for id in ["0123456789abcdef", "", "x\n1"] {
            check("id", &|document| document["keys"][key]["id"] = id.into()).await;
        }
        let ciphertext = good["keys"][key]["ciphertext"].as_str().unwrap().to_owned();
        for place in 0..ciphertext.len() - 1 {
            let other = if ciphertext.as_bytes()[place] == b'A' { 'B' } else { 'A' };
            let mut altered = ciphertext.clone();
            altered.replace_range(place..=place, &other.to_string());
            if place % 7 == 0 {
                check("ciphertext", &|document| {
                    document["keys"][key]["ciphertext"] = altered.as_str().into()
                })
                .await;
            }
        }
        check("no ciphertext", &|document| document["keys"][key]["ciphertext"] = "".into()).await;
        check("a member", &|document| document["keys"][key]["x"] = 1.into()).await;
    }
    check("one key's for the other's", &|document| {
        document["keys"][0]["ciphertext"] = good["keys"][1]["ciphertext"].clone();
    })
    .await;
    check("taken out", &|document| {
        document["keys"].as_array_mut().unwrap().remove(0);
    })
    .await;
    check("put in twice", &|document| {
        let keys = document["keys"].as_array_mut().unwrap();
        keys.push(keys[0].clone());
    })
    .await;
    check("another order", &|document| document["keys"].as_array_mut().unwrap().reverse()).await;
    for changes in [Value::Null, 0.into(), 9.into()] {
        check("changes", &|document| document["changes"] = changes.clone()).await;
    }
    for set in ["", "AAAA", good["keys"][0]["ciphertext"].as_str().unwrap()] {
        check("set", &|document| document["set"] = set.into()).await;
    }
    check("no set", &|document| drop(document.as_object_mut().unwrap().remove("set"))).await;
    for version in [0, 1, 3] {
        check("version", &|document| document["v"] = version.into()).await;
    }
    check("as an earlier release writes it", &|document| {
        *document = uncounted(document.clone())
    })
    .await;
    check("a member", &|document| document["x"] = 1.into()).await;
    check("key file", &|document| document["key_file"] = "0123456789abcdef".into()).await;
    check("no JSON", &|document| *document = "x".into()).await;
    // The way out: whatever was sealed is worthless then.
    Seal::replace_shared(&*site.store(), &site.key_file(), NOW, false).await.unwrap();
    let new = site.replica(NOW).await;
    assert!(!opens(&new, &text) && opens(&new, &sealed(&new)));
}

/// As earlier releases write it: nobody counts, and each key is authenticated by itself.
fn uncounted(mut document: Value) -> Value {
    let members = document.as_object_mut().unwrap();
    members.insert("v".to_owned(), 1.into());
    assert!(members.remove("changes").is_some() && members.remove("set").is_some());
    document
}

#[tokio::test]
async fn an_old_set_that_is_put_back_is_noticed_also_after_a_restart() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let (before, text) = (site.entry().await.unwrap().value, sealed(&seal));
    Seal::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let rotated = site.document().await;
    seal.tend(NOW + 1, KEEP).await.unwrap();
    // One of the old set in the new one.
    let mut spliced = rotated.clone();
    spliced["keys"].as_array_mut().unwrap().remove(1);
    site.put(spliced.to_string()).await;
    assert!(matches!(seal.tend(NOW + 2, KEEP).await, Err(SealError::OtherSet)));
    // The old set as a whole, also as an earlier release has it.
    let older = uncounted(serde_json::from_str(&before).unwrap()).to_string();
    for (put_back, number) in [(&before, 1), (&older, 0)] {
        site.put(put_back.clone()).await;
        for refused in [
            seal.tend(NOW + 2, KEEP).await.map(drop),
            site.try_replica(NOW).await.map(drop),
            Seal::rotate_shared(&*site.store(), &site.key_file(), NOW).await,
        ] {
            assert!(
                matches!(refused, Err(SealError::SetBack { found, known: 2, .. }) if found == number),
                "{refused:?}"
            );
        }
        assert!(
            opens(&seal, &text) && site.entry().await.unwrap().value == *put_back,
            "nothing is overwritten"
        );
    }
    seal.look_for_key_of("0123456789abcdef.AAAA").await.unwrap_err();
    // What is begun anew is newer than all, for who has read the old ones as well.
    Seal::replace_shared(&*site.store(), &site.key_file(), NOW, false).await.unwrap();
    seal.tend(NOW + 3, KEEP).await.unwrap();
    assert!(!opens(&seal, &text));
    site.replica(NOW + 3).await;
}

#[tokio::test]
async fn what_is_kept_of_the_keys_is_not_altered_and_not_of_another_store() {
    let site = Site::new();
    drop(site.replica(NOW).await);
    let kept = site.folder.path().join("seal.set");
    let good = fs::read_to_string(&kept).unwrap();
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let document: Value = serde_json::from_str(&good).unwrap();
    for (member, value) in [
        ("v", Value::from(2)),
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
    fs::write(&kept, "").unwrap();
    assert!(matches!(site.try_replica(NOW).await, Err(SealError::NotKept(_))));
    // With the key file it is replaced, too.
    fs::write(&kept, &good).unwrap();
    let (old, new) = Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let said = fs::read_to_string(&kept).unwrap();
    assert!(said.contains(&new) && !said.contains(&old), "{said}");
    // Of another store it says nothing.
    let other = Site::new();
    fs::copy(site.key_file(), other.key_file()).unwrap();
    fs::write(other.folder.path().join("seal.set"), said).unwrap();
    drop(other.replica(NOW).await);
}

#[tokio::test]
async fn keys_of_an_earlier_release_are_taken_as_they_are_until_they_change() {
    let site = Site::new();
    let text = sealed(&site.replica(NOW).await);
    let older = uncounted(site.document().await).to_string();
    fs::remove_file(site.folder.path().join("seal.set")).unwrap();
    site.put(older.clone()).await;
    // An older gateway may be beside this one: it reads no other.
    let seal = site.replica(NOW).await;
    assert!(!seal.tend(NOW + 1, KEEP).await.unwrap());
    assert!(opens(&seal, &text) && site.entry().await.unwrap().value == older);
    Seal::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let document = site.document().await;
    assert_eq!((&document["v"], &document["changes"]), (&2.into(), &1.into()));
    // From now on no other is taken here, whoever puts it there.
    seal.tend(NOW + 2, KEEP).await.unwrap();
    site.put(older).await;
    assert!(matches!(
        seal.tend(NOW + 3, KEEP).await,
        Err(SealError::SetBack { found: 0, known: 1, .. })
    ));
    assert!(matches!(site.try_replica(NOW).await, Err(SealError::SetBack { .. })));
}

#[tokio::test]
async fn keys_are_worth_nothing_in_another_store() {
    let (site, other) = (Site::new(), Site::new());
    let text = sealed(&site.replica(NOW).await);
    fs::copy(site.key_file(), other.key_file()).unwrap();
    drop(other.store());
    other.put(site.entry().await.unwrap().value).await;
    let elsewhere = other.replica(NOW).await;
    assert!(!opens(&elsewhere, &text), "what was spent there is not known here");
    assert!(opens(&other.replica(NOW).await, &sealed(&elsewhere)));
}

#[tokio::test]
async fn another_key_file_is_named_and_nothing_is_overwritten() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    let (text, before) = (sealed(&seal), site.entry().await);
    let mine = fs::read(site.key_file()).unwrap();
    fs::remove_file(site.key_file()).unwrap();
    let other = Seal::make_key_file(&site.key_file()).unwrap();
    for error in [
        site.try_replica(NOW).await.unwrap_err(),
        seal.tend(NOW + 40 * DAY, KEEP).await.unwrap_err(),
        Seal::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap_err(),
        Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap_err(),
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
async fn a_key_file_is_its_owners_and_holds_a_key() {
    let site = Site::new();
    let file = site.key_file();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Seal::make_key_file(&file), Err(SealError::Io { .. })), "it is there");
    let good = fs::read_to_string(&file).unwrap();
    let key = good.lines().nth(1).unwrap();
    assert_eq!(key.len(), 64);
    for bad in [
        String::new(),
        key.to_owned(),
        format!("attestation-gateway store key 2\n{key}\n"),
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
    let other = Seal::open_shared(site.store(), &elsewhere, NOW).await.unwrap();
    let text = sealed(&one);
    let (old, new) = Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let document = site.document().await;
    assert_eq!(document["key_file"], new.as_str());
    assert_ne!(old, new);
    // Who has the new file goes on at once; who has not goes on with what it has, until the file is there.
    assert!(!one.tend(NOW + 1, KEEP).await.unwrap());
    let said = other.tend(NOW + 1, KEEP).await.unwrap_err().to_string();
    assert!(
        said.contains("other-host.key") && said.contains(&old) && said.contains(&new),
        "{said}"
    );
    assert!(opens(&other, &text) && opens(&one, &sealed(&other)));
    fs::copy(site.key_file(), &elsewhere).unwrap();
    assert!(!other.tend(NOW + 2, KEEP).await.unwrap());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap().lines().count(), 2, "the head, and one key");
}

#[tokio::test]
async fn replacing_a_key_file_can_be_broken_off_at_each_step() {
    let site = Site::new();
    let text = sealed(&site.replica(NOW).await);
    // The new key is in the file, and the store is not encrypted by it yet.
    let key = |file: String| file.lines().nth(1).unwrap().to_owned();
    let read = || fs::read_to_string(site.key_file()).unwrap();
    let (old, begun) = (key(read()), key(fs::read_to_string(Site::new().key_file()).unwrap()));
    fs::write(site.key_file(), format!("attestation-gateway store key 1\n{begun}\n{old}\n")).unwrap();
    assert!(opens(&site.replica(NOW).await, &text));
    let before = site.document().await["key_file"].clone();
    site.replica(NOW).await.tend(NOW + 30 * DAY, KEEP).await.unwrap();
    assert_eq!(site.document().await["key_file"], before, "others have the old one only");
    Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    assert_ne!(site.document().await["key_file"], before);
    let new = key(read());
    assert!(new != old && new != begun, "whoever has read the file has read both");
    // The store is encrypted by it, and the old one is in the file still.
    fs::write(site.key_file(), format!("attestation-gateway store key 1\n{new}\n{old}\n")).unwrap();
    assert!(opens(&site.replica(NOW).await, &text));
    Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    let newest = key(read());
    assert!(newest != new && newest != old && read().lines().count() == 2);
    assert!(opens(&site.replica(NOW).await, &text));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_replace_a_key_file_at_once_none_loses_the_key() {
    let site = Arc::new(Site::new());
    let text = sealed(&site.replica(NOW).await);
    let replacing: Vec<_> = (0..8)
        .map(|_| {
            let site = Arc::clone(&site);
            tokio::spawn(async move { Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap() })
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
async fn a_key_file_that_is_put_in_the_place_of_one_that_is_being_replaced_is_noticed() {
    let site = Arc::new(Site::new());
    drop(site.replica(NOW).await);
    let (file, before) = (site.key_file(), fs::read(site.key_file()).unwrap());
    // While the keys are encrypted anew, somebody copies the old file over the new one.
    let step = move |_| {
        let (file, before) = (file.clone(), before.clone());
        async move { fs::write(file, before).unwrap() }
    };
    let store: Arc<dyn Store> = site.store();
    let store = meanwhile(&store, 1, step);
    let refused = Seal::replace_key_file(&store, &site.key_file(), NOW).await;
    assert!(matches!(refused, Err(SealError::KeyFileReplaced(_))), "{refused:?}");
}

#[tokio::test]
async fn an_older_key_file_drops_nothing_unless_the_newer_one_is_lost() {
    let site = Site::new();
    let text = sealed(&site.replica(NOW).await);
    let old = fs::read(site.key_file()).unwrap();
    let (_, new) = Seal::replace_key_file(&*site.store(), &site.key_file(), NOW).await.unwrap();
    fs::write(site.key_file(), old).unwrap();
    let before = site.entry().await;
    let refused = Seal::replace_shared(&*site.store(), &site.key_file(), NOW, false).await;
    assert!(
        matches!(&refused, Err(SealError::OtherStoreKey { wanted, .. }) if *wanted == new),
        "{refused:?}"
    );
    assert_eq!(site.entry().await, before);
    Seal::replace_shared(&*site.store(), &site.key_file(), NOW, true).await.unwrap();
    let seal = site.replica(NOW).await;
    assert!(!opens(&seal, &text) && opens(&seal, &sealed(&seal)));
}
