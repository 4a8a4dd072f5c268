//! Evidence: from what a node sent to what it has proven.

use rustls_pki_types::UnixTime;
use subtle::ConstantTimeEq;

use crate::appraisal::AppraisalPolicy;
use crate::aws::sts::StsCall;
use crate::challenge::Challenge;
use crate::claims::{Claims, NodeIdentity, Proven};
use crate::endorsements::Endorsements;
use crate::kinds::{Kind, OtherKinds, Verifier, each_kind};
use crate::nonce::SpkiSha256;
use crate::protocol::{Blob, Evidence, HexDigest};
use crate::purpose;
use crate::reject::Reject;

/// Evidence, and what it answers.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The challenge, with its seal opened.
    pub challenge: &'a Challenge,
    /// The evidence that answers the challenge.
    pub evidence: &'a Evidence,
    /// Keys that the node may have seen this server use: the current one and, after a rotation, the one before.
    pub server_keys: &'a [SpkiSha256],
    /// Answer of AWS STS to the request that is part of the evidence.
    pub sts: Option<StsCall<'a>>,
    /// The name of the provisioning token that is part of the evidence, if the gateway has accepted it.
    pub token: Option<&'a str>,
    /// SHA-256 of the claimant that was part of the evidence, for a record that is verified again. A gateway has checked that claimant and
    /// not stored it. A client that shows evidence must show the claimant itself.
    pub claimant_sha256: Option<&'a HexDigest>,
}

impl<'a> Submission<'a> {
    /// Creates a submission without an STS answer, a token or a recorded claimant.
    #[must_use]
    pub const fn new(challenge: &'a Challenge, evidence: &'a Evidence, server_keys: &'a [SpkiSha256]) -> Self {
        Self {
            challenge,
            evidence,
            server_keys,
            sts: None,
            token: None,
            claimant_sha256: None,
        }
    }
}

/// Refuses evidence that cannot answer its challenge, by checks that cost less than spending the challenge. They compare the kinds, the
/// claimant that asked for the challenge, and what each kind shows without a signature. Evidence that passes has proven nothing by that,
/// except for a TPM that was asked to activate a credential.
///
/// A challenge that was not spent can be answered again. So this compares random values of 256 bits, of which a wrong guess teaches nothing, in constant
/// time, and what the sender has been told anyway.
///
/// # Errors
/// [`Reject`], as [`verify`] would refuse it, or another one of the reasons that it has.
pub fn screen(submission: &Submission<'_>) -> Result<(), Reject> {
    let Submission { challenge, evidence, .. } = *submission;
    let (asked, shown) = (challenge.subject.kinds(), evidence.kinds());
    if asked != shown || shown.is_empty() {
        return Err(Reject::KindsShown { asked, shown });
    }
    claimant(submission)?;
    let binding = challenge.binding(submission.server_keys);
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let (Some(subject), Some(evidence)) = (&challenge.subject.$member, &evidence.$member) {
                <$room>::screen(subject, evidence, &binding)?;
            }
        };
    }
    each_kind!(one);
    Ok(())
}

/// Verifies evidence: a pure function of its arguments, so that the same record has the same result years later.
///
/// # Errors
/// [`Reject`]: one variant for each thing that can be wrong.
pub fn verify(submission: &Submission<'_>, endorsements: &Endorsements, now: UnixTime) -> Result<Claims, Reject> {
    let Submission { challenge, evidence, .. } = *submission;
    if now.as_secs() > challenge.expires {
        return Err(Reject::ChallengeExpired {
            expires: challenge.expires,
            now: now.as_secs(),
        });
    }
    let (asked, shown) = (challenge.subject.kinds(), evidence.kinds());
    if asked != shown || shown.is_empty() {
        return Err(Reject::KindsShown { asked, shown });
    }
    let claimant_sha256 = claimant(submission)?;
    let (proven, server_key) = each(submission, endorsements, now)?;
    let (proven, MachineIdentity { key, instance }) = join(proven)?;
    // What only stands beside evidence says nothing of who the node is.
    let Some(identity) = key.or_else(|| instance.clone()) else {
        return Err(Reject::KindsShown { asked, shown });
    };
    Ok(Claims {
        identity,
        instance,
        kubelet_key_sha256: purpose::kubelet_key(&challenge.purpose).filter(|_| shown.iter().any(|kind| kind.signs_purpose())),
        kinds: shown,
        pool: challenge.pool.clone(),
        name: challenge.name.clone(),
        server_key,
        claimant_sha256,
        proven,
    })
}

/// Verifies each kind by itself; also returns the server key that the node saw.
fn each(submission: &Submission<'_>, endorsements: &Endorsements, now: UnixTime) -> Result<(Proven, Option<SpkiSha256>), Reject> {
    let Submission { challenge, evidence, .. } = *submission;
    let binding = challenge.binding(submission.server_keys);
    let held_against = endorsements.held_against(submission.sts, submission.token);
    let log = event_log(evidence);
    let (mut proven, mut server_key) = (Proven::default(), None);
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let (Some(subject), Some(evidence)) = (&challenge.subject.$member, &evidence.$member) {
                let nothing = Reject::NothingToHoldAgainst { kind: Kind::$kind };
                let held_against = held_against.$member.ok_or(nothing)?;
                let with_log = log.and_then(|log| <$room>::with_event_log(evidence, log));
                let evidence = with_log.as_ref().unwrap_or(evidence);
                let (proof, key) = <$room>::verify(subject, evidence, held_against, &binding, now)?;
                proven.$member = Some(proof);
                server_key = server_key.or(key);
            }
        };
    }
    each_kind!(one);
    Ok((proven, server_key))
}

/// The machine's event log, where it came with evidence that it is not the log of alone.
fn event_log(evidence: &Evidence) -> Option<&Blob> {
    let mut log = None;
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            log = log.or_else(|| evidence.$member.as_ref().and_then(<$room>::shared_event_log));
        };
    }
    each_kind!(one);
    log
}

/// Checks that the claimant that asked for the challenge also answers it. Returns the claimant, if there is one.
fn claimant(submission: &Submission<'_>) -> Result<Option<HexDigest>, Reject> {
    let asked = submission.challenge.subject.claimant_sha256.as_ref();
    let shown = submission.evidence.claimant_sha256();
    let is_asked = match (shown.as_ref().or(submission.claimant_sha256), asked) {
        (Some(shown), Some(asked)) => bool::from(shown.as_bytes().ct_eq(asked.as_bytes())),
        (None, None) => true,
        _ => false,
    };
    if !is_asked {
        return Err(Reject::Claimant);
    }
    Ok(asked.cloned())
}

/// The machine's identities according to all kinds.
#[derive(Default)]
struct MachineIdentity {
    key: Option<NodeIdentity>,
    instance: Option<NodeIdentity>,
}

impl MachineIdentity {
    /// Takes over the identities from the proof of another kind.
    fn is_that_of<K: Verifier>(&mut self, proof: &K::Proof) -> Result<(), Reject> {
        agree(&mut self.key, K::machine(proof))?;
        agree(&mut self.instance, K::instance(proof))
    }
}

fn agree(first: &mut Option<NodeIdentity>, said: Option<String>) -> Result<(), Reject> {
    match (&first, said.map(NodeIdentity::from_evidence)) {
        (Some(first), Some(second)) if *first != second => Err(Reject::IdentitiesDiffer {
            first: first.to_string(),
            second: second.to_string(),
        }),
        (None, said) => {
            *first = said;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Checks that all kinds are about the same machine; returns that machine.
fn join(mut proven: Proven) -> Result<(Proven, MachineIdentity), Reject> {
    macro_rules! joined {
        ($kind:ident, $member:ident, $room:ty) => {
            if let Some(proof) = proven.$member.take() {
                proven.$member = Some(<$room as OtherKinds<Proven, AppraisalPolicy>>::join(proof, &proven)?);
            }
        };
    }
    each_kind!(joined);
    let mut machine = MachineIdentity::default();
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let Some(proof) = &proven.$member {
                machine.is_that_of::<$room>(proof)?;
            }
        };
    }
    each_kind!(one);
    Ok((proven, machine))
}
