//! Identity and position of the store that a gateway uses, as lines of the log have them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A store and its high-water mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePosition {
    /// Identifier: 128 random bits, hexadecimal.
    pub id: String,
    /// The number of transactions that have written.
    pub mark: u64,
    /// Number of them that were this gateway's, if other gateways write, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<GatewayCommits>,
}

/// The number of transactions that one of several gateways has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayCommits {
    /// Name of the gateway, its `replica.id`.
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
    /// The known store, if it is known which it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<StorePosition>,
    /// The store that was found, if it says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<StorePosition>,
}
