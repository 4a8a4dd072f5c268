//! Traits that a kind of evidence implements in its own module.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use attest_wire::kinds::Messages;
use rustls_pki_types::UnixTime;
use zeroize::Zeroizing;

use super::Kind;
use crate::advice::Advice;
use crate::nonce::{EvidenceBinding, SpkiSha256};
use crate::observation::Observation;
use crate::reference_sets::{NewValue, ReferenceSets};
use crate::values::Blob;

/// A kind of evidence, by its types in the structures for all kinds, in addition to those of its messages.
pub trait EvidenceKind: Messages {
    /// Expected values of the answer: its member of the sealed [`crate::Subject`].
    type Subject;
    /// A pool's rules for this kind: its member of [`crate::appraisal::Rules`].
    type Rules;
    /// Proven claims of this kind: its member of [`crate::Claims`], and of records.
    type Proof;
    /// Reason for a refusal: its variant of [`crate::Reject`].
    type Error;
}

/// Identities of one form: `prefix:` and what fits.
pub(crate) struct IdentityForm {
    /// The part before the colon.
    pub(crate) prefix: &'static str,
    /// The whole form, for people.
    pub(crate) form: &'static str,
    /// Returns whether a text fits after the colon, in the module's own spelling.
    pub(crate) fits: fn(&str) -> bool,
}

impl IdentityForm {
    /// Returns whether an identity has this form.
    pub(crate) fn is_of(&self, identity: &str) -> bool {
        let rest = identity.strip_prefix(self.prefix).and_then(|rest| rest.strip_prefix(':'));
        rest.is_some_and(self.fits)
    }
}

/// Counters that a TPM has signed: they never go back, unless the TPM is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// TPM Resets (boots) since the last TPM2_Clear.
    pub reset_count: u32,
    /// TPM Restarts and Resumes since the last Reset.
    pub restart_count: u32,
    /// Milliseconds the TPM has been powered, over its life.
    pub clock_ms: u64,
    /// Set if no higher clock value can have been reported earlier.
    pub clock_safe: bool,
    /// Firmware version of the TPM, as its manufacturer counts: it goes back only if an older version is installed.
    pub firmware_version: u64,
}

/// Result for the PCRs of a node that was trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pcrs {
    /// The pool accepts them, and what was booted.
    Accepted,
    /// The pool observes, and does not accept all that was booted.
    Observed,
}

impl fmt::Display for Pcrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Observed => "observed",
        })
    }
}

/// Request to a node: one half for the seal, one for the node.
pub(crate) type Asked<K> = Result<(<K as EvidenceKind>::Subject, <K as Messages>::Task), KindRefusal<<K as EvidenceKind>::Error>>;

/// Proof from evidence, and the server key that the node saw, if the evidence itself says so.
pub(crate) type Verified<K> = Result<(<K as EvidenceKind>::Proof, Option<SpkiSha256>), KindRefusal<<K as EvidenceKind>::Error>>;

/// Request, verification and appraisal of one kind of evidence. Code that covers all kinds calls these, one kind after the other.
pub(crate) trait Verifier: EvidenceKind {
    /// Verification input apart from the challenge: the administrator's trust anchors, or a third party's answer about this very evidence.
    type VerificationInput<'a>: Copy;

    /// Set if a pool may have rules for this kind without accepting it.
    const RULES_MAY_GO_UNUSED: bool = false;

    /// Every code that it can be refused with.
    const ADVICE: &'static [&'static [Advice]];
    /// Forms of the identities that this kind assigns to machines.
    const IDENTITIES: &'static [IdentityForm];

    /// Members of its proof, as records have them, that belong to the measured boot. Records do not have `boot`: only a condition gets it.
    const BOOTED: &'static [&'static str] = &[];

    /// Checks that a node's offer is within its bounds, before anything else is looked at.
    fn check_offer(_: &Self::Offer) -> Result<(), KindRefusal<Self::Error>> {
        Ok(())
    }

    /// Makes the request for a node with this offer. Refuses early whatever can be refused early.
    fn ask(offer: &Self::Offer, held_against: Option<Self::VerificationInput<'_>>, rules: &Self::Rules, asking: &Asking<'_>)
    -> Asked<Self>;

    /// Returns whether an offer that is refused with this error counts as no offer: then the node is asked for something else.
    fn is_as_good_as_none(_: &Self::Error) -> bool {
        false
    }

    /// Returns the event log of the firmware that came with the evidence, if it also serves the other evidence. A machine has one log,
    /// regardless of which of its TPM's keys has quoted.
    fn shared_event_log(_: &Self::Evidence) -> Option<&Blob> {
        None
    }

    /// The evidence with the event log that came with another kind's; `None` where it has its own, or needs none.
    fn with_event_log(_: &Self::Evidence, _log: &Blob) -> Option<Self::Evidence> {
        None
    }

    /// Refuses evidence that cannot be the answer to what was asked, by what costs next to nothing: [`crate::screen`].
    fn screen(_: &Self::Subject, _: &Self::Evidence, _: &EvidenceBinding<'_>) -> Result<(), KindRefusal<Self::Error>> {
        Ok(())
    }

    /// Verifies the evidence as the answer to what was asked.
    fn verify(
        subject: &Self::Subject,
        evidence: &Self::Evidence,
        held_against: Self::VerificationInput<'_>,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self>;

    /// Returns the stable identity of the machine by a key that no other machine has: it takes precedence over that of an instance.
    fn machine(_: &Self::Proof) -> Option<String> {
        None
    }

    /// The stable identity of the instance of a cloud that it is about.
    fn instance(proof: &Self::Proof) -> Option<String>;

    /// Returns the reason for which the node was trusted, for a person; `pcrs` is the result for its PCRs. Auditors compare the text with
    /// that of older records, so it depends only on the proof and on that result.
    fn reason(proof: &Self::Proof, pcrs: Pcrs) -> String;

    /// Returns the counters of the TPM that has signed, if the evidence has them.
    fn counters(_: &Self::Proof) -> Option<Counters> {
        None
    }

    /// The PCRs that the rules have quoted, where evidence of this kind quotes what is asked.
    fn asked_pcrs(_: &Self::Rules) -> Option<BTreeSet<u8>> {
        None
    }

    /// Returns whether the instance's own TPM has attested: no other client can have been first with it.
    fn is_of_the_instances_own_tpm(_: &Self::Proof) -> bool {
        false
    }

    /// Checks that the rules make sense in a combination of kinds with this one.
    fn check_rules(_: &Self::Rules, _together: &BTreeSet<Kind>) -> Result<(), &'static str> {
        Ok(())
    }

    /// Returns whether the rules look for anything in the pool's sets of reference values.
    fn wants_reference_sets(_: &Self::Rules) -> bool {
        false
    }

    /// Removes the requirement that the machine has not finished its boot.
    fn allow_after_boot(_: &mut Self::Rules) {}

    /// Sets the pool's sets of reference values in the rules.
    fn use_reference_sets(_: &mut Self::Rules, _: &Arc<ReferenceSets>) {}

    /// Returns the rules for which the pool's sets have no value, in words.
    fn without_values(_: &Self::Rules) -> Vec<String> {
        Vec::new()
    }

    /// Returns the shown values that the rules look for in the pool's sets and that no set has, not even as an expired value.
    fn unlisted(_: &Self::Proof, _: &Self::Rules) -> Vec<NewValue> {
        Vec::new()
    }

    /// The sets that the rules were given.
    fn reference_sets(_: &Self::Rules) -> Option<&ReferenceSets> {
        None
    }

    /// Returns whether a copy of the evidence would prove as much, among these kinds.
    fn is_worth_a_copy(_together: &BTreeSet<Kind>) -> bool {
        false
    }

    /// Compares what was proven of the machine, by these kinds together, with what the pool accepts.
    fn appraise(proof: &Self::Proof, rules: &Self::Rules, together: &BTreeSet<Kind>, now: UnixTime)
    -> Result<(), KindRefusal<Self::Error>>;

    /// Compares what was proven of its boot with what the pool accepts. What was booted is `observation`'s to weigh, and nothing else is.
    fn appraise_boot(_: &Self::Proof, _: &Self::Rules, _now: UnixTime, _: &mut Observation<Self::Error>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns the requirements of the rules on PCRs and their events, one after the other, in words, each with its result for the proof.
    fn by_requirement(_: &Self::Proof, _: &Self::Rules, _now: UnixTime) -> Vec<(String, Result<(), Self::Error>)> {
        Vec::new()
    }
}

/// Relation of a kind to the kinds shown together with it. Its bounds name those that it looks at: [`Proofs`] and [`Rulebook`] of those
/// kinds.
pub(crate) trait OtherKinds<P, R>: Verifier {
    /// Checks that it is about the same machine as the others, beyond its identity, and adopts their claims about it.
    fn join(proof: Self::Proof, _proofs: &P) -> Result<Self::Proof, KindRefusal<Self::Error>> {
        Ok(proof)
    }

    /// Appraises what is subject to the rules of another kind.
    fn appraise_together(_: &Self::Proof, _proofs: &P, _rules: &R) -> Result<(), KindRefusal<Self::Error>> {
        Ok(())
    }
}

/// Has what evidence of a kind has proven, if there was some.
pub(crate) trait Proofs<K: EvidenceKind> {
    /// Returns the proof of this kind.
    fn proof(&self) -> Option<&K::Proof>;
}

/// Has the rules for a kind, if there are some.
pub(crate) trait Rulebook<K: EvidenceKind> {
    /// Returns the rules for this kind.
    fn rules(&self) -> Option<&K::Rules>;
}

/// Input of a challenge, apart from the node's offer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    /// The gateway's own name, the same for all its nodes.
    pub(crate) gateway: &'a str,
    /// Secret that only the asked node must be able to recover.
    pub(crate) secret: &'a Zeroizing<[u8; 32]>,
    pub(crate) now: UnixTime,
}

/// Refusal by a kind of evidence.
#[derive(Debug)]
pub(crate) enum KindRefusal<E> {
    /// A reason of its own.
    Own(E),
    /// A field of the request that is out of its bounds.
    Request { field: &'static str, problem: &'static str },
    /// There is nothing to hold evidence of this kind against.
    NothingToHoldAgainst(Kind),
}

impl<E> From<E> for KindRefusal<E> {
    fn from(error: E) -> Self {
        Self::Own(error)
    }
}
