//! The challenge: what a node can show, and what it is asked for.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Blob, GcpTask, HexDigest, IdentityDocumentAttester, Nothing};
use crate::kind::{Kind, kinds_of};
use crate::tpm::{TpmAttester, TpmTask};

/// Body of [`super::CHALLENGE_PATH`]: who asks, and for which pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeRequest {
    /// The pool whose config the node wants: the last path element of the pointer's source URL.
    pub pool: String,
    /// The name the node wants to be known by, if it has one already. A name belongs to one identity for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What will prove it.
    pub attester: Attester,
}

/// What a node can attest with, and the public half of it: one member for each kind of evidence that it can show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Attester {
    /// TPM 2.0: its keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmAttester>,
    /// An identity token of Google Compute Engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcp: Option<Nothing>,
    /// An instance identity document of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_identity_document: Option<IdentityDocumentAttester>,
    /// A NitroTPM attestation document of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_nitro_tpm: Option<Nothing>,
    /// A request to AWS STS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_sts: Option<Nothing>,
    /// An attested document of Azure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<Nothing>,
    /// A provisioning token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Nothing>,
    /// SHA-256 of [`super::Evidence::claimant`]: who claims the instance that evidence of a cloud is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimant_sha256: Option<HexDigest>,
}

kinds_of!(Attester);

impl Attester {
    /// Who claims the instance, if these kinds are what is asked for. Older nodes say it beside the identity document, and answer it there
    /// only: of one that is not asked for a document, nothing is known.
    #[must_use]
    pub fn claimant_sha256(&self, asked: &BTreeSet<Kind>) -> Option<&HexDigest> {
        let document = self
            .aws_identity_document
            .as_ref()
            .filter(|_| asked.contains(&Kind::AwsIdentityDocument));
        let beside_document = || document?.claimant_sha256.as_ref();
        self.claimant_sha256.as_ref().or_else(beside_document)
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

/// Answer of [`super::CHALLENGE_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeResponse {
    /// Opaque to the node; to be sent back with the evidence. Good once.
    pub challenge: String,
    /// 32 random bytes.
    pub nonce: Blob,
    /// What the evidence is for; goes into the quote's extraData as it stands.
    pub purpose: String,
    /// Seconds since 1970 after which the challenge is refused. For messages: the gateway's clock decides.
    pub expires: u64,
    /// What the node has to do.
    pub task: Task,
}

/// What a challenge asks for: one member for each kind of evidence, all of which have to be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Task {
    /// TPM 2.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmTask>,
    /// An identity token of Google Compute Engine for [`crate::gcp::Audience`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcp: Option<GcpTask>,
    /// The instance identity document of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_identity_document: Option<Nothing>,
    /// A NitroTPM attestation document with the challenge's nonce and [`crate::aws::nitro_tpm::expected_user_data`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_nitro_tpm: Option<Nothing>,
    /// A request to AWS STS with [`crate::aws::sts::expected_server_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_sts: Option<Nothing>,
    /// An attested document of Azure for [`crate::azure::attested_document::ImdsNonce`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<Nothing>,
    /// The provisioning token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Nothing>,
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
