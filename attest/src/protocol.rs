//! The wire messages of the gateway's API, version 1, shared by both ends.
//!
//! JSON over TLS. Binary values are standard base64 with padding ([`Blob`]); TPM structures travel in the TPM's own wire
//! format. Unknown fields are refused: a field that one end does not understand must not be silently ignored.
//! `docs/protocol.md` describes the same messages for somebody who writes another client.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

use crate::aws::sts::SignedRequest;
use crate::kind::Kind;
use crate::nonce::sha256;

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
/// The parameter of [`DISCOVERY_PATH`] that names the pool a node is about to ask for: `?pool=worker`.
pub const POOL_PARAMETER: &str = "pool";
/// The longest that a pool may have a node wait, seconds. Four hours: a night's outage is for people, and a session with a cloud's metadata
/// service outlives it.
pub const HOLD_LIMIT_SECONDS: u64 = 14_400;
/// How long a node waits that was told to come again, and not for how long, seconds.
pub const HOLD_DEFAULT_SECONDS: u64 = 3600;
/// A header of a node's request for its config: the code ([`HELD_TOO_LONG`], [`GATEWAY_UNREACHABLE`], [`TICKET_UNDELIVERABLE`]) of why it shows nothing, or less
/// than it could.
pub const NOT_ATTESTED_HEADER: &str = "attestation-not-attested";
/// The gateway has told the node to come again for as long as the pool has nodes wait.
pub const HELD_TOO_LONG: &str = "held-too-long";
/// A gateway has not answered for as long as the node's administrator has it wait.
pub const GATEWAY_UNREACHABLE: &str = "gateway-unreachable";
/// Nothing that the node's Ignition reads can be written, so that it could not use a ticket. The node says so itself, by a `HEAD` for its
/// config: Ignition reads no header where it reads no ticket.
pub const TICKET_UNDELIVERABLE: &str = "ticket-undeliverable";
/// Content type of a [`Problem`] (RFC 9457).
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Largest body of a challenge request: an EK with its certificate and eight intermediates is under 24 KiB in base64.
pub const CHALLENGE_BODY_LIMIT_BYTES: usize = 64 * 1024;
/// Largest body of an evidence request: [`crate::tpm::event_log::LOG_LIMIT_BYTES`] in base64, the challenge, the quote.
pub const EVIDENCE_BODY_LIMIT_BYTES: usize = 2 * 1024 * 1024;

/// Largest document of a cloud in an evidence request, as it travels: a PKCS#7 message of 32 KiB in base64, in lines. All others are smaller.
pub const DOCUMENT_LIMIT_BYTES: usize = 64 * 1024;

/// Length of [`Evidence::claimant`], in bytes: nobody can guess another's.
pub const CLAIMANT_BYTES: usize = 32;

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

/// A text that is worth something to whoever has it, such as an identity token. `Debug` shows the length only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.0.len())
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

/// A secret text, such as a provisioning token. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Takes a secret.
    #[must_use]
    pub const fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The secret.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

/// Gives a message with one optional member for each kind of evidence the set of kinds that it has.
macro_rules! kinds_of {
    ($type:ty) => {
        impl $type {
            /// The kinds of evidence in it.
            #[must_use]
            pub fn kinds(&self) -> std::collections::BTreeSet<Kind> {
                let members = [
                    (Kind::Tpm, self.tpm.is_some()),
                    (Kind::Gcp, self.gcp.is_some()),
                    (Kind::AwsIdentityDocument, self.aws_identity_document.is_some()),
                    (Kind::AwsNitroTpm, self.aws_nitro_tpm.is_some()),
                    (Kind::AwsSts, self.aws_sts.is_some()),
                    (Kind::Azure, self.azure.is_some()),
                    (Kind::Token, self.token.is_some()),
                ];
                members
                    .into_iter()
                    .filter_map(|(kind, there)| there.then_some(kind))
                    .collect()
            }
        }
    };
}
pub(crate) use kinds_of;

/// An object without members: there is nothing to say beyond the kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Answer of [`DISCOVERY_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// [`SERVICE`].
    pub service: String,
    /// [`VERSION`].
    pub protocol: u32,
    /// The kinds of evidence that this gateway can verify, by their words ([`Kind::as_str`]). A node offers no others.
    pub kinds: Vec<String>,
    /// How long a node of the pool that was asked about waits if it is told to come again, seconds. Only in the answer to who asks about a
    /// pool that is there: a node of an earlier release does not, and would not understand it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
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
    /// SHA-256 of [`Evidence::claimant`]: who claims the instance that evidence of a cloud is about.
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

/// An identity document, which by itself could come from anybody who has a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentAttester {
    /// [`Attester::claimant_sha256`], in messages of older nodes and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimant_sha256: Option<HexDigest>,
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
    /// An attested document of Azure for [`crate::azure::ImdsNonce`].
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

/// For whom an identity token has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcpTask {
    /// The gateway's own name, the same for all its nodes: a host name.
    pub gateway: String,
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

/// Evidence: exactly the kinds that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// TPM 2.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmEvidence>,
    /// An identity token of Google Compute Engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcp: Option<GcpEvidence>,
    /// An instance identity document of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_identity_document: Option<IdentityDocumentEvidence>,
    /// A NitroTPM attestation document of AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_nitro_tpm: Option<NitroTpmEvidence>,
    /// A request to AWS STS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_sts: Option<StsEvidence>,
    /// An attested document of Azure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureEvidence>,
    /// A provisioning token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenEvidence>,
    /// 32 random bytes, the same for all that this node does until it boots again: the first to claim an instance of a cloud is who has
    /// these. A secret, with which whoever hears what the cloud says of the instance would be the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimant: Option<Blob>,
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
    /// SHA-256 of the claimant; older nodes send it beside the identity document. `None` if there is none, or what cannot be one.
    #[must_use]
    pub fn claimant_sha256(&self) -> Option<HexDigest> {
        let beside_document = || self.aws_identity_document.as_ref()?.claimant.as_ref();
        let claimant = self.claimant.as_ref().or_else(beside_document)?.as_ref();
        // A short one could be guessed, whatever its digest is.
        (claimant.len() == CLAIMANT_BYTES).then(|| sha256(&[claimant]).into())
    }

    /// Takes the claimant out, so that whoever reads what is left is nobody.
    pub fn forget_claimant(&mut self) {
        self.claimant = None;
        if let Some(document) = &mut self.aws_identity_document {
            document.claimant = None;
        }
    }

    /// The first document that is larger than [`DOCUMENT_LIMIT_BYTES`], by its kind. What has no such document can be kept whole in a
    /// record; a TPM's event log has a limit of its own.
    #[must_use]
    pub fn too_large(&self) -> Option<Kind> {
        let request = |request: &SignedRequest| {
            let headers = request.headers.iter().map(|header| header.name.len() + header.value.len());
            headers.sum::<usize>() + request.method.len() + request.url.len() + request.body.len()
        };
        let sizes = [
            (Kind::Gcp, self.gcp.as_ref().map(|evidence| evidence.token.0.len())),
            (
                Kind::AwsIdentityDocument,
                self.aws_identity_document.as_ref().map(|evidence| {
                    let claimant = evidence.claimant.as_ref().or(self.claimant.as_ref());
                    evidence.pkcs7.0.len() + claimant.map_or(0, |claimant| claimant.0.len())
                }),
            ),
            (
                Kind::AwsNitroTpm,
                self.aws_nitro_tpm.as_ref().map(|evidence| evidence.document.0.len()),
            ),
            (Kind::AwsSts, self.aws_sts.as_ref().map(|evidence| request(&evidence.request))),
            (Kind::Azure, self.azure.as_ref().map(|evidence| evidence.signature.0.len())),
            (Kind::Token, self.token.as_ref().map(|evidence| evidence.token.reveal().len())),
        ];
        let large = |(kind, size): (Kind, Option<usize>)| size.filter(|size| *size > DOCUMENT_LIMIT_BYTES).map(|_| kind);
        sizes.into_iter().find_map(large)
    }
}

/// An identity token of Google Compute Engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcpEvidence {
    /// The JWT, as the metadata server gives it.
    pub token: Text,
}

/// An instance identity document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityDocumentEvidence {
    /// The PKCS#7 message, as the metadata server gives it: base64, in lines.
    pub pkcs7: Text,
    /// [`Evidence::claimant`], of older nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimant: Option<Blob>,
}

/// A NitroTPM attestation document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NitroTpmEvidence {
    /// The COSE_Sign1 message.
    pub document: Blob,
}

/// A request to AWS STS, signed by the node and to be sent by the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StsEvidence {
    /// The request.
    pub request: SignedRequest,
}

/// An attested document of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureEvidence {
    /// `signature` of the metadata server's answer: base64.
    pub signature: Text,
}

/// A provisioning token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEvidence {
    /// The token. A secret.
    pub token: SecretText,
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
