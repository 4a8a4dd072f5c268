//! A provisioning token beside evidence. The gateway looks it up; nothing here verifies it.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use crate::advice::Advice;
use crate::kinds::{Asked, Asking, Beside, Cloud, EvidenceKind, IdentityForm, Kind, Parts, Refusal, Verified, Verifier};
use crate::nonce::Binding;
use crate::values::{Blob, Nothing, SecretText};

/// A provisioning token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEvidence {
    /// The token. A secret.
    pub token: SecretText,
}

/// A provisioning token, beside evidence of another kind.
#[derive(Debug)]
pub enum Token {}

/// No token was taken, or none was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;

impl EvidenceKind for Token {
    type Offer = Nothing;
    type Task = Nothing;
    type Subject = Nothing;
    type Evidence = TokenEvidence;
    /// Whether it is good is the gateway's to say.
    type Rules = ();
    /// Its name.
    type Proof = String;
    type Error = NoToken;
}

impl Verifier for Token {
    /// The name of the token, if the gateway has taken it.
    type HeldAgainst<'a> = Option<&'a str>;

    const CLOUD: Option<Cloud> = None;
    const RULES_MAY_GO_UNUSED: bool = true;
    const ADVICE: &'static [&'static [Advice]] = &[];
    const IDENTITIES: &'static [IdentityForm] = &[];

    fn ask(_: &Nothing, _: Option<Option<&str>>, _: &(), _: &Asking<'_>) -> Asked<Self> {
        Ok((Nothing {}, Nothing {}))
    }

    fn verify(_: &Nothing, _: &TokenEvidence, taken: Option<&str>, _: &Binding<'_>, _: UnixTime) -> Verified<Self> {
        Ok((taken.ok_or(NoToken)?.to_owned(), None))
    }

    /// It says no more than that somebody was given it.
    fn instance(_: &String) -> Option<String> {
        None
    }

    fn reason(name: &String) -> String {
        format!("provisioning token {name:?}")
    }

    fn shown_parts(_: &TokenEvidence) -> Parts<'_> {
        Vec::new()
    }

    fn forget_secrets(evidence: &mut TokenEvidence) {
        evidence.token = SecretText::default();
    }

    fn size(evidence: &TokenEvidence, _: Option<&Blob>) -> Option<usize> {
        Some(evidence.token.reveal().len())
    }

    fn appraise(_: &String, (): &(), _: &BTreeSet<Kind>, _: UnixTime) -> Result<(), Refusal<NoToken>> {
        Ok(())
    }
}

impl<P, R> Beside<P, R> for Token {}
