//! A provisioning token beside evidence. The gateway looks it up; nothing here verifies it.

use serde::{Deserialize, Serialize};

use crate::kinds::EvidenceKind;
use crate::values::{Nothing, SecretText};

/// A provisioning token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEvidence {
    /// The token. A secret.
    pub token: SecretText,
}

/// A provisioning token, beside evidence of another kind.
#[derive(Debug)]
pub enum Token {}

/// No token was taken, or none was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;

impl EvidenceKind for Token {
    type Offer = Nothing;
    type Task = Nothing;
    type Subject = Nothing;
    type Evidence = TokenEvidence;
    /// Whether it is good is the gateway's to say.
    type Rules = ();
    /// Its name.
    type Proof = String;
    type Error = NoToken;
}
