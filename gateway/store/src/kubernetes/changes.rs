//! Changes on top of the leaves: keys that are put or removed, and ranges that are removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::engine::KeyRange;

/// Ranges are removed first, and then keys are written: so a range that is removed later takes out of `writes` what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PendingChanges {
    /// New value of each key; `None` if it was removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub writes: BTreeMap<String, Option<String>>,
    /// Removed ranges, each from a key until another, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<(String, String)>,
}

/// Effect of the changes on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyChange<'a> {
    Value(&'a str),
    Gone,
    /// The changes do not affect the key.
    Nothing,
}

impl PendingChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.removed.is_empty()
    }

    pub(super) fn get(&self, key: &str) -> KeyChange<'_> {
        match self.writes.get(key) {
            Some(Some(value)) => KeyChange::Value(value),
            Some(None) => KeyChange::Gone,
            None if self.removes(key) => KeyChange::Gone,
            None => KeyChange::Nothing,
        }
    }

    /// Returns whether a range with the key was removed.
    pub(super) fn removes(&self, key: &str) -> bool {
        self.removed.iter().any(|range| holds(range, key))
    }

    pub(super) fn remove(&mut self, range: &KeyRange) {
        let range = (range.from.clone(), range.until.clone());
        self.writes.retain(|key, _| !holds(&range, key));
        self.removed.push(range);
    }

    /// Does these after those that are here.
    pub(super) fn then(&mut self, later: Self) {
        for (from, until) in later.removed {
            self.remove(&KeyRange { from, until });
        }
        self.writes.extend(later.writes);
    }

    /// Returns the size of the changes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let written = self
            .writes
            .iter()
            .map(|(key, value)| key.len() + value.as_ref().map_or(0, String::len));
        let removed = self.removed.iter().map(|(from, until)| from.len() + until.len());
        written.chain(removed).sum()
    }

    /// Returns the changes that remain once `folded`, with which they began, is in the leaves.
    pub(super) fn without(&self, folded: &Self) -> Self {
        // Nobody takes a range out but who folds, and of those there is one at a time.
        let removed: Vec<_> = self.removed.iter().skip(folded.removed.len()).cloned().collect();
        let later = Self {
            writes: BTreeMap::new(),
            removed: removed.clone(),
        };
        // A range that was removed since hides what lies below, also where the same was put once more after it.
        let is_below = |key: &String, value: &Option<String>| folded.writes.get(key) == Some(value) && !later.removes(key);
        let writes = self.writes.iter().filter(|(key, value)| !is_below(key, value));
        Self {
            writes: writes.map(|(key, value)| (key.clone(), value.clone())).collect(),
            removed,
        }
    }
}

fn holds((from, until): &(String, String), key: &str) -> bool {
    from.as_str() <= key && key < until.as_str()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(u8, u8),
        Delete(u8),
        Remove(u8, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6u8, 0..3u8).prop_map(|(key, value)| Step::Put(key, value)),
            (0..6u8).prop_map(Step::Delete),
            (0..6u8, 0..7u8).prop_map(|(from, until)| Step::Remove(from, until)),
        ]
    }

    fn one(step: &Step) -> PendingChanges {
        let mut changes = PendingChanges::default();
        match *step {
            Step::Put(key, value) => drop(changes.writes.insert(key.to_string(), Some(value.to_string()))),
            Step::Delete(key) => drop(changes.writes.insert(key.to_string(), None)),
            Step::Remove(from, until) => changes.remove(&KeyRange {
                from: from.to_string(),
                until: until.to_string(),
            }),
        }
        changes
    }

    fn done(below: &mut BTreeMap<String, String>, changes: &PendingChanges) {
        below.retain(|key, _| !changes.removes(key));
        for (key, value) in &changes.writes {
            match value {
                Some(value) => drop(below.insert(key.clone(), value.clone())),
                None => drop(below.remove(key)),
            }
        }
    }

    proptest! {
        /// Whatever was written, and whenever it is folded, every key is what it would be if one step was done after the other.
        #[test]
        fn concurrent_compaction_changes_no_value(steps in prop::collection::vec(step(), 0..24), at in 0..24usize) {
            let (mut plain, mut below, mut changes) = (BTreeMap::new(), BTreeMap::new(), PendingChanges::default());
            let mut folding = None;
            for (number, step) in steps.iter().enumerate() {
                if number == at {
                    folding = Some(changes.clone());
                }
                done(&mut plain, &one(step));
                changes.then(one(step));
            }
            if let Some(folded) = folding {
                done(&mut below, &folded);
                changes = changes.without(&folded);
            }
            for key in (0..6u8).map(|key| key.to_string()) {
                let found = match changes.get(&key) {
                    KeyChange::Value(value) => Some(value.to_owned()),
                    KeyChange::Gone => None,
                    KeyChange::Nothing => below.get(&key).cloned(),
                };
                prop_assert_eq!(&found, &plain.get(&key).cloned(), "{}", key);
            }
            done(&mut below, &changes);
            prop_assert_eq!(below, plain);
        }
    }
}
