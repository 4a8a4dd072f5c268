//! A provisioning token beside evidence. The gateway looks it up; nothing here verifies it.

use serde::{Deserialize, Serialize};

use crate::values::SecretText;

/// A provisioning token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEvidence {
    /// The token. A secret.
    pub token: SecretText,
}
