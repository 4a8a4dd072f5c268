//! Last known counters of a TPM. They run backwards when a TPM is cleared or a virtual one is reset, and when something else answers in its
//! place.

use attest::Counters;
use attest_store::{EntryKind, StoreEntry, StoreError};
use serde::{Deserialize, Serialize};

use super::HistoryFinding;

/// The stored counters of a TPM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownCounters {
    reset_count: u32,
    restart_count: u32,
    clock_ms: u64,
}

impl From<Counters> for KnownCounters {
    fn from(counters: Counters) -> Self {
        Self {
            reset_count: counters.reset_count,
            restart_count: counters.restart_count,
            clock_ms: counters.clock_ms,
        }
    }
}

impl KnownCounters {
    pub(super) fn read(StoreEntry { id, value }: StoreEntry) -> Result<Self, StoreError> {
        serde_json::from_str(&value).map_err(|source| unreadable(id, source))
    }

    pub(super) fn entry(self, id: String) -> Result<StoreEntry, StoreError> {
        match serde_json::to_string(&self) {
            Ok(value) => Ok(StoreEntry { id, value }),
            Err(source) => Err(unreadable(id, source)),
        }
    }

    /// Returns a finding if `now` is behind these counters.
    pub(super) fn behind(self, now: Counters) -> Option<HistoryFinding> {
        let counts = |known: Self| (known.reset_count, known.restart_count);
        let is_behind = counts(now.into()) < counts(self) || (now.clock_safe && now.clock_ms < self.clock_ms);
        is_behind.then_some(HistoryFinding::CountersBack {
            resets: (self.reset_count, now.reset_count),
            restarts: (self.restart_count, now.restart_count),
            clock_ms: (self.clock_ms, now.clock_ms),
        })
    }
}

const fn unreadable(id: String, source: serde_json::Error) -> StoreError {
    let kind = EntryKind::Clock.as_str();
    StoreError::Entry { kind, id, source }
}
