//! Digests of requests that were refused before anything was proven, so that unauthenticated clients neither fill the disk nor leave
//! anything of use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use attest::protocol::{ChallengeRequest, Evidence};
use serde::{Deserialize, Serialize};

use super::blobs::Blobs;

/// Digest and length of a part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestPart {
    /// SHA-256 in lower-case hexadecimal digits.
    pub sha256: String,
    pub bytes: usize,
}

/// Parts of a request, by their place in it: `tpm.ek_certificate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestDigests(BTreeMap<String, RequestPart>);

impl RequestDigests {
    /// Returns the digests of a request for a challenge: keys and certificates.
    #[must_use]
    pub fn from_request(request: &ChallengeRequest) -> Self {
        Self::from_parts(request.attester.parts())
    }

    /// Returns the digests of evidence, without its provisioning token and first-boot secret.
    #[must_use]
    pub fn from_evidence(evidence: &Evidence) -> Self {
        Self::from_parts(evidence.parts())
    }

    fn from_parts(parts: Vec<(String, Cow<'_, [u8]>)>) -> Self {
        let digest = |content: &[u8]| RequestPart {
            sha256: Blobs::name(content),
            bytes: content.len(),
        };
        Self(parts.into_iter().map(|(name, content)| (name, digest(&content))).collect())
    }
}
