//! Which store a gateway decides by and how far it has come, as lines of the log have it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A store and its high-water mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePosition {
    /// 128 random bits, hexadecimal.
    pub id: String,
    /// The number of transactions that have written.
    pub mark: u64,
    /// How many of them were this gateway's, where others write, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<GatewayCommits>,
}

/// The number of transactions that one of several gateways has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayCommits {
    /// The gateway's `replica.id`.
    pub replica: String,
    /// The number of its transactions that have written.
    pub commits: u64,
}

impl fmt::Display for StorePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at mark {}", self.id, self.mark)
    }
}

/// A store that was accepted in the place of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreReplacement {
    /// The store that was known, if that says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<StorePosition>,
    /// The one that was found, if it says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<StorePosition>,
}
