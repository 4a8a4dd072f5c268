//! AWS's answer, and the request that the node has to sign for it.

use serde::Serialize;

use crate::nonce::SpkiSha256;
use crate::verified::Verified;

/// Owner of the credentials that signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// The account: twelve digits.
    pub account: String,
    /// The role of the instance's profile, without its path.
    pub role: String,
    /// The instance: the name of the role's session.
    pub instance: String,
    /// The region whose STS has answered. The instance need not be there.
    pub region: String,
    pub arn: String,
    /// The role's unique id and the session's name. A role that is deleted and made again has another id.
    pub user_id: String,
    /// The server key that the node saw.
    pub server_key: SpkiSha256,
}

/// Owner of the credentials that signed, by AWS's answer. Only [`super::verify_answer`] makes one.
pub type VerifiedSts = Verified<Caller>;

impl Caller {
    /// The node's stable identity: `aws:<account>/<instance>`.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("aws:{}/{}", self.account, self.instance)
    }
}
