//! A state of a store, and the reads and writes of works on top of it before they are committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::StoreError;
use super::super::engine::{KeyRange, KeyValue, Transaction, Work, WorkInterrupted};
use super::super::remote::plan::Ran;
use super::changes::{KeyChange, PendingChanges};
use super::head::Head;

/// What a leaf holds.
pub(super) type Pairs = BTreeMap<String, String>;
/// Maximum bytes that one commit writes, unless a single work needs more.
const BATCH_BYTES: usize = 96 * 1024;
/// Maximum bytes that one work writes: together with all other changes that are not in leaves, they fit into one object.
pub(super) const MOST_WORK_BYTES: usize = 256 * 1024;

/// A state, and those of its leaves that were fetched.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub head: Arc<Head>,
    pub leaves: BTreeMap<String, Arc<Pairs>>,
}

/// Leaves that have to be fetched first, by name.
pub(super) type Missing = BTreeSet<String>;

/// A read of a view, which returns the leaves that it misses.
pub(super) type Look = Box<dyn FnMut(&View) -> Result<(), Missing> + Send>;

impl View {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head: Arc::new(head),
            leaves: BTreeMap::new(),
        }
    }

    /// Returns the value under a key, or the leaf to fetch.
    fn get(&self, key: &str) -> Result<Option<&str>, String> {
        if let Some((_, value)) = self.head.holder(key) {
            return Ok(Some(value));
        }
        match self.head.changes.get(key) {
            KeyChange::Value(value) => return Ok(Some(value)),
            KeyChange::Gone => return Ok(None),
            KeyChange::Nothing => {}
        }
        let Some(leaf) = self.head.leaf_of(key).and_then(|place| self.head.leaves.get(place)) else {
            return Ok(None);
        };
        match self.leaves.get(&leaf.name) {
            Some(pairs) => Ok(pairs.get(key).map(String::as_str)),
            None => Err(leaf.name.clone()),
        }
    }

    /// Returns the first `most` values of a range.
    pub(super) fn page(&self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, Missing> {
        let mut page = Vec::new();
        self.walk(range, |key, value| {
            page.push(KeyValue {
                key: key.to_owned(),
                value: value.to_owned(),
            });
            page.len() < most
        })?;
        page.truncate(most);
        Ok(page)
    }

    pub(super) fn count(&self, range: &KeyRange) -> Result<u64, Missing> {
        let mut count = 0;
        self.walk(range, |_, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// Each of a range, in order, until this says that it is enough.
    fn walk(&self, range: &KeyRange, mut each: impl FnMut(&str, &str) -> bool) -> Result<(), Missing> {
        let Head { leaves, changes, .. } = &*self.head;
        let mut from = range.from.clone();
        let mut place = self.head.leaf_of(&from);
        while from < range.until {
            let next = place.map_or(0, |place| place + 1);
            let until = leaves
                .get(next)
                .map_or(range.until.as_str(), |next| next.from.as_str())
                .min(range.until.as_str());
            let empty = Pairs::new();
            let below = match place.and_then(|place| leaves.get(place)) {
                None => &empty,
                Some(leaf) => match self.leaves.get(&leaf.name) {
                    Some(pairs) => pairs,
                    // Those behind it are wanted, too, as a rule.
                    None => return Err(self.missing(next.saturating_sub(1), &range.until)),
                },
            };
            let span = from.clone()..until.to_owned();
            let mut lower = below.range(span.clone()).peekable();
            let mut upper = changes.writes.range(span).peekable();
            loop {
                let of_upper = match (lower.peek(), upper.peek()) {
                    (None, None) => break,
                    (Some(_), None) => false,
                    (None, Some(_)) => true,
                    (Some((below, _)), Some((key, _))) => key <= below,
                };
                if of_upper {
                    let Some((key, value)) = upper.next() else { break };
                    lower.next_if(|(below, _)| *below == key);
                    if let Some(value) = value
                        && !each(key, value)
                    {
                        return Ok(());
                    }
                } else if let Some((key, value)) = lower.next()
                    && !changes.removes(key)
                    && !each(key, value)
                {
                    return Ok(());
                }
            }
            (from, place) = (until.to_owned(), Some(next));
        }
        Ok(())
    }

    /// Leaves from this place on that were not fetched, a few of them.
    fn missing(&self, place: usize, until: &str) -> Missing {
        const AT_ONCE: usize = 16;
        let leaves = self.head.leaves.iter().skip(place).take_while(|leaf| leaf.from.as_str() < until);
        let unknown = leaves.filter(|leaf| !self.leaves.contains_key(&leaf.name));
        unknown.take(AT_ONCE).map(|leaf| leaf.name.clone()).collect()
    }
}

/// What a commit does.
#[derive(Debug, Default)]
pub(super) struct KubernetesBatch {
    pub changes: PendingChanges,
}

impl KubernetesBatch {
    /// Does a work on top of those before it.
    pub(super) fn run(&mut self, view: &View, work: &mut Work) -> Ran {
        let mut overlay = KubernetesTransaction {
            view,
            batch: self,
            changes: PendingChanges::default(),
            missing: Missing::new(),
        };
        let finished = work(&mut overlay);
        let KubernetesTransaction { changes, missing, .. } = overlay;
        // Whatever the work made of it: it went on without knowing.
        if !missing.is_empty() {
            return Ran::Missing(missing);
        }
        match finished {
            Ok(()) => {
                let bytes = changes.bytes();
                let is_first = self.changes.is_empty();
                if bytes > MOST_WORK_BYTES || (!is_first && self.changes.bytes() + bytes > BATCH_BYTES) {
                    return Ran::Full;
                }
                let writes = !changes.is_empty();
                self.changes.then(changes);
                Ran::Done { writes }
            }
            Err(WorkInterrupted::Refused(error)) => Ran::Refused(error),
            // It has given up without having had to.
            Err(WorkInterrupted::Engine) => Ran::Refused(StoreError::Closed),
        }
    }
}

/// Transaction of one work, on top of its batch.
struct KubernetesTransaction<'a> {
    view: &'a View,
    batch: &'a KubernetesBatch,
    changes: PendingChanges,
    missing: Missing,
}

impl Transaction for KubernetesTransaction<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        for changes in [&self.changes, &self.batch.changes] {
            match changes.get(key) {
                KeyChange::Value(value) => return Ok(Some(value.to_owned())),
                KeyChange::Gone => return Ok(None),
                KeyChange::Nothing => {}
            }
        }
        match self.view.get(key) {
            Ok(value) => Ok(value.map(str::to_owned)),
            Err(leaf) => {
                self.missing.insert(leaf);
                Err(WorkInterrupted::Engine)
            }
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted> {
        self.changes.writes.insert(key.to_owned(), Some(value.to_owned()));
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted> {
        self.changes.writes.insert(key.to_owned(), None);
        Ok(())
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted> {
        if range.from < range.until {
            self.changes.remove(range);
        }
        Ok(())
    }
}
