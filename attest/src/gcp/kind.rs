//! The identity token as a kind of evidence.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;

use super::{Audience, GceRules, Gcp, GcpError, GcpEvidence, GcpTask, GoogleKeys, VerifiedIdentity, verifier};
use crate::advice::Advice;
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::values::Nothing;

impl EvidenceKind for Gcp {
    type Subject = GcpTask;
    type Rules = GceRules;
    type Proof = VerifiedIdentity;
    type Error = GcpError;
}

impl Verifier for Gcp {
    type VerificationInput<'a> = &'a GoogleKeys;

    // They may be about the certificate of vTPMs.
    const RULES_MAY_GO_UNUSED: bool = true;
    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "gcp",
        form: "gcp:<project>/<number of the instance>",
        fits: is_identity,
    }];

    fn ask(_: &Nothing, _: Option<&GoogleKeys>, _: &GceRules, asking: &Asking<'_>) -> Asked<Self> {
        let task = GcpTask {
            gateway: asking.gateway.to_owned(),
        };
        Ok((task.clone(), task))
    }

    fn screen(subject: &GcpTask, evidence: &GcpEvidence, binding: &EvidenceBinding<'_>) -> Result<(), KindRefusal<GcpError>> {
        Ok(verifier::screen(evidence.token.0.as_bytes(), &audiences(subject, binding))?)
    }

    fn verify(
        subject: &GcpTask,
        evidence: &GcpEvidence,
        keys: &GoogleKeys,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let identity = super::verify(evidence.token.0.as_bytes(), keys, &audiences(subject, binding), now)?;
        Ok((identity, None))
    }

    fn instance(identity: &VerifiedIdentity) -> Option<String> {
        Some(identity.identity())
    }

    fn reason(identity: &VerifiedIdentity, _: Pcrs) -> String {
        let (instance, account) = (&identity.instance, &identity.service_account);
        format!(
            "identity token of Google: instance {} in {}, service account {}",
            instance.instance_name(),
            instance.zone(),
            account.email
        )
    }

    fn appraise(identity: &VerifiedIdentity, rules: &GceRules, _: &BTreeSet<Kind>, now: UnixTime) -> Result<(), KindRefusal<GcpError>> {
        Ok(super::appraise(identity, rules, now)?)
    }
}

impl<P, R> OtherKinds<P, R> for Gcp {}

/// Returns the audiences that the token may have: this gateway, with each server key that the node may have seen.
fn audiences(subject: &GcpTask, binding: &EvidenceBinding<'_>) -> Vec<Audience> {
    let audience = |key| Audience::new(&subject.gateway, binding.purpose, binding.pool, binding.nonce, key);
    binding.server_keys.iter().map(audience).collect()
}

fn is_identity(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('/')
        .is_some_and(|(project, id)| !project.is_empty() && !project.contains('/') && digits(id))
}
