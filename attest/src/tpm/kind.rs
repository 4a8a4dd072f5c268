//! A TPM's quote as a kind of evidence.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use super::ak::AkPublic;
use super::claims::{EndorsedBy, EventLogClaims, TpmClaims};
use super::ek_certificate::INTERMEDIATES_LIMIT;
use super::endorsements::TpmEndorsements;
use super::error::TpmEvidenceError;
use super::reference_values::ReferenceValues;
use super::vtpm::{VerifiedInstance, VtpmError};
use super::{Tpm, TpmAttester, TpmEvidence, TpmSubject, ek, task, verifier};
use crate::advice::Advice;
use crate::gcp::{self, Gcp, GcpError};
use crate::kinds::{
    Asked, Asking, Counters, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Proofs, Rulebook, Verified, Verifier,
};
use crate::nonce::EvidenceBinding;
use crate::observation::Observation;
use crate::reference_sets::{NewValue, ReferenceSets};
use crate::values::Blob;

impl EvidenceKind for Tpm {
    type Subject = TpmSubject;
    type Rules = ReferenceValues;
    type Proof = TpmClaims;
    type Error = TpmEvidenceError;
}

impl Verifier for Tpm {
    type VerificationInput<'a> = &'a TpmEndorsements;

    const RULES_MAY_GO_UNUSED: bool = true;
    const ADVICE: &'static [&'static [Advice]] = &[super::error::ADVICE, super::rules::ADVICE, super::vtpm::ADVICE];
    const BOOTED: &'static [&'static str] = &["pcrs", "event_log", "boot"];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "tpm",
        form: "tpm:<64 hexadecimal digits>",
        fits: ek::is_digest,
    }];

    fn check_offer(offer: &TpmAttester) -> Result<(), KindRefusal<TpmEvidenceError>> {
        if offer.ek_intermediates.len() > INTERMEDIATES_LIMIT {
            return Err(KindRefusal::Request {
                field: "ek_intermediates",
                problem: "more than eight certificates",
            });
        }
        Ok(())
    }

    /// Refuses early: an EK without endorsement, or an AK that could sign for others, never costs a credential.
    fn ask(offer: &TpmAttester, endorsements: Option<&TpmEndorsements>, values: &ReferenceValues, asking: &Asking<'_>) -> Asked<Self> {
        let ak = AkPublic::parse(offer.ak_public.as_ref())?;
        let nothing = || KindRefusal::NothingToHoldAgainst(Kind::Tpm);
        let ek = endorsements.ok_or_else(nothing)?.endorse(offer, asking.now)?;
        // Reference values that exist can be selected: they were checked when they were made.
        let selection = values.selection().map_err(|_| nothing())?;
        task::ask(&ek, &ak, offer, selection, asking.secret).map_err(|_| KindRefusal::Request {
            field: "ek_public",
            problem: "the key cannot be encrypted to",
        })
    }

    /// Returns whether the TPM is not endorsed: a machine in a cloud may have such a TPM, and be accepted by the cloud's evidence.
    fn is_as_good_as_none(error: &TpmEvidenceError) -> bool {
        error.is_not_endorsed()
    }

    fn screen(subject: &TpmSubject, evidence: &TpmEvidence, _: &EvidenceBinding<'_>) -> Result<(), KindRefusal<TpmEvidenceError>> {
        Ok(verifier::activated(subject, evidence)?)
    }

    fn verify(
        subject: &TpmSubject,
        evidence: &TpmEvidence,
        endorsements: &TpmEndorsements,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let (claims, server_key) = verifier::verify(binding, subject, evidence, endorsements, now)?;
        Ok((claims, Some(server_key)))
    }

    fn allow_after_boot(values: &mut ReferenceValues) {
        values.allow_after_boot();
    }

    fn use_reference_sets(values: &mut ReferenceValues, sets: &Arc<ReferenceSets>) {
        values.use_sets(sets);
    }

    fn without_values(values: &ReferenceValues) -> Vec<String> {
        values.without_values()
    }

    fn wants_reference_sets(values: &ReferenceValues) -> bool {
        values.wants_sets()
    }

    fn unlisted(claims: &TpmClaims, values: &ReferenceValues) -> Vec<NewValue> {
        values.unlisted(&claims.quoted())
    }

    fn reference_sets(values: &ReferenceValues) -> Option<&ReferenceSets> {
        Some(values.sets())
    }

    fn machine(claims: &TpmClaims) -> Option<String> {
        Some(claims.ek_digest.identity())
    }

    fn instance(claims: &TpmClaims) -> Option<String> {
        claims.instance().map(VerifiedInstance::identity)
    }

    fn reason(claims: &TpmClaims, pcrs: Pcrs) -> String {
        let by = match &claims.endorsed_by {
            EndorsedBy::Allowlist => "the allowlist".to_owned(),
            EndorsedBy::Root { root_subject, .. } => format!("{root_subject:?}"),
            EndorsedBy::GcpInstance(instance) => format!("Google as the vTPM of {}", instance.identity()),
        };
        let log = match &claims.event_log {
            None => "no event log".to_owned(),
            Some(EventLogClaims {
                problem: Some(problem), ..
            }) => format!("an event log that matches none of them ({})", problem.refusal().code()),
            Some(log) => format!("an event log of {} events matches {} of them", log.events, log.explained_pcrs.len()),
        };
        format!(
            "EK endorsed by {by}; AK in the same TPM; {} PCRs of {} quoted and {pcrs}, {log}",
            claims.pcrs.len(),
            claims.pcr_bank
        )
    }

    fn is_of_the_instances_own_tpm(claims: &TpmClaims) -> bool {
        claims.instance().is_some()
    }

    fn shared_event_log(evidence: &TpmEvidence) -> Option<&Blob> {
        evidence.event_log.as_ref()
    }

    fn asked_pcrs(values: &ReferenceValues) -> Option<BTreeSet<u8>> {
        Some(values.quoted())
    }

    fn counters(claims: &TpmClaims) -> Option<Counters> {
        Some(Counters {
            reset_count: claims.reset_count,
            restart_count: claims.restart_count,
            clock_ms: claims.clock_ms,
            clock_safe: claims.clock_safe,
            firmware_version: claims.firmware_version,
        })
    }

    /// Checks nothing: the endorsement identifies the machine.
    fn appraise(_: &TpmClaims, _: &ReferenceValues, _: &BTreeSet<Kind>, _: UnixTime) -> Result<(), KindRefusal<TpmEvidenceError>> {
        Ok(())
    }

    fn appraise_boot(
        claims: &TpmClaims,
        values: &ReferenceValues,
        now: UnixTime,
        observation: &mut Observation<TpmEvidenceError>,
    ) -> Result<(), TpmEvidenceError> {
        values.appraise(&claims.quoted(), now, observation)
    }

    fn by_requirement(claims: &TpmClaims, values: &ReferenceValues, now: UnixTime) -> Vec<(String, Result<(), TpmEvidenceError>)> {
        values.by_requirement(&claims.quoted(), now)
    }
}

/// The certificate of an instance's vTPM is Google's word, as its identity token is.
impl<P: Proofs<Gcp>, R: Rulebook<Gcp>> OtherKinds<P, R> for Tpm {
    fn join(claims: TpmClaims, proofs: &P) -> Result<TpmClaims, KindRefusal<TpmEvidenceError>> {
        if let (Some(vtpm), Some(identity)) = (claims.instance(), proofs.proof()) {
            vtpm.check_identity(identity).map_err(instance_error)?;
        }
        Ok(claims)
    }

    fn appraise_together(claims: &TpmClaims, proofs: &P, rules: &R) -> Result<(), KindRefusal<TpmEvidenceError>> {
        // Beside an identity token, the certificate has only to be about the same instance.
        if let (Some(vtpm), None) = (claims.instance(), proofs.proof()) {
            let rules = rules.rules().ok_or(KindRefusal::NothingToHoldAgainst(Kind::Gcp))?;
            gcp::appraise_vtpm(vtpm.instance(), rules).map_err(instance_error)?;
        }
        Ok(())
    }
}

fn instance_error(error: GcpError) -> TpmEvidenceError {
    VtpmError::from(error).into()
}
