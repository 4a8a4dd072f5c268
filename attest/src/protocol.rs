//! The wire messages of the gateway's API, version 1, shared by both ends.
//!
//! JSON over TLS. Binary values are standard base64 with padding ([`Blob`]); TPM structures travel in the TPM's own wire
//! format. Unknown fields are refused: a field that one end does not understand must not be silently ignored.
//! `docs/protocol.md` describes the same messages for somebody who writes another client.

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// `GET`: what this server is. A Machine Config Server answers 404 here, so a node never sends its EK to one.
pub const DISCOVERY_PATH: &str = "/v1/attest";
/// `POST` [`ChallengeRequest`] → [`ChallengeResponse`].
pub const CHALLENGE_PATH: &str = "/v1/attest/challenge";
/// `POST` [`EvidenceRequest`] → [`EvidenceResponse`].
pub const EVIDENCE_PATH: &str = "/v1/attest/evidence";
/// `GET`/`HEAD` `{CONFIG_PREFIX}{pool}` → the Ignition config.
pub const CONFIG_PREFIX: &str = "/config/";
/// The value of [`Discovery::service`].
pub const SERVICE: &str = "attestation-gateway";
/// The value of [`Discovery::protocol`].
pub const VERSION: u32 = 1;
/// Content type of a [`Problem`] (RFC 9457).
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Largest body of a challenge request: an EK with its certificate and eight intermediates is under 24 KiB in base64.
pub const CHALLENGE_BODY_LIMIT_BYTES: usize = 64 * 1024;
/// Largest body of an evidence request: [`crate::tpm::event_log::LOG_LIMIT_BYTES`] in base64, the challenge, the quote.
pub const EVIDENCE_BODY_LIMIT_BYTES: usize = 2 * 1024 * 1024;

/// Bytes that travel as base64. `Debug` shows the length only, so a secret cannot slip into a log this way.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("standard base64 with padding")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Blob, E> {
                BASE64.decode(text.as_bytes()).map(Blob).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// A digest of 32, 48 or 64 bytes that travels as hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HexDigest(Vec<u8>);

impl HexDigest {
    /// Takes digest bytes as they are; `None` unless there are 32, 48 or 64 of them.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        matches!(bytes.len(), 32 | 48 | 64).then(|| Self(bytes.to_vec()))
    }

    /// Reads hexadecimal, upper or lower case.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        Self::new(&HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?)
    }

    /// The digest's bytes: 32, 48 or 64.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<[u8; 32]> for HexDigest {
    fn from(digest: [u8; 32]) -> Self {
        Self(digest.to_vec())
    }
}

impl fmt::Display for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HexDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HexDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("expected 64, 96 or 128 hexadecimal digits"))
    }
}

/// Answer of [`DISCOVERY_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// [`SERVICE`].
    pub service: String,
    /// [`VERSION`].
    pub protocol: u32,
    /// The kinds of evidence this gateway can verify: `"tpm"`.
    pub kinds: Vec<String>,
}

/// Body of [`CHALLENGE_PATH`]: who asks, and for which pool.
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

/// The public half of what a node attests with; one variant for each kind of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Attester {
    /// TPM 2.0.
    Tpm(TpmAttester),
}

/// A TPM's keys as the node presents them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmAttester {
    /// EK public area, TPMT_PUBLIC.
    pub ek_public: Blob,
    /// EK certificate as read from NV (DER, padding allowed), if the TPM has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_certificate: Option<Blob>,
    /// Intermediate certificates (DER) that the TPM carries. Used to build the chain only; never trusted as such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_intermediates: Vec<Blob>,
    /// AK public area, TPMT_PUBLIC.
    pub ak_public: Blob,
}

/// Answer of [`CHALLENGE_PATH`].
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

/// What a challenge asks for; one variant for each kind of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// TPM 2.0.
    Tpm(TpmTask),
}

/// Activate this credential, then quote these PCRs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmTask {
    /// TPM2B_ID_OBJECT for TPM2_ActivateCredential.
    pub credential_blob: Blob,
    /// TPM2B_ENCRYPTED_SECRET for TPM2_ActivateCredential.
    pub encrypted_secret: Blob,
    /// Bank to quote: `sha256`, `sha384` or `sha512`.
    pub pcr_bank: String,
    /// PCRs to quote, ascending.
    pub pcrs: Vec<u8>,
}

/// Body of [`EVIDENCE_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceRequest {
    /// [`ChallengeResponse::challenge`], unchanged.
    pub challenge: String,
    /// The evidence.
    pub evidence: Evidence,
}

/// Evidence of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Evidence {
    /// TPM 2.0.
    Tpm(TpmEvidence),
}

/// A TPM's evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmEvidence {
    /// SHA-256 of what TPM2_ActivateCredential returned: only the TPM that holds the EK and the AK can know it.
    pub secret_sha256: HexDigest,
    /// TPMS_ATTEST that the AK signed.
    pub quoted: Blob,
    /// TPMT_SIGNATURE over it.
    pub signature: Blob,
    /// PCR index → value, in the bank asked for: exactly the PCRs asked for.
    pub pcrs: BTreeMap<u8, HexDigest>,
    /// The firmware's TCG event log, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log: Option<Blob>,
}

/// Answer of [`EVIDENCE_PATH`]: the node is trusted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceResponse {
    /// To be presented as `Authorization: Bearer <ticket>`. A secret.
    pub ticket: String,
    /// Seconds since 1970 after which the ticket is refused.
    pub expires: u64,
    /// Path of the config that the ticket is good for, from the root of this server: `/config/worker`.
    pub url: String,
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

/// A refusal, as RFC 9457 has it, with two members of our own: `code` and `next_step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:attestation-gateway:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the code means, for a person.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Stable, machine-readable; `docs/errors.md` lists them all.
    pub code: String,
    /// What was wrong this time. Says nothing that the node did not send or could not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What the person at the console should do.
    pub next_step: String,
}
