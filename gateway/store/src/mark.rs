//! Id of the store, and its mark.

use serde::{Deserialize, Serialize};

/// Id of the store, and its mark: each transaction that writes raises it by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreMark {
    /// 128 random bits, hexadecimal.
    pub id: String,
    /// The number of transactions that have written.
    pub mark: u64,
    /// Number of those that were this gateway's, if others write, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<Wrote>,
}

/// Commits of one of several gateways. After a rollback of the store, others may raise its mark again without knowing; they do not raise
/// this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrote {
    /// Which gateway: its `replica.id`.
    pub replica: String,
    /// The number of its transactions that have written.
    pub commits: u64,
}

impl StoreMark {
    /// Returns whether this mark includes all that `other` says of the same store.
    pub(super) fn says_as_much_as(&self, other: &Self) -> bool {
        let wrote = |wrote: &Wrote| {
            self.wrote
                .as_ref()
                .is_some_and(|own| own.replica == wrote.replica && own.commits >= wrote.commits)
        };
        self.id == other.id && self.mark >= other.mark && other.wrote.as_ref().is_none_or(wrote)
    }
}

impl std::fmt::Display for StoreMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at mark {}", self.id, self.mark)
    }
}
