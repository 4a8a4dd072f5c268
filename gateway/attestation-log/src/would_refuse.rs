//! Refusals that a pool that observes would have made, as a record has them.

use attest::{AttestationResult, Reject};
use serde::{Deserialize, Serialize};

/// Most refusals that are recorded for one decision. Every PCR, every check of a TPM and of a cloud, the event log, and the condition
/// together are not more.
const RECORDED_LIMIT: usize = 64;
/// Longest reason, in characters: a check's has an event, its digest, and the accepted ones with their names.
const REASON_LIMIT_CHARACTERS: usize = 2000;

/// A refusal that would have been made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WouldRefuse {
    /// Stable code that the refusal would have had.
    pub code: String,
    /// Reason in words, for a person.
    pub reason: String,
}

impl WouldRefuse {
    /// Returns all of them, in the order of the checks. `audit` compares it.
    #[must_use]
    pub fn all_of(result: &AttestationResult) -> Vec<Self> {
        let one = |reject: &Reject| {
            let reason = reject.detail();
            Self {
                code: reject.code().to_owned(),
                reason: match reason.char_indices().nth(REASON_LIMIT_CHARACTERS) {
                    Some((end, _)) => format!("{}…", reason.get(..end).unwrap_or_default()),
                    None => reason,
                },
            }
        };
        result.would_refuse().iter().take(RECORDED_LIMIT).map(one).collect()
    }

    /// Returns the codes, each once.
    #[must_use]
    pub fn codes(all: &[Self]) -> Vec<&str> {
        let mut codes: Vec<&str> = all.iter().map(|one| one.code.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// Describes the first, and the number of the others, in words.
    pub(super) fn describe(all: &[Self]) -> Option<String> {
        let first = all.first()?;
        let more = match all.len() - 1 {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        Some(format!("code={}: {}{more}", first.code, first.reason))
    }
}
