//! The evidence, and the ticket that it earns.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Blob, CLAIMANT_BYTES, DOCUMENT_LIMIT_BYTES, HexDigest, Problem, SecretText};
use crate::kinds::{Kind, Messages};
use crate::nonce::sha256;
use crate::tpm::TpmEvidence;
use crate::{each_kind, kinds_of, members};

/// Body of a request for [`super::EVIDENCE_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRequest {
    /// Unchanged value of [`super::ChallengeResponse::challenge`].
    pub challenge: String,
    pub evidence: Evidence,
    /// Forms of the config that this node's Ignition takes; absent: only plain JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigFormats>,
}

/// Forms of the config that the pointer with the ticket can name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFormats {
    /// The compression that Ignition can undo; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<ConfigCompression>,
    /// Spec version that Ignition reads, such as `3.4.0`: the one that it asks for, or that of the pointer; absent: the pointer takes no hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_version: Option<String>,
}

/// Compression of a config, in the words of Ignition's `compression`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfigCompression {
    Gzip,
}

impl ConfigCompression {
    /// Returns the value of `compression` in an Ignition config.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
        }
    }
}

/// Form in which every gateway that takes the ticket sends its config. The pointer config has to name the same: Ignition stops the boot if
/// either differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigForm {
    /// Compression of the answer; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<ConfigCompression>,
    /// SHA-256 of the config before compression; absent: the gateway does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<HexDigest>,
}

members! {
    /// Evidence: exactly the kinds that were asked for.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Evidence {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub Messages::Evidence,
        /// Claimant: 32 random bytes, the same until this node boots again. The first client to claim an instance of a cloud owns the
        /// claim. The claimant is a secret: with it, a client that learns the cloud's evidence for the instance could impersonate the node.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub claimant: Option<Blob>,
    }
}

kinds_of!(Evidence);

impl From<TpmEvidence> for Evidence {
    fn from(tpm: TpmEvidence) -> Self {
        Self {
            tpm: Some(tpm),
            ..Self::default()
        }
    }
}

impl Evidence {
    /// Returns the SHA-256 of the claimant. `None` if it is missing, or has the wrong length.
    #[must_use]
    pub fn claimant_sha256(&self) -> Option<HexDigest> {
        let claimant = self.claimant.as_ref()?.as_ref();
        // A short one could be guessed, whatever its digest is.
        (claimant.len() == CLAIMANT_BYTES).then(|| sha256(&[claimant]).into())
    }

    /// Removes parts that would be valuable to a reader: the claimant, a provisioning token, a signature that AWS would accept.
    pub fn forget_secrets(&mut self) {
        self.claimant = None;
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                self.$member.as_mut().map(<$room>::forget_secrets);
            };
        }
        each_kind!(one);
    }

    /// Returns its parts, by their position (`gcp.token`), for digests. A provisioning token and a claimant are left out even there.
    #[must_use]
    pub fn parts(&self) -> Vec<(String, Cow<'_, [u8]>)> {
        let mut parts = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                let shown = self.$member.iter().flat_map(<$room>::shown_parts);
                parts.extend(shown.map(|(part, content)| (format!("{}.{part}", Kind::$kind.section()), content)));
            };
        }
        each_kind!(one);
        parts
    }

    /// Returns the kind of the first document that is larger than [`DOCUMENT_LIMIT_BYTES`]. Evidence without such a document can be kept
    /// whole in a record; a TPM's event log has a limit of its own.
    #[must_use]
    pub fn too_large(&self) -> Option<Kind> {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                let size = self
                    .$member
                    .as_ref()
                    .and_then(|shown| <$room>::size(shown, self.claimant.as_ref()));
                if size.is_some_and(|size| size > DOCUMENT_LIMIT_BYTES) {
                    return Some(Kind::$kind);
                }
            };
        }
        each_kind!(one);
        None
    }
}

/// Answer of [`super::EVIDENCE_PATH`]: the node is trusted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceResponse {
    /// To be presented as `Authorization: Bearer <ticket>`. A secret.
    pub ticket: String,
    /// Seconds since 1970 after which the ticket is refused.
    pub expires: u64,
    /// Path of the config that the ticket is good for, from the root of this server: `/config/worker`.
    pub url: String,
    /// Proof of this attestation for [`super::ReportRequest::proof`], and for nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<SecretText>,
    /// Form of the config for this ticket; absent: plain JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigForm>,
}

/// Answer of [`super::EVIDENCE_PATH`] to the evidence of a rehearsal: what the gateway would decide about a machine that boots now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RehearsalResponse {
    /// Id of the record in the gateway's attestation log. Absent if the gateway only counts such a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Config set that the machine would get: `full` or `pre-approved`. Absent for a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// Name that the machine would have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The refusal, if it would be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Problem>,
    /// Set if the refusal is one that an administrator may accept: a pool with `[waiting]` lets the machine wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acceptable: bool,
    /// The pool's requirements on the measured boot, in the order of the checks.
    #[serde(default)]
    pub requirements: Vec<RehearsedRequirement>,
}

/// Requirement of the pool on the measured boot, and whether this boot meets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RehearsedRequirement {
    /// Section of `pool.toml` that has it.
    pub section: String,
    /// The requirement in words.
    pub requirement: String,
    /// Code of the refusal; absent if it is met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl fmt::Debug for EvidenceResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "EvidenceResponse {{ ticket: <secret>, expires: {}, url: {:?} }}",
            self.expires, self.url
        )
    }
}
