//! The NitroTPM document as a kind of evidence.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use super::rules::{appraise_boot, appraise_machine};
use super::{NitroRoots, NitroTpm, NitroTpmError, NitroTpmEvidence, NitroTpmRules, NitroTpmSubject, VerifiedNitroTpm};
use crate::advice::Advice;
use crate::aws::identity_document::IdentityDocument;
use crate::aws::names::is_any_instance;
use crate::aws::sts::Sts;
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Proofs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::observation::Observation;
use crate::reference_sets::{NewValue, ReferenceSets};
use crate::tpm::requirements::QuotedPcrs;
use crate::values::Nothing;

impl EvidenceKind for NitroTpm {
    type Subject = NitroTpmSubject;
    type Rules = NitroTpmRules;
    type Proof = VerifiedNitroTpm;
    type Error = NitroTpmError;
}

impl Verifier for NitroTpm {
    type VerificationInput<'a> = &'a NitroRoots;

    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    const BOOTED: &'static [&'static str] = &["pcrs"];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "aws-nitrotpm",
        form: "aws-nitrotpm:<instance>",
        fits: is_any_instance,
    }];

    fn ask(_: &Nothing, _: Option<&NitroRoots>, _: &NitroTpmRules, _: &Asking<'_>) -> Asked<Self> {
        Ok((NitroTpmSubject::default(), Nothing {}))
    }

    fn verify(
        _: &NitroTpmSubject,
        evidence: &NitroTpmEvidence,
        roots: &NitroRoots,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let verified = super::verify(evidence.document.as_ref(), roots, binding, now)?;
        let server_key = verified.server_key;
        Ok((verified, Some(server_key)))
    }

    fn instance(verified: &VerifiedNitroTpm) -> Option<String> {
        Some(verified.identity())
    }

    fn reason(verified: &VerifiedNitroTpm, pcrs: Pcrs) -> String {
        let document = &verified.document;
        format!(
            "NitroTPM document of AWS: {} PCRs {pcrs}, in {}",
            document.pcrs.len(),
            document.region.as_str()
        )
    }

    fn is_of_the_instances_own_tpm(_: &VerifiedNitroTpm) -> bool {
        true
    }

    fn check_rules(rules: &NitroTpmRules, together: &BTreeSet<Kind>) -> Result<(), &'static str> {
        let account = together.contains(&Kind::AwsIdentityDocument) || together.contains(&Kind::AwsSts);
        if account || !rules.checks_account() {
            return Ok(());
        }
        Err(
            "[aws_nitro_tpm] restricts accounts, and a NitroTPM document names no account: also require aws-identity-document or aws-sts in accepts",
        )
    }

    fn wants_reference_sets(rules: &NitroTpmRules) -> bool {
        rules.reference_values().wants_sets()
    }

    fn allow_after_boot(rules: &mut NitroTpmRules) {
        rules.allow_after_boot();
    }

    fn use_reference_sets(rules: &mut NitroTpmRules, sets: &Arc<ReferenceSets>) {
        rules.use_reference_sets(sets);
    }

    fn without_values(rules: &NitroTpmRules) -> Vec<String> {
        rules.reference_values().without_values()
    }

    fn unlisted(verified: &VerifiedNitroTpm, rules: &NitroTpmRules) -> Vec<NewValue> {
        let values = rules.reference_values();
        values.unlisted(&QuotedPcrs {
            bank: values.bank(),
            pcrs: &verified.document.pcrs,
            event_log: None,
        })
    }

    fn reference_sets(rules: &NitroTpmRules) -> Option<&ReferenceSets> {
        Some(rules.reference_values().sets())
    }

    fn appraise(
        verified: &VerifiedNitroTpm,
        rules: &NitroTpmRules,
        _: &BTreeSet<Kind>,
        now: UnixTime,
    ) -> Result<(), KindRefusal<NitroTpmError>> {
        Ok(appraise_machine(verified, rules, now)?)
    }

    fn appraise_boot(
        verified: &VerifiedNitroTpm,
        rules: &NitroTpmRules,
        now: UnixTime,
        observation: &mut Observation<NitroTpmError>,
    ) -> Result<(), NitroTpmError> {
        appraise_boot(verified, rules, now, observation)
    }

    fn by_requirement(verified: &VerifiedNitroTpm, rules: &NitroTpmRules, now: UnixTime) -> Vec<(String, Result<(), NitroTpmError>)> {
        super::rules::by_requirement(verified, rules, now)
    }
}

/// The document names no account; other evidence may prove one.
impl<P: Proofs<IdentityDocument> + Proofs<Sts>, R> OtherKinds<P, R> for NitroTpm {
    fn join(verified: VerifiedNitroTpm, proofs: &P) -> Result<VerifiedNitroTpm, KindRefusal<NitroTpmError>> {
        let document = Proofs::<IdentityDocument>::proof(proofs).map(|claimed| claimed.document().replayable());
        let by_document = document.map(|document| (document.account_id.as_str(), document.instance_id.as_str()));
        let by_sts = || Proofs::<Sts>::proof(proofs).map(|caller| (caller.account.as_str(), caller.instance.as_str()));
        match by_document.or_else(by_sts) {
            Some((account, instance)) => Ok(verified.with_account(account, instance)?),
            None => Ok(verified),
        }
    }
}
