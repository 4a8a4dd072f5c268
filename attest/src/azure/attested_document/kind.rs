//! The attested document as a kind of evidence.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;

use super::{
    AttestedDocument, AttestedDocumentError, AttestedDocumentRules, AzureEvidence, AzureSubject, AzureTrust, ImdsNonce, NonceForm,
    VerifiedAttestedDocument,
};
use crate::advice::Advice;
use crate::kinds::{Asked, Asking, EvidenceKind, IdentityForm, Kind, KindRefusal, OtherKinds, Pcrs, Verified, Verifier};
use crate::nonce::{EvidenceBinding, qualifying_data};
use crate::values::Nothing;

impl EvidenceKind for AttestedDocument {
    type Subject = AzureSubject;
    type Rules = AttestedDocumentRules;
    type Proof = VerifiedAttestedDocument;
    type Error = AttestedDocumentError;
}

impl Verifier for AttestedDocument {
    type VerificationInput<'a> = &'a AzureTrust;

    const ADVICE: &'static [&'static [Advice]] = &[super::ADVICE];
    const IDENTITIES: &'static [IdentityForm] = &[IdentityForm {
        prefix: "azure",
        form: "azure:<subscription>/<vmId> in lower case",
        fits: is_identity,
    }];

    fn ask(_: &Nothing, _: Option<&AzureTrust>, _: &AttestedDocumentRules, _: &Asking<'_>) -> Asked<Self> {
        let nonce = NonceForm::Alphanumeric32;
        Ok((AzureSubject { nonce }, Nothing {}))
    }

    /// The document is for this challenge, and one of the keys that the node may have seen.
    fn verify(
        _: &AzureSubject,
        evidence: &AzureEvidence,
        trust: &AzureTrust,
        binding: &EvidenceBinding<'_>,
        now: UnixTime,
    ) -> Verified<Self> {
        let mut refused = KindRefusal::NothingToHoldAgainst(Kind::Azure);
        for key in binding.server_keys {
            let bound = qualifying_data(binding.nonce, binding.purpose, binding.pool, key);
            let nonce = ImdsNonce::derive(&bound);
            match super::verify(evidence.signature.0.as_bytes(), trust, &nonce, now) {
                Ok(document) => return Ok((document, Some(*key))),
                Err(error @ AttestedDocumentError::Nonce { .. }) => refused = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(refused)
    }

    fn instance(document: &VerifiedAttestedDocument) -> Option<String> {
        Some(document.node_identity())
    }

    fn reason(document: &VerifiedAttestedDocument, _: Pcrs) -> String {
        let place = document.location.as_deref().unwrap_or("an unnamed region");
        format!("attested document of Azure, signed in {place}")
    }

    fn appraise(
        document: &VerifiedAttestedDocument,
        rules: &AttestedDocumentRules,
        _: &BTreeSet<Kind>,
        now: UnixTime,
    ) -> Result<(), KindRefusal<AttestedDocumentError>> {
        Ok(super::appraise(document, rules, now)?)
    }
}

impl<P, R> OtherKinds<P, R> for AttestedDocument {}

fn is_identity(text: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'-' | b'0'..=b'9' | b'a'..=b'f');
    let uuid = |text: &str| text.len() == 36 && text.bytes().all(digit);
    text.split_once('/')
        .is_some_and(|(subscription, vm)| uuid(subscription) && uuid(vm))
}
