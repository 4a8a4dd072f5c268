//! A provisioning token together with evidence. The gateway looks it up; nothing here verifies it.

use std::collections::BTreeSet;

pub use attest_wire::token::{Token, TokenEvidence};
use rustls_pki_types::UnixTime;

use crate::advice::Advice;
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Verified, Verifier};
use crate::nonce::EvidenceBinding;
use crate::values::Nothing;

/// No token was accepted, or none was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;

impl EvidenceKind for Token {
    type Subject = Nothing;
    /// No rules: the gateway decides whether a token is valid.
    type Rules = ();
    type Proof = String;
    type Error = NoToken;
}

impl Verifier for Token {
    /// The name of the token, if the gateway has accepted it.
    type VerificationInput<'a> = Option<&'a str>;

    const RULES_MAY_GO_UNUSED: bool = true;
    const ADVICE: &'static [&'static [Advice]] = &[];
    const IDENTITIES: &'static [IdentityForm] = &[];

    fn ask(_: &Nothing, _: Option<Option<&str>>, _: &(), _: &Asking<'_>) -> Asked<Self> {
        Ok((Nothing {}, Nothing {}))
    }

    fn verify(_: &Nothing, _: &TokenEvidence, taken: Option<&str>, _: &EvidenceBinding<'_>, _: UnixTime) -> Verified<Self> {
        Ok((taken.ok_or(NoToken)?.to_owned(), None))
    }

    /// A token identifies no instance: it only proves that it was given to the client.
    fn instance(_: &String) -> Option<String> {
        None
    }

    fn reason(name: &String, _: Pcrs) -> String {
        format!("provisioning token {name:?}")
    }

    fn appraise(_: &String, (): &(), _: &BTreeSet<Kind>, _: UnixTime) -> Result<(), KindRefusal<NoToken>> {
        Ok(())
    }
}

impl<P, R> OtherKinds<P, R> for Token {}
