//! The challenge: the node's offer, and the gateway's task.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Blob, HexDigest};
use crate::kinds::{Kind, Messages};
use crate::tpm::{TpmAttester, TpmTask};
use crate::{each_kind, kinds_of, members};

/// Body of [`super::CHALLENGE_PATH`]: the node's offer, and its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeRequest {
    /// The pool whose config the node wants: the last path element of the pointer's source URL.
    pub pool: String,
    /// The name the node wants to be known by, if it has one already. A name belongs to one identity for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// SHA-256 of the SubjectPublicKeyInfo of the key for which the node's kubelet will request a certificate. The challenge's purpose then
    /// includes it, and so does all signed evidence ([`crate::purpose`]). Only for a gateway that accepts one
    /// ([`super::Discovery::kubelet_key`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_key_sha256: Option<HexDigest>,
    /// Set for a rehearsal: the answer to the evidence is [`super::RehearsalResponse`], and nothing is given or kept for it. The challenge's
    /// purpose is then [`crate::purpose::REHEARSAL`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rehearsal: bool,
    /// Evidence that the node offers.
    pub attester: Attester,
}

members! {
    /// Node's means of attestation, as public values: one member for each kind of evidence that it can show.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Attester {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub Messages::Offer,
        /// SHA-256 of [`super::Evidence::claimant`], which claims the instance in a cloud's evidence.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub claimant_sha256: Option<HexDigest>,
    }
}

kinds_of!(Attester);

impl Attester {
    /// Returns keys and certificates, by their position (`tpm.ek_certificate`), for digests.
    #[must_use]
    pub fn parts(&self) -> Vec<(String, Cow<'_, [u8]>)> {
        let mut parts = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                let offered = self.$member.iter().flat_map(<$room>::offered_parts);
                parts.extend(offered.map(|(part, content)| (format!("{}.{part}", Kind::$kind.section()), content)));
            };
        }
        each_kind!(one);
        parts
    }
}

impl From<TpmAttester> for Attester {
    fn from(tpm: TpmAttester) -> Self {
        Self {
            tpm: Some(tpm),
            ..Self::default()
        }
    }
}

/// Answer to a request for [`super::CHALLENGE_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeResponse {
    /// Opaque to the node; to be sent back with the evidence. Good once.
    pub challenge: String,
    /// Random value of 32 bytes.
    pub nonce: Blob,
    /// Purpose of the evidence; goes into the quote's extraData unchanged.
    pub purpose: String,
    /// Seconds since 1970 after which the challenge is refused. For messages: the gateway's clock decides.
    pub expires: u64,
    /// Task for the node.
    pub task: Task,
}

members! {
    /// Evidence that a challenge asks for: one member for each kind, all of which have to be shown.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Task {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub Messages::Task,
    }
}

kinds_of!(Task);

impl From<TpmTask> for Task {
    fn from(tpm: TpmTask) -> Self {
        Self {
            tpm: Some(tpm),
            ..Self::default()
        }
    }
}
