//! Challenges: the requests to a node, and the values that its answer is verified against.

use std::collections::BTreeMap;
use std::time::Duration;

pub use attest_wire::names::{NAME_LIMIT_BYTES, POOL_LIMIT_BYTES, is_node_name, is_pool_name};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::appraisal::AppraisalPolicy;
use crate::combination::Combination;
use crate::endorsements::{Endorsements, VerificationInput};
use crate::kinds::{Asking, EvidenceKind, Kind, KindRefusal, Rulebook, Verifier, each_kind, kinds_of, members};
use crate::nonce::{EvidenceBinding, NONCE_BYTES, PURPOSE_CONFIG, SpkiSha256};
use crate::protocol::{Attester, Blob, ChallengeRequest, HexDigest, Task};
use crate::purpose;
use crate::reject::Reject;
use crate::tpm::TpmSubject;
use crate::tpm::credential::SECRET_BYTES;
pub use crate::tpm::ek_certificate::INTERMEDIATES_LIMIT;
use crate::withheld::Withheld;

/// The other half of what a node was asked. The gateway keeps no state for it: it goes to the node *encrypted* and authenticated,
/// and comes back with the evidence. Encrypted, because it holds the digest of the secret that only the TPM may be able to know.
///
/// A `Challenge` is worth what its origin is worth: deserialise only what the gateway has opened with its own seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// Random; what is spent when the challenge is used.
    pub id: HexDigest,
    /// Time of issue, in seconds since 1970.
    pub issued: u64,
    /// The last second at which it can be answered, since 1970.
    pub expires: u64,
    /// Purpose of the evidence, to which the answer is bound.
    pub purpose: String,
    /// The pool the node wants to join.
    pub pool: String,
    /// The name the node wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Nonce of 32 random bytes.
    pub nonce: Blob,
    /// The attester and what it was asked, by kind of evidence.
    pub subject: Subject,
}

members! {
    /// The attester and what it was asked: one member for each kind of evidence that is asked for.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Subject {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub EvidenceKind::Subject,
        /// SHA-256 of the claimant that must come with the evidence: only the client that asked for the challenge may answer it.
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
pub struct NewChallenge {
    /// The challenge, which the gateway has to seal.
    pub challenge: Challenge,
    /// The task, which is sent in the clear.
    pub task: Task,
}

/// Request to a node: the kinds, and both halves of what is asked.
struct Chosen<'a> {
    kinds: &'a Combination,
    subject: Subject,
    task: Task,
}

/// Chooses the first combination that the pool accepts and the node can show. An unusable offer, such as a TPM without endorsement, rules
/// out the combinations with it.
fn choose<'a>(
    attester: &Attester,
    held_against: &VerificationInput<'_>,
    policy: &'a AppraisalPolicy,
    asking: &Asking<'_>,
) -> Result<Chosen<'a>, Reject> {
    let offered = attester.kinds();
    // Once for all combinations: a chain of certificates costs.
    let mut as_good_as_none = BTreeMap::new();
    for kinds in policy.accepts().iter().filter(|kinds| kinds.kinds().is_subset(&offered)) {
        if as_good_as_none.keys().any(|kind| kinds.has(*kind)) {
            continue;
        }
        match ask(attester, kinds, held_against, policy, asking) {
            Ok((subject, task)) => return Ok(Chosen { kinds, subject, task }),
            Err(unasked) if unasked.is_as_good_as_none => {
                as_good_as_none.insert(unasked.kind, unasked.reject);
            }
            Err(unasked) => return Err(unasked.reject),
        }
    }
    Err(as_good_as_none.into_values().next().unwrap_or_else(|| Reject::KindsOffered {
        offered,
        accepted: Withheld::alternatives(policy.accepts()),
    }))
}

/// Reason why a kind is not asked for.
struct Unasked {
    kind: Kind,
    reject: Reject,
    is_as_good_as_none: bool,
}

/// Makes both halves of the request to a node for these kinds.
fn ask(
    attester: &Attester,
    kinds: &Combination,
    held_against: &VerificationInput<'_>,
    policy: &AppraisalPolicy,
    asking: &Asking<'_>,
) -> Result<(Subject, Task), Unasked> {
    let (mut subject, mut task) = (Subject::default(), Task::default());
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let (true, Some(offer)) = (kinds.has(Kind::$kind), &attester.$member) {
                let (asked, told) = ask_one::<$room>(Kind::$kind, offer, held_against.$member, policy, asking)?;
                (subject.$member, task.$member) = (Some(asked), Some(told));
            }
        };
    }
    each_kind!(one);
    Ok((subject, task))
}

fn ask_one<K>(
    kind: Kind,
    offer: &K::Offer,
    held_against: Option<K::VerificationInput<'_>>,
    policy: &AppraisalPolicy,
    asking: &Asking<'_>,
) -> Result<(K::Subject, K::Task), Unasked>
where
    K: Verifier,
    AppraisalPolicy: Rulebook<K>,
    Reject: From<K::Error>,
{
    let rules = Rulebook::<K>::rules(policy).ok_or(KindRefusal::NothingToHoldAgainst(kind));
    let asked = rules.and_then(|rules| K::ask(offer, held_against, rules, asking));
    asked.map_err(|refusal| Unasked {
        kind,
        is_as_good_as_none: matches!(&refusal, KindRefusal::Own(error) if K::is_as_good_as_none(error)),
        reject: refusal.into(),
    })
}

impl Challenge {
    /// Answers a request for a challenge. Refuses early whatever can be refused early: an EK without endorsement, or an AK that could sign
    /// for others, never costs a credential.
    ///
    /// `gateway` is the gateway's own name, for evidence that names its recipient.
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
    ) -> Result<NewChallenge, Reject> {
        let key = check_request(request)?;
        let asking = Asking {
            gateway,
            secret: &drawn.secret,
            now,
        };
        let Chosen { kinds, mut subject, task } = choose(&request.attester, &endorsements.held_against(None, None), policy, &asking)?;
        let claimant = request.attester.claimant_sha256.as_ref();
        if claimant.is_none() && policy.first_use_binds(kinds.kinds()) {
            return Err(Reject::ClaimantMissing);
        }
        if kinds.kinds().iter().any(|kind| kind.is_of_a_cloud()) {
            subject.claimant_sha256 = claimant.cloned();
        }
        let challenge = Self {
            id: HexDigest::from(drawn.id),
            issued: now.as_secs(),
            expires: now.as_secs().saturating_add(lifetime.as_secs()),
            purpose: match key {
                _ if request.rehearsal => purpose::REHEARSAL.to_owned(),
                Some(key) => purpose::with_kubelet_key(&key),
                None => PURPOSE_CONFIG.to_owned(),
            },
            pool: request.pool.clone(),
            name: request.name.clone(),
            nonce: Blob(drawn.nonce.to_vec()),
            subject,
        };
        Ok(NewChallenge { challenge, task })
    }

    /// Returns whether the evidence is for a rehearsal: nothing may be given or kept for it.
    #[must_use]
    pub fn is_rehearsal(&self) -> bool {
        self.purpose == purpose::REHEARSAL
    }

    /// Returns the values that the answering evidence must be bound to, with the keys that the node may have seen the server use.
    #[must_use]
    pub fn binding<'a>(&'a self, server_keys: &'a [SpkiSha256]) -> EvidenceBinding<'a> {
        EvidenceBinding {
            nonce: self.nonce.as_ref(),
            purpose: &self.purpose,
            pool: &self.pool,
            server_keys,
        }
    }
}

/// Random values of one challenge.
pub struct Drawn {
    id: [u8; 32],
    nonce: Zeroizing<[u8; NONCE_BYTES]>,
    /// Secret that only the TPM must be able to recover, if a TPM is asked.
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

/// Checks that a request is within its bounds; returns the key of the node's kubelet, if it names one.
fn check_request(request: &ChallengeRequest) -> Result<Option<SpkiSha256>, Reject> {
    let problem = "lower-case letters, digits, '-' and '.' only, and not too long";
    if !is_pool_name(&request.pool) {
        return Err(Reject::Request { field: "pool", problem });
    }
    if request.name.as_deref().is_some_and(|name| !is_node_name(name)) {
        return Err(Reject::Request { field: "name", problem });
    }
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let Some(offer) = &request.attester.$member {
                <$room>::check_offer(offer)?;
            }
        };
    }
    each_kind!(one);
    if request
        .attester
        .claimant_sha256
        .as_ref()
        .is_some_and(|digest| digest.as_bytes().len() != 32)
    {
        return Err(Reject::Request {
            field: "claimant_sha256",
            problem: "not a SHA-256 digest",
        });
    }
    // A rehearsal leaves no trace by which a guessed token could be noticed.
    if request.rehearsal && (request.kubelet_key_sha256.is_some() || request.attester.token.is_some()) {
        return Err(Reject::Request {
            field: "rehearsal",
            problem: "without a key and without a token only",
        });
    }
    let key = request.kubelet_key_sha256.clone().map(SpkiSha256::try_from);
    key.transpose().map_err(|_| Reject::Request {
        field: "kubelet_key_sha256",
        problem: "not a SHA-256 digest",
    })
}
