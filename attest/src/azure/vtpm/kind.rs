//! The vTPM's quote as a kind of evidence.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use super::rules::{appraise_boot, appraise_machine};
use super::{
    AkRoots, AzureVtpm, AzureVtpmAttester, AzureVtpmError, AzureVtpmEvidence, AzureVtpmRules, AzureVtpmSubject, AzureVtpmTask,
    VerifiedAzureVtpm, VmId,
};
use crate::advice::Advice;
use crate::azure::attested_document::AttestedDocument;
use crate::kinds::{Asked, Asking, Counters, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Proofs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::observation::Observation;
use crate::reference_sets::{NewValue, ReferenceSets};
use crate::tpm::TpmEvidenceError;
use crate::tpm::ak::AkPublic;
use crate::tpm::ek_certificate::INTERMEDIATES_LIMIT;
use crate::values::Blob;

impl EvidenceKind for AzureVtpm {
    type Subject = AzureVtpmSubject;
    type Rules = AzureVtpmRules;
    type Proof = VerifiedAzureVtpm;
    type Error = AzureVtpmError;
}

impl Verifier for AzureVtpm {
    type VerificationInput<'a> = &'a AkRoots;

    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    const BOOTED: &'static [&'static str] = &["pcrs", "event_log", "boot"];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "azure-vtpm",
        form: "azure-vtpm:<vmId> in lower case",
        fits: VmId::is_spelled_as_in_identities,
    }];

    fn check_offer(offer: &AzureVtpmAttester) -> Result<(), KindRefusal<AzureVtpmError>> {
        if offer.ak_intermediates.len() > INTERMEDIATES_LIMIT {
            return Err(KindRefusal::Request {
                field: "ak_intermediates",
                problem: "more than eight certificates",
            });
        }
        Ok(())
    }

    /// An AK that could sign for others is not asked. Its certificate is looked at with its quote: nothing is given away before.
    fn ask(offer: &AzureVtpmAttester, _: Option<&AkRoots>, rules: &AzureVtpmRules, _: &Asking<'_>) -> Asked<Self> {
        AkPublic::parse(offer.ak_public.as_ref()).map_err(own)?;
        // Rules that could be read can be selected: they were checked then.
        let selection = rules.selection().map_err(|_| KindRefusal::NothingToHoldAgainst(Kind::AzureVtpm))?;
        let task = AzureVtpmTask::from(&selection);
        let attester = offer.clone();
        Ok((AzureVtpmSubject { attester, selection }, task))
    }

    /// The log is replayed against this key's own quote, so another machine's log proves nothing.
    fn with_event_log(evidence: &AzureVtpmEvidence, log: &Blob) -> Option<AzureVtpmEvidence> {
        evidence.event_log.is_none().then(|| AzureVtpmEvidence {
            event_log: Some(log.clone()),
            ..evidence.clone()
        })
    }

    fn verify(
        subject: &AzureVtpmSubject,
        evidence: &AzureVtpmEvidence,
        roots: &AkRoots,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let verified = super::verify(subject, evidence, &(*binding).into(), roots, now)?;
        let server_key = *verified.server_key();
        Ok((verified, Some(server_key)))
    }

    fn instance(verified: &VerifiedAzureVtpm) -> Option<String> {
        Some(verified.identity())
    }

    fn reason(vtpm: &VerifiedAzureVtpm, pcrs: Pcrs) -> String {
        format!(
            "vTPM of Azure: AK certified as {}, {} PCRs {pcrs}",
            vtpm.certificate().name(),
            vtpm.pcrs().len()
        )
    }

    fn asked_pcrs(rules: &AzureVtpmRules) -> Option<BTreeSet<u8>> {
        Some(rules.reference_values().quoted())
    }

    fn counters(verified: &VerifiedAzureVtpm) -> Option<Counters> {
        Some(verified.counters())
    }

    fn is_of_the_instances_own_tpm(_: &VerifiedAzureVtpm) -> bool {
        true
    }

    fn check_rules(rules: &AzureVtpmRules, together: &BTreeSet<Kind>) -> Result<(), &'static str> {
        if rules.stands_alone() || together.contains(&Kind::Azure) {
            return Ok(());
        }
        Err(
            "a vTPM's evidence names no subscription, so a machine of any subscription could have these PCRs: set vm_ids in [azure_vtpm], also require azure in accepts, or allow any subscription with accept_any_subscription = true there",
        )
    }

    fn wants_reference_sets(rules: &AzureVtpmRules) -> bool {
        rules.reference_values().wants_sets()
    }

    fn allow_after_boot(rules: &mut AzureVtpmRules) {
        rules.allow_after_boot();
    }

    fn use_reference_sets(rules: &mut AzureVtpmRules, sets: &Arc<ReferenceSets>) {
        rules.use_reference_sets(sets);
    }

    fn without_values(rules: &AzureVtpmRules) -> Vec<String> {
        rules.reference_values().without_values()
    }

    fn unlisted(verified: &VerifiedAzureVtpm, rules: &AzureVtpmRules) -> Vec<NewValue> {
        rules.reference_values().unlisted(&verified.quoted())
    }

    fn reference_sets(rules: &AzureVtpmRules) -> Option<&ReferenceSets> {
        Some(rules.reference_values().sets())
    }

    fn appraise(
        verified: &VerifiedAzureVtpm,
        rules: &AzureVtpmRules,
        _: &BTreeSet<Kind>,
        _: UnixTime,
    ) -> Result<(), KindRefusal<AzureVtpmError>> {
        Ok(appraise_machine(verified, rules)?)
    }

    fn appraise_boot(
        verified: &VerifiedAzureVtpm,
        rules: &AzureVtpmRules,
        now: UnixTime,
        observation: &mut Observation<AzureVtpmError>,
    ) -> Result<(), AzureVtpmError> {
        appraise_boot(verified, rules, now, observation)
    }

    fn by_requirement(verified: &VerifiedAzureVtpm, rules: &AzureVtpmRules, now: UnixTime) -> Vec<(String, Result<(), AzureVtpmError>)> {
        rules.reference_values().by_requirement(&verified.quoted(), now)
    }
}

/// The vTPM says no subscription; the attested document of the same machine does.
impl<P: Proofs<AttestedDocument>, R> OtherKinds<P, R> for AzureVtpm {
    fn join(verified: VerifiedAzureVtpm, proofs: &P) -> Result<VerifiedAzureVtpm, KindRefusal<AzureVtpmError>> {
        Ok(match proofs.proof() {
            Some(document) => verified.with_document(document),
            None => verified,
        })
    }
}

fn own(error: TpmEvidenceError) -> KindRefusal<AzureVtpmError> {
    KindRefusal::Own(error.into())
}
