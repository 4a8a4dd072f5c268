//! GuessedValues of values: a work runs on them first, and its commit compares their revisions.
//!
//! A right guess saves the round trip of a fetch. After a wrong one the commit returns the current values, as a fetch does. So a guess
//! decides how many requests a work takes, and never its answer.

use std::collections::BTreeMap;

use super::super::engine::KeyRange;
use super::super::keys::SERVING;
use super::keys::LEADER;
use super::overlay::{EtcdBatch, Fetched, ReadValue};

/// Values that were used recently; as many older ones are remembered.
const MOST_GUESSES: usize = 1024;
/// Bytes of the largest value that is remembered.
const LARGEST_GUESS: usize = 8 * 1024;

/// Recently read and created values, in two generations: beyond [`MOST_GUESSES`] the older one is dropped.
#[derive(Debug, Default)]
pub(super) struct GuessedValues {
    recent: Fetched,
    older: Fetched,
}

impl GuessedValues {
    /// Returns whether a key may be guessed. Leaders and replicas keep what a work finds of their keys: they are always fetched.
    pub(super) fn allows(key: &str) -> bool {
        !key.starts_with(LEADER) && !key.starts_with(SERVING)
    }

    /// Returns the value that a key probably has: none, unless one was seen.
    pub(super) fn of(&mut self, key: &str) -> ReadValue {
        if let Some(found) = self.recent.get(key) {
            return found.clone();
        }
        let Some(found) = self.older.remove(key) else {
            return ReadValue {
                value: None,
                mod_revision: 0,
            };
        };
        self.insert(key, found.clone());
        found
    }

    /// Remembers values that etcd has answered.
    pub(super) fn remember(&mut self, found: &Fetched) {
        for (key, value) in found {
            self.forget(key);
            if Self::allows(key) && value.value.as_ref().is_some_and(|value| value.len() <= LARGEST_GUESS) {
                self.insert(key, value.clone());
            }
        }
    }

    /// Remembers the values that a commit has created, at its revision if that is known. Changed values are forgotten: a replica that has
    /// changed one fetches it before its next change, so that another comes first.
    pub(super) fn committed(&mut self, batch: &EtcdBatch, before: &Fetched, revision: Option<i64>) {
        let absent = |key: &String| before.get(key).is_some_and(|before| before.mod_revision == 0);
        for (key, value) in &batch.writes {
            self.forget(key);
            if let (Some(mod_revision), Some(_)) = (revision, value)
                && absent(key)
            {
                let value = value.clone();
                self.remember(&BTreeMap::from([(key.clone(), ReadValue { value, mod_revision })]));
            }
        }
        for KeyRange { from, until } in &batch.removed {
            let outside = |key: &String, _: &mut ReadValue| key < from || key >= until;
            self.recent.retain(outside);
            self.older.retain(outside);
        }
    }

    fn insert(&mut self, key: &str, value: ReadValue) {
        if self.recent.len() >= MOST_GUESSES {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key.to_owned(), value);
    }

    fn forget(&mut self, key: &str) {
        self.recent.remove(key);
        self.older.remove(key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn seen(value: &str, mod_revision: i64) -> ReadValue {
        ReadValue {
            value: Some(value.to_owned()),
            mod_revision,
        }
    }

    #[test]
    fn never_guesses_the_keys_of_leaders_and_replicas() {
        assert!(!GuessedValues::allows(&format!("{LEADER}log")) && !GuessedValues::allows(&format!("{SERVING}one")));
        assert!(GuessedValues::allows("entry/one"));
    }

    #[test]
    fn forgets_what_a_commit_changes_or_removes() {
        let mut guesses = GuessedValues::default();
        let before = Fetched::from([("a".to_owned(), seen("1", 5)), ("b".to_owned(), seen("1", 6))]);
        guesses.remember(&before);
        assert_eq!(guesses.of("a"), seen("1", 5));
        let mut batch = EtcdBatch::default();
        batch.writes.insert("a".to_owned(), Some("2".to_owned()));
        batch.removed.push(KeyRange {
            from: "b".to_owned(),
            until: "c".to_owned(),
        });
        guesses.committed(&batch, &before, Some(7));
        assert_eq!((guesses.of("a").mod_revision, guesses.of("b").mod_revision), (0, 0));
    }

    #[test]
    fn is_bounded() {
        let mut guesses = GuessedValues::default();
        for number in 0..5 * MOST_GUESSES {
            guesses.remember(&Fetched::from([(number.to_string(), seen("1", 1))]));
        }
        assert!(guesses.recent.len() + guesses.older.len() <= 2 * MOST_GUESSES);
        guesses.remember(&Fetched::from([("large".to_owned(), seen(&"x".repeat(LARGEST_GUESS + 1), 1))]));
        assert_eq!(guesses.of("large").mod_revision, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn attack_44_answers_no_stale_guess() {
        let etcd = cloud_fixtures::etcd::EtcdServer::start();
        let settings = crate::settings::EtcdSettings {
            endpoints: vec![etcd.endpoint()],
            prefix: "to".to_owned(),
            ca: None,
            identity: None,
            user: None,
            timeout: std::time::Duration::from_secs(20),
        };
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [one, other] = folders
            .each_ref()
            .map(|folder| super::super::Etcd::open(&settings, &folder.path().join("gateway.db")).unwrap());
        let get = |store| crate::engine::run(store, |keys| keys.get("a"));
        assert_eq!(get(&one).await.unwrap(), None);
        for value in ["1", "2"] {
            crate::engine::run(&other, move |keys| keys.put("a", value)).await.unwrap();
            assert_eq!(get(&one).await.unwrap().as_deref(), Some(value));
        }
        crate::engine::run(&other, |keys| keys.delete("a")).await.unwrap();
        let refused = crate::engine::run(&one, |keys| match keys.get("a")? {
            Some(_) => Err(crate::StoreError::Closed.into()),
            None => keys.put("b", "1"),
        });
        refused.await.unwrap();
        assert_eq!(get(&one).await.unwrap(), None);
    }
}
