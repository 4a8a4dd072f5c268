//! Appraisal: whether what was proven is what the pool accepts.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use crate::aws::identity_document;
use crate::aws::nitro_tpm::{self, NitroTpmRules};
use crate::aws::sts::{self, StsRules};
use crate::azure::attested_document;
use crate::claims::Claims;
use crate::combination::Combination;
use crate::gcp;
use crate::kinds::{Kind, each_machine, members, moved};
use crate::reject::Reject;
use crate::tpm::EndorsedBy;
use crate::tpm::pcr::PcrSelection;
use crate::tpm::reference_values::ReferenceValues;
use crate::withheld::Withheld;

members! {
    /// What a pool accepts: which kinds of evidence, and of each what it has to say.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct AppraisalPolicy {
        /// Which kinds of evidence have to be shown together, the preferred first. A node is asked for the first that it can show.
        accepts: Vec<Combination>,
        ..#[serde(skip_serializing_if = "Option::is_none")] EvidenceKind::Rules of machines,
        #[serde(default = "FirstUse::of_older_records")]
        first_use: FirstUse,
    }
}

/// What the first use of an instance's evidence means, where no TPM stands beside it. Whoever reaches the metadata server can ask for
/// such evidence: every process of the instance, at any time of its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstUse {
    /// It binds the instance to who has shown it: to a secret that this claimant has made up, and proves to know each time.
    #[default]
    #[serde(rename = "binds")]
    Binds,
    /// Nothing. The word says what that is.
    #[serde(rename = "any process on an instance may attest, at any time")]
    MeansNothing,
}

impl FirstUse {
    /// What a policy of before there was a choice says: evidence that is bound to a challenge had no claimant.
    const fn of_older_records() -> Self {
        Self::MeansNothing
    }
}

members! {
    /// The rules of a pool, for each kind of evidence of which it has some.
    #[derive(Debug, Clone, Default)]
    pub struct Rules {
        ..#[doc = "What the pool accepts of it."] pub EvidenceKind::Rules of machines,
        /// What the first use of an instance's evidence means.
        pub first_use: FirstUse,
    }
}

/// A policy that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No combination at all.
    #[error("no kind of evidence is accepted")]
    Nothing,
    /// A combination twice.
    #[error("{0} is accepted twice")]
    Repeated(Combination),
    /// A kind is accepted, and nothing is said about what it has to say.
    #[error("{0} is accepted, so there must be a section [{section}]", section = .0.section())]
    NoRules(Kind),
    /// Rules for a kind that is not accepted.
    #[error("there is a section [{section}], but {0} is not among what is accepted", section = .0.section())]
    NotAccepted(Kind),
    /// A NitroTPM document says no account.
    #[error(
        "{0}: the accounts of [aws_nitro_tpm] are checked, so aws-identity-document or aws-sts has to be beside it: its document says no account"
    )]
    Account(Combination),
    /// A document that a copy would be as well is accepted by itself.
    #[error(
        "{0}: an identity document has no nonce, so a copy of it is as good: set accept_replayable = true in [aws_identity_document] if that is meant"
    )]
    Replayable(Combination),
}

impl AppraisalPolicy {
    /// A policy.
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
    pub fn of_tpm(reference_values: ReferenceValues) -> Self {
        let rules = Rules {
            tpm: Some(reference_values),
            ..Rules::default()
        };
        Self::unchecked(vec![Kind::Tpm.into()], rules)
    }

    fn unchecked(accepts: Vec<Combination>, rules: Rules) -> Self {
        let first_use = rules.first_use;
        moved! { Self { accepts, ..rules, first_use } }
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
            let account = combination.has(Kind::AwsIdentityDocument) || combination.has(Kind::AwsSts);
            let checks_account = self.aws_nitro_tpm.as_ref().is_some_and(NitroTpmRules::checks_account);
            if combination.has(Kind::AwsNitroTpm) && checks_account && !account {
                return Err(PolicyError::Account(combination.clone()));
            }
            let accepted = self.aws_identity_document.as_ref().is_some_and(|rules| rules.accept_replayable);
            if combination.has(Kind::AwsIdentityDocument) && !accepted && !proves_instance_anew(combination.kinds()) {
                return Err(PolicyError::Replayable(combination.clone()));
            }
        }
        // Rules that are never looked at are a mistake; those for instances may be about the certificate of their vTPMs.
        let unused = |kind: &Kind| self.has_rules(*kind) && !self.accepts.iter().any(|combination| combination.has(*kind));
        let clouds = [Kind::AwsIdentityDocument, Kind::AwsNitroTpm, Kind::AwsSts, Kind::Azure];
        match clouds.iter().find(|kind| unused(kind)) {
            Some(kind) => Err(PolicyError::NotAccepted(*kind)),
            None => Ok(()),
        }
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

    /// Which kinds of evidence have to be shown together, the preferred first.
    #[must_use]
    pub fn accepts(&self) -> &[Combination] {
        &self.accepts
    }

    /// Whether a kind of evidence is accepted, alone or beside others.
    #[must_use]
    pub fn accepts_kind(&self, kind: Kind) -> bool {
        self.accepts.iter().any(|combination| combination.has(kind))
    }

    /// What the first use of an instance's evidence means.
    #[must_use]
    pub const fn first_use(&self) -> FirstUse {
        self.first_use
    }

    /// Whether the first to show these kinds has the instance from then on: where no TPM of the machine's stands for who shows them. What
    /// a copy would prove as well binds always.
    #[must_use]
    pub fn first_use_binds(&self, kinds: &BTreeSet<Kind>) -> bool {
        let copied = kinds.contains(&Kind::AwsIdentityDocument) && !proves_instance_anew(kinds);
        kinds.iter().any(|kind| kind.is_of_a_cloud())
            && !kinds.iter().any(|kind| kind.is_of_a_tpm())
            && (copied || self.first_use == FirstUse::Binds)
    }

    /// The PCR values accepted, if TPMs are.
    #[must_use]
    pub const fn reference_values(&self) -> Option<&ReferenceValues> {
        self.tpm.as_ref()
    }

    /// The rules for instances of Google Compute Engine.
    #[must_use]
    pub const fn gcp(&self) -> Option<&gcp::Rules> {
        self.gcp.as_ref()
    }

    /// The rules for callers of AWS STS.
    #[must_use]
    pub const fn aws_sts(&self) -> Option<&StsRules> {
        self.aws_sts.as_ref()
    }

    /// The PCRs that a TPM has to quote.
    #[must_use]
    pub fn selection(&self) -> Option<PcrSelection> {
        // Reference values that exist can be selected: they were checked when they were made.
        self.tpm.as_ref()?.selection().ok()
    }
}

/// Claims that a pool's policy accepts. Only [`appraise`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct AttestationResult {
    claims: Claims,
}

impl AttestationResult {
    /// What was proven.
    #[must_use]
    pub const fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// Compares what was proven with what the pool accepts: the kinds shown, then what each of them says.
///
/// # Errors
/// [`Reject::KindsAccepted`] if the pool does not accept these kinds (it was changed since the challenge), [`Reject::ClaimantMissing`]
/// if their first use binds, and nobody says who uses them,
/// [`TpmEvidenceError::ReferenceSelection`](crate::tpm::TpmEvidenceError::ReferenceSelection) if the quote covers other PCRs than the pool's values speak of (likewise), `PcrMismatch`
/// for the first PCR whose value is not accepted, then `EventLogMissing`, `EventLog` and `EventLogMismatch`, as far as
/// the pool asks for an event log, and what the rules of the clouds refuse.
pub fn appraise(claims: Claims, policy: &AppraisalPolicy, now: UnixTime) -> Result<AttestationResult, Reject> {
    if !policy.accepts.iter().any(|combination| combination.kinds() == claims.kinds()) {
        return Err(Reject::KindsAccepted {
            shown: claims.kinds().clone(),
            accepted: Withheld::alternatives(&policy.accepts),
        });
    }
    if claims.claimant_sha256().is_none() && policy.first_use_binds(claims.kinds()) {
        return Err(Reject::ClaimantMissing);
    }
    if let Some(tpm) = claims.tpm() {
        rules(policy.tpm.as_ref(), Kind::Tpm)?.appraise(tpm)?;
        // Beside an identity token, the certificate has only to be about the same instance.
        if let (EndorsedBy::GcpInstance(instance), None) = (&tpm.endorsed_by, claims.gcp()) {
            gcp::appraise_vtpm(instance.instance(), rules(policy.gcp.as_ref(), Kind::Gcp)?)?;
        }
    }
    if let Some(identity) = claims.gcp() {
        gcp::appraise(identity, rules(policy.gcp.as_ref(), Kind::Gcp)?, now)?;
    }
    if let Some(claimed) = claims.aws_identity_document() {
        let rules = rules(policy.aws_identity_document.as_ref(), Kind::AwsIdentityDocument)?;
        if proves_instance_anew(claims.kinds()) {
            identity_document::appraise_beside_fresh(claimed.document(), rules, now)?;
        } else {
            identity_document::appraise(claimed.document(), rules, now)?;
        }
    }
    if let Some(document) = claims.aws_nitro_tpm() {
        nitro_tpm::appraise(document, rules(policy.aws_nitro_tpm.as_ref(), Kind::AwsNitroTpm)?, now)?;
    }
    if let Some(caller) = claims.aws_sts() {
        sts::appraise(caller, rules(policy.aws_sts.as_ref(), Kind::AwsSts)?)?;
    }
    if let Some(document) = claims.azure() {
        attested_document::appraise(document, rules(policy.azure.as_ref(), Kind::Azure)?, now)?;
    }
    Ok(AttestationResult { claims })
}

/// Whether an identity document stands beside evidence that says, for this challenge, that it is that very instance.
pub(crate) fn proves_instance_anew(kinds: &BTreeSet<Kind>) -> bool {
    kinds.contains(&Kind::AwsNitroTpm) || kinds.contains(&Kind::AwsSts)
}

fn rules<T>(rules: Option<&T>, kind: Kind) -> Result<&T, Reject> {
    rules.ok_or(Reject::NothingToHoldAgainst { kind })
}
