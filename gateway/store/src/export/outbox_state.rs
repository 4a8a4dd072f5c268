//! The outbox of an exported store: it tells which acts the export contains.

use std::collections::BTreeSet;

use super::super::engine::KeyValue;
use super::super::keys;
use super::super::outbox::OutboxCounter;

/// Acts that an exported store contains, by their ids in the outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxState {
    /// Number of all acts of this store until the export.
    count: u64,
    /// Ids of acts that no log had recorded at the export.
    pub waiting: BTreeSet<String>,
}

impl OutboxState {
    pub(super) fn add(&mut self, KeyValue { key, value }: &KeyValue) {
        if key == keys::TOLD {
            self.count = serde_json::from_str(value).map_or(0, |counter: OutboxCounter| counter.number);
        } else if key.starts_with("outbox/") {
            self.waiting.extend(keys::last(key));
        }
    }

    /// Returns whether the export contains the act with this id, of the same store.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        let number = id.split_once('-').and_then(|(number, _)| number.parse::<u64>().ok());
        number.is_some_and(|number| number <= self.count)
    }
}
