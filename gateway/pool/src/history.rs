//! Rules for a TPM whose counters, firmware or log have changed.

use serde::{Deserialize, Serialize};

/// Section `[history]` of `pool.toml`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryRules {
    /// Reaction to counters, or a safe clock, that ran backwards.
    pub counters_back: HistoryPolicy,
    /// Reaction to firmware of the TPM that is older than before.
    pub firmware_back: HistoryPolicy,
    /// Reaction to an event log that differs for the same PCR values.
    pub another_log: HistoryPolicy,
}

/// Reaction to a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HistoryPolicy {
    /// The machine is accepted, and the administrator is alerted. The next comparison is with its new state.
    #[default]
    Alert,
    /// The machine is refused until the administrator deletes its history.
    Refuse,
}

impl HistoryRules {
    /// Returns descriptions of the refused changes.
    pub fn descriptions(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.counters_back, "the TPM's counters and clock have not gone backwards"),
            (self.firmware_back, "the TPM's firmware is not older than before"),
            (self.another_log, "the event log is unchanged where the PCR values are unchanged"),
        ];
        all.into_iter()
            .filter(|(answer, _)| *answer == HistoryPolicy::Refuse)
            .map(|(_, words)| words)
    }
}
