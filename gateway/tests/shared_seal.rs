//! Keys of the seal in a store that replicas share: each handle here represents a replica.

mod key_file;
mod set_back;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::stand_in::{Beside, StandIn};
use async_trait::async_trait;
use attest_gateway::credentials::seal::{NotSealed, SealError, SealKeyRing, Sealed};
use attest_store::{Embedded, EntryKind, Store, StoreEntry};
use serde_json::Value;
use tokio::sync::oneshot;

pub(crate) const DAY: u64 = 24 * 3600;
pub(crate) const HOUR: u64 = 3600;
pub(crate) const NOW: u64 = 20_000 * DAY;
/// Retention of old keys, which does not apply to keys in a store.
pub(crate) const KEEP: Duration = Duration::ZERO;
/// Validity of keys that were read from the store.
const GOOD: Duration = Duration::from_secs(1);

pub(crate) struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        let site = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        SealKeyRing::make_key_file(&site.key_file()).unwrap();
        site
    }

    fn key_file(&self) -> PathBuf {
        self.folder.path().join("store.key")
    }

    fn store(&self) -> Arc<Embedded> {
        Arc::new(Embedded::open(&self.folder.path().join("gateway.db")).unwrap())
    }

    pub(crate) async fn try_replica(&self, now: u64) -> Result<SealKeyRing, SealError> {
        SealKeyRing::open_shared(self.store(), &self.key_file(), now).await
    }

    pub(crate) async fn replica(&self, now: u64) -> SealKeyRing {
        self.try_replica(now).await.unwrap()
    }

    pub(crate) async fn entry(&self) -> Option<StoreEntry> {
        self.store().get(EntryKind::SealKey, "keys").await.unwrap()
    }

    pub(crate) async fn document(&self) -> Value {
        serde_json::from_str(&self.entry().await.unwrap().value).unwrap()
    }

    pub(crate) async fn put(&self, value: String) {
        let id = "keys".to_owned();
        self.store().put(EntryKind::SealKey, StoreEntry { id, value }).await.unwrap();
    }
}

pub(crate) fn sealed(seal: &SealKeyRing) -> String {
    seal.seal(Sealed::Ticket, b"content").unwrap()
}

pub(crate) fn opens(seal: &SealKeyRing, text: &str) -> bool {
    seal.unseal(Sealed::Ticket, text).is_ok()
}

fn key_of(text: &str) -> &str {
    text.split_once('.').unwrap().0
}

#[tokio::test]
async fn replicas_unseal_each_others_tickets_after_restarts() {
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
async fn a_new_seal_key_is_used_after_propagation() {
    let site = Site::new();
    let (one, other) = (site.replica(NOW).await, site.replica(NOW).await);
    let old = sealed(&one);
    let due = NOW + 30 * DAY - HOUR;
    assert!(one.maintain(due, KEEP).await.unwrap());
    assert!(!other.maintain(due, KEEP).await.unwrap(), "it is made already");
    assert_eq!((key_of(&sealed(&one)), key_of(&sealed(&other))), (key_of(&old), key_of(&old)));
    // This one sees the hour pass first.
    one.maintain(due + HOUR, KEEP).await.unwrap();
    let new = sealed(&one);
    assert_ne!(key_of(&new), key_of(&old));
    assert!(opens(&other, &new) && opens(&one, &old) && opens(&other, &old));
    // Nothing that the old one has sealed is good any longer: it is gone, from the store, too.
    assert!(!one.maintain(due + HOUR + 10 * DAY + 1, KEEP).await.unwrap());
    assert!(!opens(&one, &old) && opens(&one, &new));
    other.maintain(due + HOUR + 10 * DAY + 1, KEEP).await.unwrap();
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
        let tend = |seal: &Arc<SealKeyRing>| {
            let seal = Arc::clone(seal);
            tokio::spawn(async move { seal.maintain(now, KEEP).await.unwrap() })
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
            seal.maintain(now + HOUR, KEEP).await.unwrap();
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

/// Counts reads of the keys, and can make them fail.
#[derive(Debug, Default)]
struct Reads {
    count: AtomicUsize,
    fail: AtomicBool,
    /// Makes the next read wait until the test continues it.
    held: Mutex<Option<Hold>>,
    /// Like `held`, but after the read.
    held_after: Mutex<Option<Hold>>,
}

type Hold = (oneshot::Sender<()>, oneshot::Receiver<()>);

async fn hold(held: &Mutex<Option<Hold>>) {
    let held = held.lock().unwrap().take();
    if let Some((begun, go_on)) = held {
        begun.send(()).unwrap();
        go_on.await.unwrap();
    }
}

#[async_trait]
impl Beside for Arc<Reads> {
    async fn reads(&self, kind: EntryKind) {
        if kind != EntryKind::SealKey {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        hold(&self.held).await;
    }

    async fn has_read(&self, kind: EntryKind) {
        if kind == EntryKind::SealKey {
            hold(&self.held_after).await;
        }
    }

    fn can_read(&self, _: EntryKind) -> bool {
        !self.fail.load(Ordering::Relaxed)
    }
}

async fn watched(site: &Site) -> (Arc<SealKeyRing>, Arc<Reads>) {
    let reads = Arc::new(Reads::default());
    let store = StandIn::new(Embedded::clone(&site.store()), Arc::clone(&reads));
    let seal = SealKeyRing::open_shared(Arc::new(store), &site.key_file(), NOW).await.unwrap();
    (Arc::new(seal), reads)
}

#[tokio::test(flavor = "multi_thread")]
async fn looks_up_unknown_seal_keys_once_per_second() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let other = site.replica(NOW).await;
    // The other one has a new key, and this one has not looked since.
    other.maintain(NOW + 30 * DAY, KEEP).await.unwrap();
    other.maintain(NOW + 31 * DAY, KEEP).await.unwrap();
    let text = sealed(&other);
    assert!(!opens(&seal, &text));
    let before = reads.count.load(Ordering::Relaxed);
    seal.refresh_for(&text).await.unwrap();
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
        seal.refresh_for(known).await.unwrap();
    }
    assert_eq!(reads.count.load(Ordering::Relaxed) - before, 1);
    // Strangers, all at once.
    let began = Instant::now();
    let strangers: Vec<_> = (0..2000)
        .map(|number| {
            let seal = Arc::clone(&seal);
            tokio::spawn(async move { seal.refresh_for(&format!("{number:016x}.AAAA")).await })
        })
        .collect();
    for stranger in strangers {
        stranger.await.unwrap().unwrap();
    }
    let (reads, seconds) = (reads.count.load(Ordering::Relaxed) - before - 1, began.elapsed().as_secs());
    assert!(u64::try_from(reads).unwrap() <= seconds + 1, "{reads} reads in {seconds} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_lookups_of_unknown_keys_share_one_read() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let ((begun, has_begun), (go_on, goes_on)) = (oneshot::channel(), oneshot::channel());
    *reads.held.lock().unwrap() = Some((begun, goes_on));
    let before = reads.count.load(Ordering::Relaxed);
    let strangers = (0..20).map(|number| {
        let seal = Arc::clone(&seal);
        tokio::spawn(async move { seal.refresh_for(&format!("{number:016x}.AAAA")).await })
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
async fn keeps_seal_keys_until_expiry_without_the_store() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let text = sealed(&seal);
    reads.fail.store(true, Ordering::Relaxed);
    assert!(matches!(seal.maintain(NOW + 60 * DAY, KEEP).await, Err(SealError::Store(_))));
    assert!(opens(&seal, &text));
    // Whether there is such a key is not known: neither at once nor for whoever comes within the second.
    for _ in 0..2 {
        seal.refresh_for("0123456789abcdef.AAAA").await.unwrap_err();
    }
    assert!(seal.maintain(NOW + 70 * DAY + 1, KEEP).await.is_err());
    assert!(!opens(&seal, &text));
    assert!(matches!(seal.seal(Sealed::Ticket, b"x"), Err(SealError::NoneSeals)));
    let store = StandIn::new(Embedded::clone(&site.store()), reads);
    assert!(matches!(
        SealKeyRing::open_shared(Arc::new(store), &site.key_file(), NOW).await,
        Err(SealError::Store(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_seal_key_activates_without_the_store() {
    let site = Site::new();
    let (seal, reads) = watched(&site).await;
    let before = sealed(&seal);
    SealKeyRing::rotate_shared(&*site.store(), &site.key_file(), NOW).await.unwrap();
    seal.maintain(NOW + 1, KEEP).await.unwrap();
    assert_eq!(key_of(&sealed(&seal)), key_of(&before));
    reads.fail.store(true, Ordering::Relaxed);
    seal.maintain(NOW + HOUR, KEEP).await.unwrap_err();
    assert_ne!(key_of(&sealed(&seal)), key_of(&before));
    assert!(opens(&seal, &before));
}

#[tokio::test]
async fn refuses_altered_seal_keys_and_overwrites_nothing() {
    let site = Site::new();
    let seal = site.replica(NOW).await;
    seal.maintain(NOW + 30 * DAY - HOUR, KEEP).await.unwrap();
    let text = sealed(&seal);
    let good = site.document().await;
    let check = async |what: &str, alter: &dyn Fn(&mut Value)| {
        let mut altered = good.clone();
        alter(&mut altered);
        assert_ne!(altered, good, "{what}");
        let altered = altered.to_string();
        site.put(altered.clone()).await;
        assert!(site.try_replica(NOW).await.is_err(), "{what}");
        assert!(seal.maintain(NOW + 40 * DAY, KEEP).await.is_err(), "{what}");
        assert!(opens(&seal, &text), "{what}: what is known goes on");
        assert_eq!(site.entry().await.unwrap().value, altered, "{what}: nothing is overwritten");
    };
    for key in 0..2 {
        check("since", &|document| document["keys"][key]["sealing_since"] = (NOW + 7).into()).await;
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
    check("no number", &|document| drop(document.as_object_mut().unwrap().remove("changes"))).await;
    check("a member", &|document| document["x"] = 1.into()).await;
    check("key file", &|document| document["key_file"] = "0123456789abcdef".into()).await;
    check("no JSON", &|document| *document = "x".into()).await;
    // The way out: whatever was sealed is worthless then.
    SealKeyRing::replace_shared(&*site.store(), &site.key_file(), NOW, false)
        .await
        .unwrap();
    let new = site.replica(NOW).await;
    assert!(!opens(&new, &text) && opens(&new, &sealed(&new)));
}

#[tokio::test]
async fn seal_keys_are_invalid_in_another_store() {
    let (site, other) = (Site::new(), Site::new());
    let text = sealed(&site.replica(NOW).await);
    fs::copy(site.key_file(), other.key_file()).unwrap();
    drop(other.store());
    other.put(site.entry().await.unwrap().value).await;
    let elsewhere = other.replica(NOW).await;
    assert!(!opens(&elsewhere, &text), "what was spent there is not known here");
    assert!(opens(&other.replica(NOW).await, &sealed(&elsewhere)));
}

#[test]
fn waiting_for_the_seal_lock_blocks_no_task() {
    let folder = tempfile::tempdir().unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let seal = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
            let lock = fs::File::open(folder.path()).unwrap();
            lock.lock().unwrap();
            let others = async { drop(lock) };
            tokio::join!(seal.maintain(NOW, KEEP), others).0.unwrap();
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
}
