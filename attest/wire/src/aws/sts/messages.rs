//! The wire message with the request to STS.

use serde::{Deserialize, Serialize};

use super::request::SignedRequest;

/// A request to AWS STS, signed by the node and to be sent by the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StsEvidence {
    pub request: SignedRequest,
}
