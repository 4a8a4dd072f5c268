//! A signed request to STS as a kind of evidence.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;

use super::{Sts, StsError, StsEvidence, StsResponse, StsRules, VerifiedSts};
use crate::advice::Advice;
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::values::Nothing;

impl EvidenceKind for Sts {
    type Subject = Nothing;
    type Rules = StsRules;
    type Proof = VerifiedSts;
    type Error = StsError;
}

/// A request to AWS STS that the gateway has sent.
#[derive(Debug, Clone, Copy)]
pub struct StsCall<'a> {
    /// The rules for requests that may be sent.
    pub rules: &'a StsRules,
    /// AWS's response to the request.
    pub answer: StsResponse<'a>,
}

impl Verifier for Sts {
    type VerificationInput<'a> = StsCall<'a>;

    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    // Those of identity documents.
    const IDENTITIES: &'static [IdentityForm] = &[];

    fn ask(_: &Nothing, _: Option<StsCall<'_>>, _: &StsRules, _: &Asking<'_>) -> Asked<Self> {
        Ok((Nothing {}, Nothing {}))
    }

    fn verify(_: &Nothing, evidence: &StsEvidence, call: StsCall<'_>, binding: &EvidenceBinding<'_>, now: UnixTime) -> Verified<Self> {
        let request = super::check(&evidence.request, call.rules, binding, now)?;
        let verified = super::verify_answer(request, &call.answer)?;
        let server_key = verified.server_key;
        Ok((verified, Some(server_key)))
    }

    fn instance(caller: &VerifiedSts) -> Option<String> {
        Some(caller.identity())
    }

    fn reason(caller: &VerifiedSts, _: Pcrs) -> String {
        format!("AWS STS in {}: role {}", caller.region.as_str(), caller.role.as_str())
    }

    fn appraise(caller: &VerifiedSts, rules: &StsRules, _: &BTreeSet<Kind>, _: UnixTime) -> Result<(), KindRefusal<StsError>> {
        Ok(super::appraise(caller, rules)?)
    }
}

impl<P, R> OtherKinds<P, R> for Sts {}
