//! Guesses of values: a work runs on them first, and its commit compares their revisions.
//!
//! A right guess saves the round trip of a fetch. After a wrong one the commit returns the current values, as a fetch does. So a guess
//! decides how many requests a work takes, and never its answer.
//!
//! A revision identifies a value only within one history of etcd. The guard of each request notices a rollback, unless others have written
//! as much since. Old guesses are dropped, so that none outlasts both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::super::engine::KeyRange;
use super::super::keys::SERVING;
use super::keys::LEADER;
use super::overlay::{EtcdBatch, Fetched, ReadValue};

/// Values that were used recently; as many older ones are remembered.
const MOST_GUESSES: usize = 1024;
/// Bytes of the largest value that is remembered.
const LARGEST_GUESS: usize = 8 * 1024;
/// Time after which a guess that was not used becomes an older one, and after which an older one is dropped.
const GENERATION: Duration = Duration::from_secs(60);

/// Recently read and created values, in two generations. Beyond [`MOST_GUESSES`], and every [`GENERATION`], the older one is dropped.
/// `None` is a key to be fetched.
#[derive(Debug)]
pub(super) struct GuessedValues {
    recent: BTreeMap<String, Option<ReadValue>>,
    older: BTreeMap<String, Option<ReadValue>>,
    since: Instant,
}

impl GuessedValues {
    pub(super) fn new() -> Self {
        Self {
            recent: BTreeMap::new(),
            older: BTreeMap::new(),
            since: Instant::now(),
        }
    }

    /// Returns the values that these keys probably have: none under a key that is not known. `None` if one has to be fetched.
    pub(super) fn of(&mut self, keys: &BTreeSet<String>) -> Option<Fetched> {
        self.expire();
        keys.iter().map(|key| Some((key.clone(), self.guess(key)?))).collect()
    }

    /// Remembers values that etcd has answered.
    pub(super) fn remember(&mut self, found: &Fetched) {
        self.expire();
        for (key, found) in found {
            self.forget(key);
            if let Some(value) = &found.value {
                self.insert(key, (value.len() <= LARGEST_GUESS).then(|| found.clone()));
            }
        }
    }

    /// Remembers the values that a commit has created, at its revision if that is known. Changed values are fetched again: a replica that
    /// has changed one asks for it before its next change, so that another comes first.
    pub(super) fn committed(&mut self, batch: &EtcdBatch, before: &Fetched, revision: Option<i64>) {
        let absent = |key: &String| before.get(key).is_some_and(|before| before.mod_revision == 0);
        for (key, value) in &batch.writes {
            self.forget(key);
            match (value, revision) {
                (None, _) => {}
                (Some(created), Some(mod_revision)) if absent(key) && created.len() <= LARGEST_GUESS => {
                    let value = value.clone();
                    self.insert(key, Some(ReadValue { value, mod_revision }));
                }
                (Some(_), _) => self.insert(key, None),
            }
        }
        for KeyRange { from, until } in &batch.removed {
            let outside = |key: &String, _: &mut Option<ReadValue>| key < from || key >= until;
            self.recent.retain(outside);
            self.older.retain(outside);
        }
    }

    fn guess(&mut self, key: &str) -> Option<ReadValue> {
        // A work may keep what it finds there: the fence of a leader does.
        if key.starts_with(LEADER) || key.starts_with(SERVING) {
            return None;
        }
        if let Some(found) = self.recent.get(key) {
            return found.clone();
        }
        let Some(found) = self.older.remove(key) else {
            return Some(ReadValue {
                value: None,
                mod_revision: 0,
            });
        };
        self.insert(key, found.clone());
        found
    }

    fn expire(&mut self) {
        let age = self.since.elapsed();
        if age >= GENERATION {
            self.begin_generation();
        }
        if age >= 2 * GENERATION {
            self.older.clear();
        }
    }

    fn begin_generation(&mut self) {
        (self.older, self.since) = (std::mem::take(&mut self.recent), Instant::now());
    }

    fn insert(&mut self, key: &str, guess: Option<ReadValue>) {
        if self.recent.len() >= MOST_GUESSES {
            self.begin_generation();
        }
        self.recent.insert(key.to_owned(), guess);
    }

    fn forget(&mut self, key: &str) {
        self.recent.remove(key);
        self.older.remove(key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::{Read, Write};
    use std::net::TcpStream;

    use cloud_fixtures::etcd::EtcdServer;

    use super::super::Etcd;
    use super::*;
    use crate::settings::EtcdSettings;
    use crate::tests::{entry, thing};
    use crate::{DecisionRecord, EntryKind, Spend, Spendable, Store, StoreError, Transact, UseOccasion, engine};

    fn seen(value: &str, mod_revision: i64) -> ReadValue {
        ReadValue {
            value: Some(value.to_owned()),
            mod_revision,
        }
    }

    fn fetched<const N: usize>(found: [(&str, ReadValue); N]) -> Fetched {
        found.map(|(key, value)| (key.to_owned(), value)).into()
    }

    fn guess(guesses: &mut GuessedValues, key: &str) -> Option<i64> {
        let found = guesses.of(&BTreeSet::from([key.to_owned()]))?;
        found.get(key).map(|found| found.mod_revision)
    }

    fn put(key: &str) -> EtcdBatch {
        let mut batch = EtcdBatch::default();
        batch.writes.insert(key.to_owned(), Some("2".to_owned()));
        batch
    }

    #[test]
    fn fetches_the_keys_of_leaders_and_replicas() {
        let mut guesses = GuessedValues::new();
        let (leader, serving) = (format!("{LEADER}log"), format!("{SERVING}one"));
        assert_eq!((guess(&mut guesses, &leader), guess(&mut guesses, &serving)), (None, None));
        assert_eq!(guess(&mut guesses, "entry/one"), Some(0));
        assert_eq!(guesses.of(&BTreeSet::from(["entry/one".to_owned(), leader])), None);
    }

    #[test]
    fn fetches_what_it_has_changed_and_guesses_what_it_has_created() {
        let mut guesses = GuessedValues::new();
        let before = fetched([("a", seen("1", 5)), ("b", seen("1", 6))]);
        guesses.remember(&before);
        assert_eq!((guess(&mut guesses, "a"), guess(&mut guesses, "b")), (Some(5), Some(6)));
        let mut batch = put("a");
        batch.removed.push(KeyRange {
            from: "b".to_owned(),
            until: "c".to_owned(),
        });
        guesses.committed(&batch, &before, Some(7));
        assert_eq!((guess(&mut guesses, "a"), guess(&mut guesses, "b")), (None, Some(0)));
        let absent = ReadValue {
            value: None,
            mod_revision: 0,
        };
        guesses.committed(&put("c"), &fetched([("c", absent.clone())]), Some(8));
        guesses.committed(&put("d"), &fetched([("d", absent)]), None);
        guesses.committed(&put("e"), &Fetched::new(), Some(8));
        assert_eq!(["c", "d", "e"].map(|key| guess(&mut guesses, key)), [Some(8), None, None]);
    }

    #[test]
    fn is_bounded_in_size_and_age() {
        let mut guesses = GuessedValues::new();
        for number in 0..5 * MOST_GUESSES {
            guesses.remember(&fetched([(&number.to_string(), seen("1", 1))]));
        }
        assert!(guesses.recent.len() + guesses.older.len() <= 2 * MOST_GUESSES);
        guesses.remember(&fetched([
            ("large", seen(&"x".repeat(LARGEST_GUESS + 1), 1)),
            ("small", seen("1", 1)),
        ]));
        assert_eq!((guess(&mut guesses, "large"), guess(&mut guesses, "small")), (None, Some(1)));
        guesses.since -= 2 * GENERATION;
        assert_eq!(guess(&mut guesses, "small"), Some(0));
    }

    /// Two processes with a store on the same etcd.
    struct SharedEtcd {
        etcd: EtcdServer,
        stores: [Etcd; 2],
        _folders: [tempfile::TempDir; 2],
    }

    impl SharedEtcd {
        fn new(etcd: EtcdServer) -> Self {
            let settings = EtcdSettings {
                endpoints: vec![etcd.endpoint()],
                prefix: "to".to_owned(),
                ca: None,
                identity: None,
                user: None,
                timeout: Duration::from_secs(20),
            };
            let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let open = |folder: &tempfile::TempDir| Etcd::open(&settings, &folder.path().join("gateway.db")).unwrap();
            let stores = folders.each_ref().map(open);
            Self {
                etcd,
                stores,
                _folders: folders,
            }
        }

        /// Returns the number of transactions that etcd has answered, by its own count.
        fn requests(&self) -> u64 {
            let mut etcd = TcpStream::connect(self.etcd.endpoint().trim_start_matches("http://")).unwrap();
            etcd.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            let mut metrics = String::new();
            etcd.read_to_string(&mut metrics).unwrap();
            let counted = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",";
            let count = metrics.lines().find(|line| line.starts_with(counted)).unwrap();
            count.rsplit(' ').next().unwrap().parse().unwrap()
        }

        /// Returns what a work has answered, and how many requests it took.
        async fn count<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
            let before = self.requests();
            let answer = work.await;
            (answer, self.requests() - before)
        }
    }

    /// Redeems a ticket for a machine, as the last step of a boot does.
    async fn redeem(store: &Etcd, ticket: &str) -> Result<(Option<String>, Spend), StoreError> {
        let (ticket, decision) = (thing(ticket, 1, 1_000_000), format!("of-{ticket}"));
        let record = decision.clone();
        Transact::decide(store, &decision, move |transaction| {
            let machine = transaction.get(EntryKind::Token, "machine")?;
            let spent = transaction.spend(&ticket, &UseOccasion::Any, 1)?;
            let decision = record.clone();
            transaction.decide(DecisionRecord {
                decision,
                at: 1,
                record: "{}".to_owned(),
            })?;
            Ok((machine.map(|machine| machine.value), spent))
        })
        .await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_boot_takes_one_request_for_each_work() {
        let shared = SharedEtcd::new(EtcdServer::start());
        let [one, other] = &shared.stores;
        let (granted, wanted) = (Spend::Granted { use_number: 1 }, vec![(EntryKind::Token, "machine".to_owned())]);
        let change = async |store: &Etcd, value: &str| {
            let value = entry("machine", value);
            let done = Transact::transact(store, move |transaction| {
                let before = transaction.get(EntryKind::Token, "machine")?;
                transaction.put(EntryKind::Token, value.clone())?;
                Ok::<_, StoreError>(before.map(|before| before.value))
            });
            done.await.unwrap()
        };
        assert_eq!(shared.count(change(other, "1")).await, (None, 1));
        // A read takes one, even with a wrong guess.
        for _ in 0..2 {
            let (found, requests) = shared.count(one.get_all(wanted.clone())).await;
            assert_eq!((found.unwrap(), requests), (vec![Some(entry("machine", "1"))], 1));
        }
        let challenge = Spendable {
            kind: EntryKind::Challenge,
            ..thing("c", 1, 1_000_000)
        };
        let (spent, requests) = shared.count(one.spend(challenge.clone())).await;
        assert_eq!((spent.unwrap(), requests), (granted, 1));
        let (spent, requests) = shared.count(one.spend(challenge)).await;
        assert_eq!((spent.unwrap(), requests), (Spend::Exhausted, 1), "a refusal is confirmed, too");
        let (redeemed, requests) = shared.count(redeem(one, "right")).await;
        assert_eq!((redeemed.unwrap(), requests), ((Some("1".to_owned()), granted), 1));
        // Changed by another: one is wrong.
        assert_eq!(shared.count(change(other, "2")).await, (Some("1".to_owned()), 1));
        let (redeemed, requests) = shared.count(redeem(one, "wrong")).await;
        assert_eq!((redeemed.unwrap(), requests), ((Some("2".to_owned()), granted), 2));
        // Its second change of the same key: fetched first.
        assert_eq!(shared.count(change(other, "3")).await, (Some("2".to_owned()), 2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn attack_44_answers_no_stale_guess() {
        let shared = SharedEtcd::new(EtcdServer::start());
        let [one, other] = &shared.stores;
        let get = |store| engine::run(store, |keys| keys.get("a"));
        assert_eq!(get(one).await.unwrap(), None);
        for value in ["1", "2"] {
            engine::run(other, move |keys| keys.put("a", value)).await.unwrap();
            assert_eq!(get(one).await.unwrap().as_deref(), Some(value));
        }
        engine::run(other, |keys| keys.delete("a")).await.unwrap();
        let refused = engine::run(one, |keys| match keys.get("a")? {
            Some(_) => Err(StoreError::Closed.into()),
            None => keys.put("b", "1"),
        });
        refused.await.unwrap();
        assert_eq!(get(one).await.unwrap(), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_wrong_guess_needs_no_room_for_a_write() {
        let shared = SharedEtcd::new(EtcdServer::start_with_quota(2 << 20));
        let [one, other] = &shared.stores;
        engine::run(one, |keys| keys.put("b", "1")).await.unwrap();
        engine::run(other, |keys| keys.put("a", "1")).await.unwrap();
        while engine::run(other, |keys| keys.put("fills", &"x".repeat(200_000))).await.is_ok() {}
        let create = engine::run(one, |keys| {
            let found = keys.get("a")?;
            if found.is_none() {
                keys.put("a", "2")?;
            }
            Ok(found)
        });
        assert_eq!(create.await.unwrap().as_deref(), Some("1"));
    }

    /// Otherwise a rollback that loses the writes of others is not noticed.
    #[tokio::test(flavor = "multi_thread")]
    async fn learns_the_progress_of_others_by_right_guesses() {
        let shared = SharedEtcd::new(EtcdServer::start());
        let [one, other] = &shared.stores;
        let mark = |store: &Etcd| engine::Engine::store_mark(store).unwrap().mark;
        let get = |store| engine::run(store, |keys| keys.get("a"));
        get(one).await.unwrap();
        engine::run(other, |keys| keys.put("b", "1")).await.unwrap();
        assert!(mark(one) < mark(other));
        assert_eq!(shared.count(get(one)).await.1, 1);
        assert_eq!(mark(one), mark(other));
    }
}
