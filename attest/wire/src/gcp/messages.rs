//! The identity token's part of the wire messages.

use serde::{Deserialize, Serialize};

use crate::values::BearerText;

/// Audience that an identity token must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcpTask {
    /// The gateway's own name, the same for all its nodes: a host name.
    pub gateway: String,
}

/// An identity token of Google Compute Engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcpEvidence {
    /// The JWT, as the metadata server gives it.
    pub token: BearerText,
}
