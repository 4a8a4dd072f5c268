//! Challenges: what a node must answer, and everything the answer is held against.

use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::endorsements::Endorsements;
use crate::nonce::{NONCE_BYTES, PURPOSE_CONFIG, sha256};
use crate::protocol::{Attester, Blob, ChallengeRequest, HexDigest, Task, TpmAttester, TpmTask};
use crate::reject::Reject;
use crate::tpm::ak::AkPublic;
use crate::tpm::credential::{self, SECRET_BYTES};
use crate::tpm::pcr::PcrSelection;

/// Longest pool name in bytes; MachineConfigPool names are DNS labels.
pub const POOL_LIMIT_BYTES: usize = 63;
/// Longest node name in bytes: a DNS name.
pub const NAME_LIMIT_BYTES: usize = 253;
/// Most intermediate certificates that a TPM may present.
pub const INTERMEDIATES_LIMIT: usize = 8;

/// The other half of what a node was asked. The gateway keeps no state for it: it goes to the node *encrypted* and authenticated,
/// and comes back with the evidence. Encrypted, because it holds the digest of the secret that only the TPM may be able to know.
///
/// A `Challenge` is worth what its origin is worth: deserialise only what the gateway has opened with its own seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// Random; what is spent when the challenge is used.
    pub id: HexDigest,
    /// When it was issued, seconds since 1970.
    pub issued: u64,
    /// The last second at which it can be answered, since 1970.
    pub expires: u64,
    /// What the evidence is for.
    pub purpose: String,
    /// The pool the node wants to join.
    pub pool: String,
    /// The name the node wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 32 random bytes.
    pub nonce: Blob,
    /// Who is asked, and what.
    pub subject: Subject,
}

/// Who is asked, and what; one variant for each kind of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Subject {
    /// TPM 2.0.
    Tpm(TpmSubject),
}

/// What a TPM's answer is held against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmSubject {
    /// EK and AK as presented.
    pub attester: TpmAttester,
    /// SHA-256 of the secret in the credential.
    pub secret_sha256: HexDigest,
    /// The PCRs asked for.
    pub selection: PcrSelection,
}

/// A new challenge: one half is sealed, the other is what the node has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// To be sealed.
    pub challenge: Challenge,
    /// To be sent in the clear.
    pub task: Task,
}

impl Challenge {
    /// Answers a request for a challenge. Whatever can be refused now is refused now: an EK that nobody endorses, and an AK that
    /// could sign for others, never cost a credential.
    ///
    /// # Errors
    /// [`Reject`]: `malformed-request`, `tpm-malformed`, `algorithm-refused`, and the codes that begin with `ek-` and `ak-`.
    pub fn issue(
        request: &ChallengeRequest,
        endorsements: &Endorsements,
        selection: &PcrSelection,
        now: UnixTime,
        lifetime: Duration,
    ) -> Result<Issued, Reject> {
        check_request(request)?;
        let Attester::Tpm(attester) = &request.attester;
        let ak = AkPublic::parse(attester.ak_public.as_ref())?;
        let endorsed = endorsements.endorse(attester, now)?;

        let random = Random(SystemRandom::new());
        let nonce: Zeroizing<[u8; NONCE_BYTES]> = random.bytes()?;
        let id: Zeroizing<[u8; 32]> = random.bytes()?;
        let secret: Zeroizing<[u8; SECRET_BYTES]> = random.bytes()?;
        let credential = credential::make(&endorsed.ek, ak.name(), &secret).map_err(|_| Reject::Request {
            field: "ek_public",
            problem: "the key cannot be encrypted to",
        })?;

        let challenge = Self {
            id: HexDigest::from(*id),
            issued: now.as_secs(),
            expires: now.as_secs().saturating_add(lifetime.as_secs()),
            purpose: PURPOSE_CONFIG.to_owned(),
            pool: request.pool.clone(),
            name: request.name.clone(),
            nonce: Blob(nonce.to_vec()),
            subject: Subject::Tpm(TpmSubject {
                attester: attester.clone(),
                secret_sha256: HexDigest::from(sha256(&[&*secret])),
                selection: selection.clone(),
            }),
        };
        let task = Task::Tpm(TpmTask {
            credential_blob: Blob(credential.blob.to_bytes()),
            encrypted_secret: Blob(credential.encrypted_secret.to_bytes()),
            pcr_bank: selection.bank().to_string(),
            pcrs: selection.pcrs().iter().copied().collect(),
        });
        Ok(Issued { challenge, task })
    }
}

struct Random(SystemRandom);

impl Random {
    fn bytes<const N: usize>(&self) -> Result<Zeroizing<[u8; N]>, Reject> {
        let mut out = Zeroizing::new([0; N]);
        self.0.fill(&mut *out).map_err(|_| Reject::Request {
            field: "challenge",
            problem: "the system's random generator failed",
        })?;
        Ok(out)
    }
}

/// Whether a text can be a pool's name: it goes into paths, logs and store keys, so only what Kubernetes allows in names.
#[must_use]
pub fn is_pool_name(text: &str) -> bool {
    text.len() <= POOL_LIMIT_BYTES && is_dns(text)
}

/// Whether a text can be a node's name.
#[must_use]
pub fn is_node_name(text: &str) -> bool {
    text.len() <= NAME_LIMIT_BYTES && is_dns(text)
}

fn is_dns(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

fn check_request(request: &ChallengeRequest) -> Result<(), Reject> {
    let problem = "lower-case letters, digits, '-' and '.' only, and not too long";
    if !is_pool_name(&request.pool) {
        return Err(Reject::Request { field: "pool", problem });
    }
    if request.name.as_deref().is_some_and(|name| !is_node_name(name)) {
        return Err(Reject::Request { field: "name", problem });
    }
    let Attester::Tpm(attester) = &request.attester;
    if attester.ek_intermediates.len() > INTERMEDIATES_LIMIT {
        return Err(Reject::Request {
            field: "ek_intermediates",
            problem: "more than eight certificates",
        });
    }
    Ok(())
}
