//! What a decision was made from: enough to make it again.

use std::collections::BTreeMap;

use attest::azure::attested_document::AzureCloud;
use attest::protocol::{Evidence, HexDigest};
use attest::{AppraisalPolicy, Challenge, NamedMachine, SpkiSha256};
use serde::{Deserialize, Serialize};

use super::digests::Digests;
use super::likeness::Difference;

/// See the module.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Basis {
    /// What the node sent, where it was refused before anything was proven: then there is nothing else here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<Digests>,
    /// The challenge that was answered, and that nobody can answer any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<Challenge>,
    /// The answer, without its event log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// SHA-256 of the event log, that of the TPM or of Azure's vTPM. Without a difference it is the name of its file among the blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_sha256: Option<String>,
    /// What it has that the log of another boot has not, if that is all of it that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_difference: Option<Difference>,
    /// The same of a second log, which came with the quote of Azure's vTPM although a TPM's stands beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_vtpm_event_log_sha256: Option<String>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_vtpm_event_log_difference: Option<Difference>,
    /// The gateway's keys at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_keys: Vec<SpkiSha256>,
    /// Whether the EK was on the allowlist.
    pub allowlisted: bool,
    /// The name that the administrator gave it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowlisted_name: Option<String>,
    /// SHA-256 of each configured root and intermediate: the names of their files among the blobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_roots: Vec<String>,
    /// Those of them that are roots because the administrator names them so, although they are not self-issued.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_named_roots: Vec<String>,
    /// The pool's policy at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<AppraisalPolicy>,
    /// SHA-256 of the pool's inventory, if it has one: the name of its file among the blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<String>,
    /// What the cluster's Machine objects said of the machine, if they were asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<NamedMachine>,
    /// What evidence of clouds was held against.
    #[serde(default, skip_serializing_if = "CloudBasis::is_empty")]
    pub cloud: CloudBasis,
    /// SHA-256 of the client certificate that was presented, whatever it is worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_sha256: Option<String>,
    /// SHA-256 of each certificate of its chain, if that holds, the client's own first: the names of their files among the blobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_chain: Vec<String>,
    /// SHA-256 of each configured client CA, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_authorities: Vec<String>,
    /// The names of the pool's nodes at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubelet_names: Vec<String>,
}

/// What evidence of clouds was held against. Certificates and keys by SHA-256: the names of their files among the blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CloudBasis {
    /// Google's keys: a JWK set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub google_keys: Option<String>,
    /// The roots and intermediates of instances' vTPMs, if those were what the pool takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vtpm_roots: Option<Vec<String>>,
    /// AWS's certificates for identity documents, by region.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub region_certificates: BTreeMap<String, Vec<String>>,
    /// AWS's roots of NitroTPM documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nitro_roots: Vec<String>,
    /// Whose attested documents are taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_clouds: Vec<AzureCloud>,
    /// The CAs of attested documents, configured and fetched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_certificates: Vec<String>,
    /// Azure's CAs of the AKs of vTPMs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub azure_vtpm_roots: Vec<String>,
    /// What AWS STS has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sts_answer: Option<RecordedAnswer>,
    /// The name of the provisioning token that was shown beside the evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// SHA-256 of the claimant that was shown beside the evidence. The claimant itself is never kept: whoever has it, and hears what the
    /// cloud says of the instance, is the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimant_sha256: Option<HexDigest>,
}

impl CloudBasis {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RecordedAnswer {
    /// The answer, to be verified.
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
    /// The HTTP status.
    pub status: u16,
    /// The header `content-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub body: attest::protocol::Blob,
}
