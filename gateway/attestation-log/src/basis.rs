//! Inputs of a decision: enough to make it again.

use std::collections::BTreeMap;

use attest::azure::attested_document::AzureCloud;
use attest::protocol::{Evidence, HexDigest};
use attest::{AppraisalPolicy, Challenge, NamedMachine, SpkiSha256};
use serde::{Deserialize, Serialize};

use super::delta::LogDifference;
use super::digests::RequestDigests;

/// All inputs of a decision about one node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Basis {
    /// Digests of the request, if it was refused before anything was proven: then all else is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<RequestDigests>,
    /// Challenge that was answered, and that cannot be answered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Challenge>,
    /// Evidence, without its event log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// SHA-256 of the event log, that of the TPM or of Azure's vTPM. Without a difference it is the name of its file among the blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_sha256: Option<String>,
    /// Difference of the event log from that of another boot, if only that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_difference: Option<LogDifference>,
    /// SHA-256 of a second event log, that of Azure's vTPM, if a TPM's quote with event log was shown as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_vtpm_event_log_sha256: Option<String>,
    /// Difference of that log from that of another boot, if only that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_vtpm_event_log_difference: Option<LogDifference>,
    /// Keys of the gateway at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_keys: Vec<SpkiSha256>,
    /// Set if the EK was on the allowlist.
    pub allowlisted: bool,
    /// Name that the administrator gave it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowlisted_name: Option<String>,
    /// SHA-256 of the usable CAs of TPM manufacturers, in PEM, one after the other: the name of their file among the blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_roots: Option<String>,
    /// SHA-256 of the DER of those that are not self-issued, but that the administrator names as roots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_named_roots: Vec<String>,
    /// Policy of the pool at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<AppraisalPolicy>,
    /// SHA-256 of the pool's inventory, if it has one: the name of its file among the blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<String>,
    /// Machine object of the cluster about the machine, if the cluster was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<NamedMachine>,
    /// Trust anchors, keys and answers that cloud evidence was verified with.
    #[serde(default, skip_serializing_if = "CloudBasis::is_empty")]
    pub cloud: CloudBasis,
    /// SHA-256 of the client certificate that was presented, whether it was valid or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_sha256: Option<String>,
    /// SHA-256 of each certificate of its chain, if that holds, the client's own first: the names of their files among the blobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_chain: Vec<String>,
    /// SHA-256 of each configured client CA: the names of their files among the blobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_authorities: Vec<String>,
    /// Names of the pool's nodes at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubelet_names: Vec<String>,
}

/// Inputs of the verification of cloud evidence. Certificates and keys are given by SHA-256: the names of their files among the blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudBasis {
    /// Google's keys, as a JWK set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub google_keys: Option<String>,
    /// Roots and intermediates of instances' vTPMs, if the pool accepts those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vtpm_roots: Option<Vec<String>>,
    /// AWS's certificates for identity documents, by region.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub region_certificates: BTreeMap<String, Vec<String>>,
    /// AWS's roots of NitroTPM documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nitro_roots: Vec<String>,
    /// Azure clouds whose attested documents are accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_clouds: Vec<AzureCloud>,
    /// The CAs of attested documents, configured and fetched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_certificates: Vec<String>,
    /// Azure's CAs of the AKs of vTPMs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_vtpm_roots: Vec<String>,
    /// Answer of AWS STS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sts_answer: Option<RecordedAnswer>,
    /// Name of the provisioning token that was shown with the evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// SHA-256 of the first-boot secret that was shown with the evidence. The secret itself is never kept: a program that has it, and that
    /// learns the cloud's statements about the instance, is taken to be the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimant_sha256: Option<HexDigest>,
}

impl CloudBasis {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RecordedAnswer {
    /// Returns the answer in the form for its verification.
    #[must_use]
    pub fn as_answer(&self) -> attest::aws::sts::StsResponse<'_> {
        attest::aws::sts::StsResponse {
            status: self.status,
            content_type: self.content_type.as_deref(),
            body: self.body.as_ref(),
        }
    }
}

/// An answer of AWS STS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedAnswer {
    /// Status code of the HTTP answer.
    pub status: u16,
    /// Value of the header `content-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub body: attest::protocol::Blob,
}
