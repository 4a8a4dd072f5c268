//! Reads and writes of works before they are committed: each work sees the writes of those before it, on top of the fetched values.

use std::collections::{BTreeMap, BTreeSet};

use super::super::StoreError;
use super::super::engine::{KeyRange, Transaction, Work, WorkInterrupted};
use super::super::remote::plan::Ran;

/// Maximum number of keys that one commit requires to be unchanged. As many again are written at most. etcd takes 128 (`--max-txn-ops`),
/// and the engine's own need some.
pub(super) const MOST_KEYS: usize = 120;
/// Maximum bytes that one commit writes, unless a single work needs more: etcd takes 1.5 MiB (`--max-request-bytes`).
pub(super) const BATCH_BYTES: usize = 1024 * 1024;

/// Value under a key, and its revision; 0 without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadValue {
    pub value: Option<String>,
    pub mod_revision: i64,
}

/// Fetched values, by their keys.
pub(super) type Fetched = BTreeMap<String, ReadValue>;

/// What a commit does.
#[derive(Debug, Default)]
pub(super) struct EtcdBatch {
    /// Keys whose values the works depend on: they must not have changed.
    pub reads: BTreeSet<String>,
    /// Values to put; `None` removes the key.
    pub writes: BTreeMap<String, Option<String>>,
    pub removed: Vec<KeyRange>,
    bytes: usize,
}

impl EtcdBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && !self.writes_anything()
    }

    pub(super) fn writes_anything(&self) -> bool {
        !self.writes.is_empty() || !self.removed.is_empty()
    }

    /// Does a work on top of those before it.
    pub(super) fn run(&mut self, fetched: &Fetched, work: &mut Work) -> Ran {
        let mut overlay = EtcdTransaction {
            fetched,
            batch: self,
            reads: BTreeSet::new(),
            writes: BTreeMap::new(),
            removed: Vec::new(),
            missing: BTreeSet::new(),
            clash: false,
        };
        let finished = work(&mut overlay);
        let EtcdTransaction {
            reads,
            writes,
            removed,
            missing,
            clash,
            ..
        } = overlay;
        if clash {
            return Ran::Full;
        }
        // Whatever the work made of it: it went on without knowing.
        if !missing.is_empty() {
            return if reads.len() > MOST_KEYS {
                Ran::Full
            } else {
                Ran::Missing(missing)
            };
        }
        match finished {
            Ok(()) => self.add(reads, writes, removed),
            Err(WorkInterrupted::Refused(error)) => match self.add(reads, BTreeMap::new(), Vec::new()) {
                Ran::Done { .. } => Ran::Refused(error),
                full => full,
            },
            // It has given up without having had to.
            Err(WorkInterrupted::Engine) => Ran::Refused(StoreError::Closed),
        }
    }

    fn add(&mut self, reads: BTreeSet<String>, writes: BTreeMap<String, Option<String>>, removed: Vec<KeyRange>) -> Ran {
        let read = self.reads.len() + reads.difference(&self.reads).count();
        let new = writes.keys().filter(|key| !self.writes.contains_key(*key)).count();
        let written = self.writes.len() + self.removed.len() + new + removed.len();
        let bytes = self.bytes
            + writes
                .iter()
                .map(|(key, value)| key.len() + value.as_ref().map_or(0, String::len))
                .sum::<usize>();
        if read > MOST_KEYS || written > MOST_KEYS || (bytes > BATCH_BYTES && !self.is_empty()) {
            return Ran::Full;
        }
        let writes_anything = !writes.is_empty() || !removed.is_empty();
        self.reads.extend(reads);
        self.writes.extend(writes);
        self.removed.extend(removed);
        self.bytes = bytes;
        Ran::Done { writes: writes_anything }
    }
}

fn holds(range: &KeyRange, key: &str) -> bool {
    range.from.as_str() <= key && key < range.until.as_str()
}

/// Transaction of one work, on top of its batch.
struct EtcdTransaction<'a> {
    fetched: &'a Fetched,
    batch: &'a EtcdBatch,
    reads: BTreeSet<String>,
    writes: BTreeMap<String, Option<String>>,
    removed: Vec<KeyRange>,
    missing: BTreeSet<String>,
    /// Set if it touches what another work of the batch removes, or the reverse: etcd would not take both at once.
    clash: bool,
}

impl EtcdTransaction<'_> {
    fn separate(&mut self) -> WorkInterrupted {
        self.clash = true;
        WorkInterrupted::Engine
    }
}

impl Transaction for EtcdTransaction<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        if let Some(own) = self.writes.get(key) {
            return Ok(own.clone());
        }
        if self.batch.removed.iter().any(|range| holds(range, key)) {
            return Err(self.separate());
        }
        if let Some(others) = self.batch.writes.get(key) {
            return Ok(others.clone());
        }
        self.reads.insert(key.to_owned());
        match self.fetched.get(key) {
            Some(seen) => Ok(seen.value.clone()),
            None => {
                self.missing.insert(key.to_owned());
                Err(WorkInterrupted::Engine)
            }
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted> {
        if self.batch.removed.iter().any(|range| holds(range, key)) {
            return Err(self.separate());
        }
        self.writes.insert(key.to_owned(), Some(value.to_owned()));
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted> {
        self.writes.insert(key.to_owned(), None);
        Ok(())
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted> {
        if range.from >= range.until {
            return Ok(());
        }
        if self.batch.writes.keys().any(|key| holds(range, key)) {
            return Err(self.separate());
        }
        self.removed.push(range.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{EntryKind, keys, transaction};
    use super::*;

    /// Otherwise continuous use of a token would prevent its removal: each use changes what the removal has read.
    #[test]
    fn attack_44_concurrent_uses_do_not_block_token_removal() {
        let mut removal: Work = Box::new(|keys| transaction::remove(keys, EntryKind::Token, "t").map(drop));
        let Ran::Missing(wanted) = EtcdBatch::default().run(&Fetched::new(), &mut removal) else {
            panic!("it reads nothing");
        };
        assert_eq!(wanted, BTreeSet::from([keys::entry("token", "t")]));
    }
}
