//! What a pool makes of a TPM that is not what it was.

use serde::{Deserialize, Serialize};

/// `[history]` of `pool.toml`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryRules {
    /// Counters, or a safe clock, that ran backwards.
    pub counters_back: Answer,
    /// A firmware of the TPM's that is older than it was.
    pub firmware_back: Answer,
    /// An event log that says something else of the same PCR values.
    pub another_log: Answer,
}

/// What becomes of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The decision stands, and the administrator is told. What it is now is what it is compared with next.
    #[default]
    Alert,
    /// It is refused, until the administrator has its history forgotten.
    Refuse,
}

impl HistoryRules {
    /// What is refused, for people.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (
                self.counters_back,
                "the TPM's counters, and its clock, are not behind what they were",
            ),
            (self.firmware_back, "the TPM's firmware is not older than it was"),
            (self.another_log, "the event log says of the same PCR values what it said before"),
        ];
        all.into_iter()
            .filter(|(answer, _)| *answer == Answer::Refuse)
            .map(|(_, words)| words)
    }
}
