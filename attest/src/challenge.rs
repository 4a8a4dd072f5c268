//! Challenges: what a node must answer, and everything the answer is held against.

use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::appraisal::AppraisalPolicy;
use crate::aws::nitro_tpm::NitroTpmSubject;
use crate::azure::attested_document::{AzureSubject, NonceForm};
use crate::combination::Combination;
use crate::endorsements::Endorsements;
use crate::kinds::{Kind, kinds_of, members};
use crate::nonce::{NONCE_BYTES, PURPOSE_CONFIG};
use crate::protocol::{Attester, Blob, ChallengeRequest, GcpTask, HexDigest, IdentityDocumentAttester, Nothing, Task};
use crate::reject::Reject;
use crate::tpm::ak::AkPublic;
use crate::tpm::credential::SECRET_BYTES;
use crate::tpm::endorsements::EndorsedEk;
use crate::tpm::{TpmSubject, task};
use crate::withheld::Withheld;

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

members! {
    /// Who is asked, and what: one member for each kind of evidence that is asked for.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Subject {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub EvidenceKind::Subject,
        /// SHA-256 of the claimant that has to come with the evidence: whoever asked for the challenge is who answers it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub claimant_sha256: Option<HexDigest>,
    }
}

kinds_of!(Subject);

impl From<TpmSubject> for Subject {
    fn from(tpm: TpmSubject) -> Self {
        Self {
            tpm: Some(tpm),
            ..Self::default()
        }
    }
}

/// A new challenge: one half is sealed, the other is what the node has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// To be sealed.
    pub challenge: Challenge,
    /// To be sent in the clear.
    pub task: Task,
}

/// What a node is to be asked for: chosen by the pool's policy, with an EK that somebody vouches for if a TPM is part of it.
struct Chosen<'a> {
    kinds: &'a Combination,
    ek: Option<EndorsedEk>,
}

/// The first combination that the pool accepts and the node can show. A TPM that nobody vouches for is as good as none: a machine in a
/// cloud may have one, and be accepted for what the cloud says.
fn choose<'a>(
    request: &ChallengeRequest,
    endorsements: &Endorsements,
    policy: &'a AppraisalPolicy,
    now: UnixTime,
) -> Result<Chosen<'a>, Reject> {
    let offered = request.attester.kinds();
    let mut ek: Option<Result<EndorsedEk, Reject>> = None;
    let mut not_endorsed = None;
    for kinds in policy.accepts().iter().filter(|kinds| kinds.kinds().is_subset(&offered)) {
        let Some(tpm) = request.attester.tpm.as_ref().filter(|_| kinds.has(Kind::Tpm)) else {
            return Ok(Chosen { kinds, ek: None });
        };
        let endorse = || {
            AkPublic::parse(tpm.ak_public.as_ref())?;
            Ok(endorsements.tpm().endorse(tpm, now)?)
        };
        // Once for all combinations: a chain of certificates costs.
        match ek.take().unwrap_or_else(endorse) {
            Ok(endorsed) => {
                return Ok(Chosen { kinds, ek: Some(endorsed) });
            }
            Err(reject) if reject.is_not_endorsed() => {
                not_endorsed.get_or_insert_with(|| reject.clone());
                ek = Some(Err(reject));
            }
            Err(reject) => return Err(reject),
        }
    }
    Err(not_endorsed.unwrap_or_else(|| Reject::KindsOffered {
        offered,
        accepted: Withheld::alternatives(policy.accepts()),
    }))
}

impl Challenge {
    /// Answers a request for a challenge. Whatever can be refused now is refused now: an EK that nobody endorses, and an AK that
    /// could sign for others, never cost a credential.
    ///
    /// `gateway` is the gateway's own name, for evidence that names whom it is for.
    ///
    /// # Errors
    /// [`Reject`]: `malformed-request`, `evidence-not-accepted`, `tpm-malformed`, `algorithm-refused`, and the codes that begin with
    /// `ek-` and `ak-`.
    pub fn issue(
        request: &ChallengeRequest,
        endorsements: &Endorsements,
        policy: &AppraisalPolicy,
        gateway: &str,
        drawn: &Drawn,
        now: UnixTime,
        lifetime: Duration,
    ) -> Result<Issued, Reject> {
        check_request(request)?;
        let Chosen { kinds, ek } = choose(request, endorsements, policy, now)?;
        let claimant = request.attester.claimant_sha256(kinds.kinds());
        if claimant.is_none() && policy.first_use_binds(kinds.kinds()) {
            return Err(Reject::ClaimantMissing);
        }
        let (mut subject, mut task) = (Subject::default(), Task::default());
        if kinds.kinds().iter().any(|kind| kind.is_of_a_cloud()) {
            subject.claimant_sha256 = claimant.cloned();
        }
        if let (Some(ek), Some(attester)) = (ek, &request.attester.tpm) {
            let ak = AkPublic::parse(attester.ak_public.as_ref())?;
            let selection = policy.selection().ok_or(Reject::NothingToHoldAgainst { kind: Kind::Tpm })?;
            let (asked, credential) = task::ask(&ek, &ak, attester, selection, &drawn.secret).map_err(|_| Reject::Request {
                field: "ek_public",
                problem: "the key cannot be encrypted to",
            })?;
            (subject.tpm, task.tpm) = (Some(asked), Some(credential));
        }
        for kind in kinds.kinds() {
            match kind {
                Kind::Tpm => {}
                Kind::Gcp => {
                    let audience = GcpTask {
                        gateway: gateway.to_owned(),
                    };
                    (subject.gcp, task.gcp) = (Some(audience.clone()), Some(audience));
                }
                Kind::AwsIdentityDocument => {
                    subject.aws_identity_document = Some(IdentityDocumentAttester::default());
                    task.aws_identity_document = Some(Nothing {});
                }
                Kind::AwsNitroTpm => {
                    (subject.aws_nitro_tpm, task.aws_nitro_tpm) = (Some(NitroTpmSubject::default()), Some(Nothing {}));
                }
                Kind::AwsSts => (subject.aws_sts, task.aws_sts) = (Some(Nothing {}), Some(Nothing {})),
                Kind::Azure => {
                    let nonce = NonceForm::Alphanumeric32;
                    (subject.azure, task.azure) = (Some(AzureSubject { nonce }), Some(Nothing {}));
                }
                Kind::Token => (subject.token, task.token) = (Some(Nothing {}), Some(Nothing {})),
            }
        }
        let challenge = Self {
            id: HexDigest::from(drawn.id),
            issued: now.as_secs(),
            expires: now.as_secs().saturating_add(lifetime.as_secs()),
            purpose: PURPOSE_CONFIG.to_owned(),
            pool: request.pool.clone(),
            name: request.name.clone(),
            nonce: Blob(drawn.nonce.to_vec()),
            subject,
        };
        Ok(Issued { challenge, task })
    }

    /// Whether a challenge is still issued like this. One of before asks for less than is asked for today: it can be verified again, from a
    /// record, and must not be answered.
    #[must_use]
    pub fn is_of_today(&self) -> bool {
        self.subject
            .azure
            .is_none_or(|AzureSubject { nonce }| nonce == NonceForm::Alphanumeric32)
    }
}

/// What is drawn for one challenge.
pub struct Drawn {
    id: [u8; 32],
    nonce: Zeroizing<[u8; NONCE_BYTES]>,
    /// What only the TPM may be able to find, if one is asked.
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

impl Drawn {
    /// `None` if the system's random generator fails.
    #[must_use]
    pub fn draw() -> Option<Self> {
        let random = SystemRandom::new();
        let mut drawn = Self {
            id: [0; 32],
            nonce: Zeroizing::new([0; NONCE_BYTES]),
            secret: Zeroizing::new([0; SECRET_BYTES]),
        };
        random.fill(&mut drawn.id).ok()?;
        random.fill(&mut *drawn.nonce).ok()?;
        random.fill(&mut *drawn.secret).ok()?;
        Some(drawn)
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
    let Attester {
        tpm,
        aws_identity_document,
        claimant_sha256,
        ..
    } = &request.attester;
    if tpm.as_ref().is_some_and(|tpm| tpm.ek_intermediates.len() > INTERMEDIATES_LIMIT) {
        return Err(Reject::Request {
            field: "ek_intermediates",
            problem: "more than eight certificates",
        });
    }
    let beside_document = aws_identity_document
        .as_ref()
        .and_then(|attester| attester.claimant_sha256.as_ref());
    let claimants = [claimant_sha256.as_ref(), beside_document];
    if !claimants.iter().flatten().all(|digest| digest.as_bytes().len() == 32) {
        return Err(Reject::Request {
            field: "claimant_sha256",
            problem: "not a SHA-256 digest",
        });
    }
    if let [Some(first), Some(second)] = claimants
        && first != second
    {
        return Err(Reject::Request {
            field: "claimant_sha256",
            problem: "two claimants",
        });
    }
    Ok(())
}
