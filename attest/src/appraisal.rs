//! Appraisal: whether what was proven is what the pool accepts.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use crate::claims::{Claims, Proven};
use crate::combination::Combination;
use crate::condition::Condition;
use crate::kinds::{EvidenceKind, Kind, OtherKinds, Pcrs, Rulebook, Verifier, each_kind, each_machine, members, moved, of_room};
use crate::observation::Observation;
use crate::reference_sets::ReferenceSets;
use crate::reject::Reject;
use crate::token::Token;
use crate::tpm::pcr::PcrSelection;
use crate::tpm::reference_values::ReferenceValues;
use crate::values::HexDigest;
use crate::withheld::Withheld;

members! {
    /// A pool's policy: the accepted kinds of evidence, and the rules for each kind.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct AppraisalPolicy {
        /// Combinations of kinds that must be shown together, the preferred first. A node is asked for the first that it can show.
        accepts: Vec<Combination>,
        ..#[serde(skip_serializing_if = "Option::is_none")] EvidenceKind::Rules of machines,
        first_use: FirstUse,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        condition: Option<Condition>,
        /// Left out where it is not asked for.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        observe: bool,
        /// SHA-256 of the files of the pool's sets of reference values. What is in them is given to the rules: [`AppraisalPolicy::with_reference_sets`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reference_sets: Vec<HexDigest>,
    }
}

/// Meaning of the first use of an instance's evidence if no TPM attests together with it. Every process of the instance that reaches the
/// metadata server can ask for such evidence, at any time of the instance's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstUse {
    /// Binds the instance to the claimant that has shown the evidence: to a secret that the claimant has generated, and proves to know each
    /// time.
    #[default]
    #[serde(rename = "binds")]
    Binds,
    /// No meaning. The serialized form spells out the consequence.
    #[serde(rename = "any process on an instance may attest, at any time")]
    MeansNothing,
}

members! {
    /// The rules of a pool, for each kind of evidence of which it has some.
    #[derive(Debug, Clone, Default)]
    pub struct Rules {
        ..#[doc = "What the pool accepts of it."] pub EvidenceKind::Rules of machines,
        /// Meaning of the first use of an instance's evidence.
        pub first_use: FirstUse,
        /// Further condition on the claims.
        pub condition: Option<Condition>,
        /// Set if the measured boot is only observed: what the pool does not accept of it is recorded, and causes no refusal.
        pub observe: bool,
    }
}

/// A policy whose rules contradict each other, or have no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No combination at all.
    #[error("accepts names no kind of evidence")]
    Nothing,
    /// A combination is listed twice.
    #[error("accepts names {0} twice")]
    Repeated(Combination),
    /// A kind is accepted, and the policy has no rules for it.
    #[error("{0} is in accepts, so the section [{section}] is required", section = .0.section())]
    NoRules(Kind),
    /// Rules for a kind that is not accepted.
    #[error("section [{section}] is present, but {0} is not in accepts", section = .0.section())]
    NotAccepted(Kind),
    /// Rules that mean nothing among these kinds.
    #[error("{together}: {problem}")]
    Together {
        /// The combination that the rules do not fit.
        together: Combination,
        problem: &'static str,
    },
    /// A condition that could never hold.
    #[error("the condition can never hold as written: {0}")]
    Condition(String),
}

macro_rules! getter {
    ($kind:ident, $member:ident, $room:ty) => {
        /// The rules for evidence of this kind.
        #[must_use]
        pub const fn $member(&self) -> Option<&<$room as EvidenceKind>::Rules> {
            self.$member.as_ref()
        }
    };
}

impl AppraisalPolicy {
    /// Creates a policy from the accepted combinations and their rules.
    ///
    /// # Errors
    /// [`PolicyError`], if rules and accepted kinds do not fit together.
    pub fn new(accepts: Vec<Combination>, rules: Rules) -> Result<Self, PolicyError> {
        let policy = Self::unchecked(accepts, rules);
        policy.check()?;
        Ok(policy)
    }

    /// The policy of a pool that accepts TPMs only.
    #[must_use]
    pub fn for_tpm(reference_values: ReferenceValues) -> Self {
        let rules = Rules {
            tpm: Some(reference_values),
            ..Rules::default()
        };
        Self::unchecked(vec![Kind::Tpm.into()], rules)
    }

    fn unchecked(accepts: Vec<Combination>, rules: Rules) -> Self {
        let (first_use, condition, observe, reference_sets) = (rules.first_use, rules.condition, rules.observe, Vec::new());
        moved! { Self { accepts, ..rules, first_use, condition, observe, reference_sets } }
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.accepts.is_empty() {
            return Err(PolicyError::Nothing);
        }
        for (index, combination) in self.accepts.iter().enumerate() {
            if self.accepts.iter().take(index).any(|earlier| earlier == combination) {
                return Err(PolicyError::Repeated(combination.clone()));
            }
            if let Some(kind) = combination.kinds().iter().find(|kind| !self.has_rules(**kind)) {
                return Err(PolicyError::NoRules(*kind));
            }
            if let Err(problem) = self.check_rules(combination.kinds()) {
                let together = combination.clone();
                return Err(PolicyError::Together { together, problem });
            }
        }
        // Rules that are never looked at are a mistake.
        let unused = |kind: &Kind| !of_room!(*kind, Verifier::RULES_MAY_GO_UNUSED) && self.has_rules(*kind) && !self.accepts_kind(*kind);
        if let Some(kind) = Kind::ALL.into_iter().find(unused) {
            return Err(PolicyError::NotAccepted(kind));
        }
        let condition = self.condition.as_ref();
        let checked = condition.map_or(Ok(()), |condition| condition.check(|section| self.asked_pcrs(section)));
        checked.map_err(PolicyError::Condition)
    }

    /// The PCRs that the rules of a section have quoted.
    fn asked_pcrs(&self, section: &str) -> Option<BTreeSet<u8>> {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if section == Kind::$kind.section() {
                    return self.$member.as_ref().and_then(<$room>::asked_pcrs);
                }
            };
        }
        each_machine!(one);
        None
    }

    fn check_rules(&self, together: &BTreeSet<Kind>) -> Result<(), &'static str> {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if let (true, Some(rules)) = (together.contains(&Kind::$kind), Rulebook::<$room>::rules(self)) {
                    <$room>::check_rules(rules, together)?;
                }
            };
        }
        each_kind!(one);
        Ok(())
    }

    fn has_rules(&self, kind: Kind) -> bool {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if kind == Kind::$kind {
                    return self.$member.is_some();
                }
            };
        }
        each_machine!(one);
        // Whether what stands beside is good is the gateway's to say.
        true
    }

    /// Returns the combinations of kinds that must be shown together, the preferred first.
    #[must_use]
    pub fn accepts(&self) -> &[Combination] {
        &self.accepts
    }

    /// Returns whether a kind of evidence is accepted, alone or together with others.
    #[must_use]
    pub fn accepts_kind(&self, kind: Kind) -> bool {
        self.accepts.iter().any(|combination| combination.has(kind))
    }

    /// Returns the meaning of the first use of an instance's evidence.
    #[must_use]
    pub const fn first_use(&self) -> FirstUse {
        self.first_use
    }

    /// Returns the same policy with sets of reference values, in which its rules look.
    ///
    /// # Errors
    /// A rule has no value there, and the pool does not observe; or no rule looks there. A pool that observes may have none yet: they are recorded while it does.
    pub fn with_reference_sets(mut self, sets: &Arc<ReferenceSets>) -> Result<Self, String> {
        if sets.digests().next().is_some() && !self.wants_reference_sets() {
            return Err("no rule uses reference values: set a PCR to \"reference values\", or add checks to boot".to_owned());
        }
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if let Some(rules) = &mut self.$member {
                    <$room>::use_reference_sets(rules, sets);
                }
            };
        }
        each_machine!(one);
        if let (false, Some(missing)) = (self.observe, self.without_values().first()) {
            return Err(format!(
                "{missing}; with observe = true the pool loads without them, until values are recorded"
            ));
        }
        self.reference_sets = sets.digests().cloned().collect();
        Ok(self)
    }

    /// Returns the rules for which no generation has a value, in words: nothing of the kind is accepted.
    #[must_use]
    pub fn without_values(&self) -> Vec<String> {
        let mut all = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                let without = self.$member.as_ref().map(<$room>::without_values).unwrap_or_default();
                let section = Kind::$kind.section();
                all.extend(
                    without
                        .iter()
                        .map(|words| format!("[{section}]: no generation has a value for {words}")),
                );
            };
        }
        each_machine!(one);
        all
    }

    /// SHA-256 of the files of the pool's sets of reference values.
    #[must_use]
    pub fn reference_sets(&self) -> &[HexDigest] {
        &self.reference_sets
    }

    /// Returns whether any rule looks for reference values.
    #[must_use]
    pub fn wants_reference_sets(&self) -> bool {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if self.$member.as_ref().is_some_and(<$room>::wants_reference_sets) {
                    return true;
                }
            };
        }
        each_machine!(one);
        false
    }

    /// Returns the condition on the claims; it applies to all kinds.
    #[must_use]
    pub const fn condition(&self) -> Option<&Condition> {
        self.condition.as_ref()
    }

    /// Returns whether the measured boot is only observed: what the pool does not accept of it is recorded, and causes no refusal.
    #[must_use]
    pub const fn observes(&self) -> bool {
        self.observe
    }

    /// Returns whether the condition is only observed as well: it is if it mentions only the measured boot. Any other condition may decide
    /// which machines may join.
    #[must_use]
    pub fn observes_condition(&self) -> bool {
        self.observe && self.condition.as_ref().is_some_and(Condition::is_on_what_was_booted)
    }

    /// Returns the same policy, but refusing what it would only record.
    #[must_use]
    pub fn strict(&self) -> Self {
        Self {
            observe: false,
            ..self.clone()
        }
    }

    /// Returns the same policy, but refusing nothing because of the measured boot.
    #[must_use]
    pub fn observing(&self) -> Self {
        Self {
            observe: true,
            ..self.clone()
        }
    }

    /// Returns the same policy for a rehearsal on a machine that has booted: it accepts a machine that has finished its boot.
    #[must_use]
    pub fn after_boot(&self) -> Self {
        let mut policy = self.clone();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if let Some(rules) = &mut policy.$member {
                    <$room>::allow_after_boot(rules);
                }
            };
        }
        each_machine!(one);
        policy
    }

    /// Returns whether the first claimant to show these kinds owns the instance from then on: if no TPM proves that the machine itself
    /// shows them. Evidence whose copy would prove as much always binds.
    #[must_use]
    pub fn first_use_binds(&self, kinds: &BTreeSet<Kind>) -> bool {
        kinds.iter().any(|kind| kind.is_of_a_cloud())
            && !kinds.iter().any(|kind| kind.is_of_a_tpm())
            && (self.first_use == FirstUse::Binds || are_worth_a_copy(kinds))
    }

    /// The PCR values accepted, if TPMs are.
    #[must_use]
    pub const fn reference_values(&self) -> Option<&ReferenceValues> {
        self.tpm.as_ref()
    }

    each_machine!(getter);

    /// The PCRs that a TPM has to quote.
    #[must_use]
    pub fn selection(&self) -> Option<PcrSelection> {
        // Reference values that exist can be selected: they were checked when they were made.
        self.tpm.as_ref()?.selection().ok()
    }
}

/// Claims that a pool's policy accepts. Only [`appraise`] makes one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct AttestationResult {
    claims: Arc<Claims>,
    #[serde(skip)]
    would_refuse: Vec<Reject>,
}

impl AttestationResult {
    /// Returns the claims that were proven.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the refusals that would have occurred if the pool did not observe: each once, in the order of the checks. The first is the
    /// one that the node would have got.
    #[must_use]
    pub fn would_refuse(&self) -> &[Reject] {
        &self.would_refuse
    }

    /// Returns the reasons for which the node was trusted, for a person.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.claims.reasons(match self.would_refuse.is_empty() {
            true => Pcrs::Accepted,
            false => Pcrs::Observed,
        })
    }
}

/// Compares what was proven with what the pool accepts: the kinds shown, then what each of them says.
///
/// # Errors
/// [`Reject::KindsAccepted`] if the pool does not accept these kinds (it was changed since the challenge). [`Reject::ClaimantMissing`] if
/// their first use binds and the evidence has no claimant.
/// [`TpmEvidenceError::ReferenceSelection`](crate::tpm::TpmEvidenceError::ReferenceSelection) if the quote covers other PCRs than the
/// pool's values (also because it was changed). Then `PcrMismatch` for the first PCR whose value is not accepted. Then `EventLogMissing`,
/// `EventLog` and `EventLogMismatch`, if the pool asks for an event log, and the refusals by the rules of the clouds; [`Reject::Condition`]
/// last. If the pool observes, the measured boot causes no error: see [`AttestationResult::would_refuse`].
pub fn appraise(claims: impl Into<Arc<Claims>>, policy: &AppraisalPolicy, now: UnixTime) -> Result<AttestationResult, Reject> {
    let claims: Arc<Claims> = claims.into();
    if !policy.accepts.iter().any(|combination| combination.kinds() == claims.kinds()) {
        return Err(Reject::KindsAccepted {
            shown: claims.kinds().clone(),
            accepted: Withheld::alternatives(&policy.accepts),
        });
    }
    if claims.claimant_sha256().is_none() && policy.first_use_binds(claims.kinds()) {
        return Err(Reject::ClaimantMissing);
    }
    let mut would_refuse = Vec::new();
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if let Some(proof) = &claims.proven.$member {
                would_refuse.extend(appraise_one::<$room>(Kind::$kind, proof, &claims, policy, now)?);
            }
        };
    }
    each_kind!(one);
    if let Some(condition) = &policy.condition {
        let mut observation = Observation::new(policy.observes_condition());
        observation.heed(condition.appraise(&claims).map_err(Reject::from))?;
        would_refuse.extend(observation.unmet());
    }
    Ok(AttestationResult {
        claims,
        would_refuse: each_once(would_refuse),
    })
}

/// Without an event log, each check of its events fails for the same reason.
fn each_once(all: Vec<Reject>) -> Vec<Reject> {
    let mut once: Vec<Reject> = Vec::new();
    for reject in all {
        if !once.contains(&reject) {
            once.push(reject);
        }
    }
    once
}

/// Appraises one kind; returns what the pool does not accept of it, if the pool observes.
fn appraise_one<K>(kind: Kind, proof: &K::Proof, claims: &Claims, policy: &AppraisalPolicy, now: UnixTime) -> Result<Vec<Reject>, Reject>
where
    K: OtherKinds<Proven, AppraisalPolicy>,
    AppraisalPolicy: Rulebook<K>,
    Reject: From<K::Error>,
{
    let rules = Rulebook::<K>::rules(policy).ok_or(Reject::NothingToHoldAgainst { kind })?;
    K::appraise(proof, rules, claims.kinds(), now)?;
    let mut observation = Observation::new(policy.observe);
    K::appraise_boot(proof, rules, now, &mut observation)?;
    K::appraise_together(proof, &claims.proven, policy)?;
    Ok(observation.unmet().into_iter().map(Reject::from).collect())
}

/// Returns whether a copy of the shown evidence would prove as much as the original.
fn are_worth_a_copy(kinds: &BTreeSet<Kind>) -> bool {
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if kinds.contains(&Kind::$kind) && <$room>::is_worth_a_copy(kinds) {
                return true;
            }
        };
    }
    each_kind!(one);
    false
}

macro_rules! rulebook {
    ($kind:ident, $member:ident, $room:ty) => {
        impl Rulebook<$room> for AppraisalPolicy {
            fn rules(&self) -> Option<&<$room as EvidenceKind>::Rules> {
                self.$member.as_ref()
            }
        }
    };
}
each_machine!(rulebook);

/// No rules: the gateway decides whether a token is valid.
impl Rulebook<Token> for AppraisalPolicy {
    fn rules(&self) -> Option<&()> {
        Some(&())
    }
}
