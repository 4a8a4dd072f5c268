//! The identity document as a kind of evidence.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;

use super::appraisal::appraise_with_fresh;
use super::{
    ClaimedDocument, IdentityDocument, IdentityDocumentError, IdentityDocumentEvidence, IdentityDocumentRules, RegionCertificates,
};
use crate::advice::Advice;
use crate::aws::names::{is_account, is_any_instance};
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::values::Nothing;

impl EvidenceKind for IdentityDocument {
    type Subject = Nothing;
    type Rules = IdentityDocumentRules;
    type Proof = ClaimedDocument;
    type Error = IdentityDocumentError;
}

impl Verifier for IdentityDocument {
    type VerificationInput<'a> = &'a RegionCertificates;

    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "aws",
        form: "aws:<account>/<instance>",
        fits: is_identity,
    }];

    fn ask(_: &Nothing, _: Option<&RegionCertificates>, _: &IdentityDocumentRules, _: &Asking<'_>) -> Asked<Self> {
        Ok((Nothing {}, Nothing {}))
    }

    fn verify(
        _: &Nothing,
        evidence: &IdentityDocumentEvidence,
        certificates: &RegionCertificates,
        _: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let document = super::verify(evidence.pkcs7.0.as_bytes(), certificates, now)?;
        Ok((ClaimedDocument { document }, None))
    }

    fn instance(claimed: &ClaimedDocument) -> Option<String> {
        Some(claimed.document().replayable().node_identity())
    }

    fn reason(claimed: &ClaimedDocument, _: Pcrs) -> String {
        let document = claimed.document().replayable();
        format!(
            "identity document of AWS: image {} in {}",
            document.image_id.as_str(),
            document.region.as_str()
        )
    }

    fn check_rules(rules: &IdentityDocumentRules, together: &BTreeSet<Kind>) -> Result<(), &'static str> {
        if rules.accept_replayable || !Self::is_worth_a_copy(together) {
            return Ok(());
        }
        Err(
            "an identity document has no nonce, so a copy of it would be accepted as well: to allow that, set accept_replayable = true in [aws_identity_document]",
        )
    }

    /// Returns `true` unless other evidence, bound to this challenge, proves to be that very instance.
    fn is_worth_a_copy(together: &BTreeSet<Kind>) -> bool {
        !together.contains(&Kind::AwsNitroTpm) && !together.contains(&Kind::AwsSts)
    }

    fn appraise(
        claimed: &ClaimedDocument,
        rules: &IdentityDocumentRules,
        together: &BTreeSet<Kind>,
        now: UnixTime,
    ) -> Result<(), KindRefusal<IdentityDocumentError>> {
        let appraise = if Self::is_worth_a_copy(together) {
            super::appraise
        } else {
            appraise_with_fresh
        };
        Ok(appraise(claimed.document(), rules, now)?)
    }
}

impl<P, R> OtherKinds<P, R> for IdentityDocument {}

fn is_identity(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(account, instance)| is_account(account) && is_any_instance(instance))
}
