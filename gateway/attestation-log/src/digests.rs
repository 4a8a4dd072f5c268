//! What was refused before anything was proven: by digests, so that whoever proves nothing fills no disk and leaves nothing of use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use attest::protocol::{ChallengeRequest, Evidence};
use serde::{Deserialize, Serialize};

use super::blobs::Blobs;

/// One part of what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    pub bytes: usize,
}

/// The parts of a request, by where they stood in it: `tpm.ek_certificate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digests(BTreeMap<String, Part>);

impl Digests {
    /// Of a request for a challenge: keys and certificates.
    #[must_use]
    pub fn of_request(request: &ChallengeRequest) -> Self {
        Self::of(request.attester.parts())
    }

    /// Of evidence. Of a provisioning token and of a claimant there is not even that.
    #[must_use]
    pub fn of_evidence(evidence: &Evidence) -> Self {
        Self::of(evidence.parts())
    }

    fn of(parts: Vec<(String, Cow<'_, [u8]>)>) -> Self {
        let digest = |content: &[u8]| Part {
            sha256: Blobs::name(content),
            bytes: content.len(),
        };
        Self(parts.into_iter().map(|(name, content)| (name, digest(&content))).collect())
    }
}
