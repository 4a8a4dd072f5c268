//! What was refused before anything was proven: by digests, so that whoever proves nothing fills no disk and leaves nothing of use.

use std::collections::BTreeMap;

use attest::protocol::{ChallengeRequest, Evidence};
use serde::{Deserialize, Serialize};

use super::blobs::Blobs;

/// Most of a TPM's intermediate certificates that have a digest each: as many as a TPM may present.
const INTERMEDIATES_LIMIT: usize = attest::challenge::INTERMEDIATES_LIMIT;

/// One part of what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// Its length.
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
        let mut digests = Self::default();
        if let Some(tpm) = &request.attester.tpm {
            digests.add("tpm.ek_public", tpm.ek_public.as_ref());
            digests.add("tpm.ak_public", tpm.ak_public.as_ref());
            if let Some(certificate) = &tpm.ek_certificate {
                digests.add("tpm.ek_certificate", certificate.as_ref());
            }
            for (index, certificate) in tpm.ek_intermediates.iter().take(INTERMEDIATES_LIMIT).enumerate() {
                digests.add(&format!("tpm.ek_intermediates.{index}"), certificate.as_ref());
            }
        }
        if let Some(vtpm) = &request.attester.azure_vtpm {
            digests.add("azure_vtpm.ak_public", vtpm.ak_public.as_ref());
            digests.add("azure_vtpm.ak_certificate", vtpm.ak_certificate.as_ref());
            for (index, certificate) in vtpm.ak_intermediates.iter().take(INTERMEDIATES_LIMIT).enumerate() {
                digests.add(&format!("azure_vtpm.ak_intermediates.{index}"), certificate.as_ref());
            }
        }
        digests
    }

    /// Of evidence. Of a provisioning token and of a claimant there is not even that.
    #[must_use]
    pub fn of_evidence(evidence: &Evidence) -> Self {
        let mut digests = Self::default();
        if let Some(tpm) = &evidence.tpm {
            digests.add("tpm.quoted", tpm.quoted.as_ref());
            digests.add("tpm.signature", tpm.signature.as_ref());
            if let Some(log) = &tpm.event_log {
                digests.add("tpm.event_log", log.as_ref());
            }
        }
        if let Some(gcp) = &evidence.gcp {
            digests.add("gcp.token", gcp.token.0.as_bytes());
        }
        if let Some(document) = &evidence.aws_identity_document {
            digests.add("aws_identity_document.pkcs7", document.pkcs7.0.as_bytes());
        }
        if let Some(document) = &evidence.aws_nitro_tpm {
            digests.add("aws_nitro_tpm.document", document.document.as_ref());
        }
        if let Some(sts) = &evidence.aws_sts {
            let redacted = serde_json::to_vec(&sts.request.redacted()).unwrap_or_default();
            digests.add("aws_sts.request", &redacted);
        }
        if let Some(document) = &evidence.azure {
            digests.add("azure.signature", document.signature.0.as_bytes());
        }
        if let Some(vtpm) = &evidence.azure_vtpm {
            digests.add("azure_vtpm.quoted", vtpm.quoted.as_ref());
            digests.add("azure_vtpm.signature", vtpm.signature.as_ref());
            if let Some(log) = &vtpm.event_log {
                digests.add("azure_vtpm.event_log", log.as_ref());
            }
        }
        digests
    }

    fn add(&mut self, part: &str, content: &[u8]) {
        let digest = Part {
            sha256: Blobs::name(content),
            bytes: content.len(),
        };
        self.0.insert(part.to_owned(), digest);
    }
}
