//! What AWS has answered, and what the node has to sign for it.

use serde::Serialize;

use crate::nonce::SpkiSha256;

/// Whose credentials have signed, by AWS's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedSts {
    pub(super) account: String,
    pub(super) role: String,
    pub(super) instance: String,
    pub(super) region: String,
    pub(super) arn: String,
    pub(super) user_id: String,
    pub(super) server_key: SpkiSha256,
}

impl VerifiedSts {
    /// The account: twelve digits.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// The role of the instance's profile, without its path.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The instance: the name of the role's session.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The region whose STS has answered. The instance need not be there.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The caller's ARN.
    #[must_use]
    pub fn arn(&self) -> &str {
        &self.arn
    }

    /// The role's unique id and the session's name. A role that is deleted and made again has another id.
    #[must_use]
    pub fn user_id(&self) -> &str {
        &self.user_id
    }

    /// The server key that the node saw.
    #[must_use]
    pub const fn server_key(&self) -> &SpkiSha256 {
        &self.server_key
    }

    /// The node's stable identity: `aws:<account>/<instance>`.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("aws:{}/{}", self.account, self.instance)
    }
}
