//! The wire messages of the gateway's API, version 1, shared by both ends.
//!
//! JSON over TLS. Binary values are standard base64 with padding ([`Blob`]); TPM structures travel in the TPM's own wire format. Unknown
//! fields are refused: a field that one end does not understand must not be silently ignored. `docs/reference/protocol.md` describes the same
//! messages for authors of other clients.

mod challenge;
mod evidence;
mod report;

use serde::{Deserialize, Serialize};

pub use crate::aws::identity_document::IdentityDocumentEvidence;
pub use crate::aws::nitro_tpm::NitroTpmEvidence;
pub use crate::aws::sts::StsEvidence;
pub use crate::azure::attested_document::AzureEvidence;
pub use crate::gcp::{GcpEvidence, GcpTask};
pub use crate::token::TokenEvidence;
pub use crate::tpm::{TpmAttester, TpmEvidence, TpmTask};
pub use crate::values::{BearerText, Blob, HexDigest, Nothing, SecretText};
pub use challenge::{Attester, ChallengeRequest, ChallengeResponse, Task};
pub use evidence::{
    ConfigCompression, ConfigForm, ConfigFormats, Evidence, EvidenceRequest, EvidenceResponse, RehearsalResponse, RehearsedRequirement,
};
pub use report::{REPORT_ERROR_LIMIT_CHARS, REPORT_JOURNAL_LIMIT_BYTES, ReportRequest, ReportResponse, ReportStage, is_unit};

/// `GET`: the kind of this server. A Machine Config Server answers 404 here, so a node never sends its EK to one.
pub const DISCOVERY_PATH: &str = "/v1/attest";
/// `POST` [`ChallengeRequest`] → [`ChallengeResponse`].
pub const CHALLENGE_PATH: &str = "/v1/attest/challenge";
/// `POST` [`EvidenceRequest`] → [`EvidenceResponse`]; in a rehearsal [`RehearsalResponse`].
pub const EVIDENCE_PATH: &str = "/v1/attest/evidence";
/// `POST` [`ReportRequest`] → [`ReportResponse`].
pub const REPORT_PATH: &str = "/v1/report";
/// `GET`/`HEAD` `{CONFIG_PREFIX}{pool}` → the Ignition config.
pub const CONFIG_PREFIX: &str = "/config/";
/// The value of [`Discovery::service`].
pub const SERVICE: &str = "attestation-gateway";
/// The value of [`Discovery::protocol`].
pub const VERSION: u32 = 1;
/// The parameter of [`DISCOVERY_PATH`] that names the pool a node is about to ask for: `?pool=worker`.
pub const POOL_PARAMETER: &str = "pool";
/// The parameter of [`DISCOVERY_PATH`] by which a node says that it has a key for its kubelet, and understands [`Discovery::kubelet_key`].
pub const KUBELET_KEY_PARAMETER: &str = "kubelet-key";
/// The longest that a pool may have a node wait, seconds. Four hours: a night's outage is for people, and a session with a cloud's metadata
/// service outlives it.
pub const HOLD_LIMIT_SECONDS: u64 = 14_400;
/// Time that a node waits after a 503 with Retry-After if the gateway sets no limit, in seconds.
pub const HOLD_DEFAULT_SECONDS: u64 = 3600;
/// Prefix of every ticket, and of no provisioning token: both travel in the same header.
pub const TICKET_PREFIX: &str = "ticket.";
/// A header of a node's request for its config: why it shows nothing, or less than it could. A code ([`RETRY_LIMIT_EXCEEDED`], [`GATEWAY_UNREACHABLE`],
/// [`TICKET_UNDELIVERABLE`], or that of the [`Problem`] by which a gateway refused its evidence), and after a blank [`Problem::decision`].
pub const NOT_ATTESTED_HEADER: &str = "attestation-not-attested";
/// Header of a node's request for its config, in addition to a provisioning token: the claimant that identifies this node if it asks again
/// after its first boot has started over. [`CLAIMANT_BYTES`] bytes in base64url without padding. A secret.
pub const CLAIMANT_HEADER: &str = "attestation-claimant";

/// Header by which a node, and its Ignition, name their boot: the random id that their kernel gives it, a UUID. It joins the node's console and
/// journal, the gateway's log and its records. It is a claim that any client can make.
pub const BOOT_ID_HEADER: &str = "attestation-boot-id";
/// Length of a boot id, in characters.
const BOOT_ID_CHARACTERS: usize = 36;

/// Returns whether a text has the form of a boot id.
#[must_use]
pub fn is_boot_id(text: &str) -> bool {
    text.len() == BOOT_ID_CHARACTERS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}
/// Code for a gateway that has answered 503 with Retry-After until the pool's limit for waiting.
pub const RETRY_LIMIT_EXCEEDED: &str = "retry-limit-exceeded";
/// A gateway has not answered for as long as the node's administrator has it wait.
pub const GATEWAY_UNREACHABLE: &str = "gateway-unreachable";
/// Code for a node that cannot write any file that its Ignition reads, so that it could not use a ticket. The node reports it by a `HEAD`
/// request for its config: a header in the pointer would not reach Ignition either.
pub const TICKET_UNDELIVERABLE: &str = "ticket-undeliverable";
/// Code of a gateway that takes no reports.
pub const REPORTS_OFF: &str = "reports-off";
/// Code for a report whose proof the gateway does not accept: without the proof it may.
pub const REPORT_PROOF_INVALID: &str = "report-proof-invalid";
/// Content type of a [`Problem`] (RFC 9457).
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Largest body of a challenge request: an EK with its certificate and eight intermediates is under 24 KiB in base64.
pub const CHALLENGE_BODY_LIMIT_BYTES: usize = 64 * 1024;
/// Largest body of an evidence request: [`crate::tpm::LOG_LIMIT_BYTES`] in base64, the challenge, the quote.
pub const EVIDENCE_BODY_LIMIT_BYTES: usize = 2 * 1024 * 1024;

/// Largest body of a report: [`REPORT_JOURNAL_LIMIT_BYTES`] of which JSON escapes each, the proof, the error.
pub const REPORT_BODY_LIMIT_BYTES: usize = 160 * 1024;

/// Largest document of a cloud in an evidence request, as it travels: a PKCS#7 message of 32 KiB in base64, in lines. All others are smaller.
pub const DOCUMENT_LIMIT_BYTES: usize = 64 * 1024;

/// Length of [`Evidence::claimant`], in bytes: too long to be guessed.
pub const CLAIMANT_BYTES: usize = 32;

/// Answer to a request for [`DISCOVERY_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// Name of the service: [`SERVICE`].
    pub service: String,
    /// Version of the protocol: [`VERSION`].
    pub protocol: u32,
    /// The kinds of evidence that this gateway can verify, by their words ([`crate::Kind::as_str`]). A node offers no others.
    pub kinds: Vec<String>,
    /// Time that a node of the pool in the request waits after a 503 with Retry-After, in seconds. Only in the answer to a request that
    /// names an existing pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
    /// `true` if a challenge accepts [`ChallengeRequest::kubelet_key_sha256`], and the node is to attest such a key. Present for a node
    /// that asks with [`KUBELET_KEY_PARAMETER`], and for nodes of a pool whose CSRs are approved only for attested keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_key: Option<bool>,
}

/// A refusal, as RFC 9457 has it, with two members of our own: `code` and `next_step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// URI of the type: `urn:attestation-gateway:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Meaning of the code, for a person.
    pub title: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Stable, machine-readable; `docs/reference/codes.md` lists them.
    pub code: String,
    /// Cause of this refusal. Contains nothing that the node did not send or could not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Next step for the person at the console.
    pub next_step: String,
    /// The record of it in the gateway's attestation log, if there is one: its `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
}
