//! The attested document that Azure's Instance Metadata Service (IMDS) signs for a virtual machine.
//!
//! **Proves**: that Azure has given this document to the machine that it names, when it was asked with this nonce. The document names the
//! machine (vmId), its subscription, and its period of validity.
//!
//! **Does not prove**: what the machine booted, or that it is not compromised: every process on the machine can ask. Location, image and
//! size are not in it. [`VerifiedAttestedDocument::location`] is read from the names in the signer's certificate.
//!
//! **Freshness**: the nonce has 32 letters and digits, 190 bits, which is all that Azure takes ([`ImdsNonce`]); and the document holds for
//! six hours. [`appraise`] refuses it afterwards, or earlier by [`AttestedDocumentRules::max_age_seconds`].
//!
//! **Key**: the message has exactly one signer, and exactly one certificate in it is that signer's. That one has to lead to a configured
//! root over configured (or fetched, see [`IssuerUrls`]) intermediates; other certificates in the message are ignored. It has to be for TLS
//! servers, with a name under a configured cloud's domain, and valid at the time of verification.

mod aia;
mod appraisal;
mod cloud;
mod document;
mod error;
mod kind;
mod rules;
mod subject;
mod trust;
mod verifier;

pub use aia::{AllowedUrl, IssuerUrls, URLS_LIMIT};
pub use appraisal::appraise;
pub use attest_wire::azure::attested_document::{
    AttestedDocument, AzureEvidence, ENCODING, IMDS_HEADER, IMDS_NONCE_LIMIT_CHARACTERS, ImdsAnswer, ImdsNonce, MalformedNonce, NonceForm,
    imds_path,
};
pub use cloud::AzureCloud;
pub use document::{AttestedData, MarketplacePlan, VerifiedAttestedDocument};
pub use error::{ADVICE, AttestedDocumentError, ChainError};
pub use rules::{AttestedDocumentRules, AzureValueRule, CLOCK_SKEW_LIMIT_SECONDS};
pub use subject::AzureSubject;
pub use trust::{AzureCaProblem, AzureTrust, AzureTrustError, INTERMEDIATES_LIMIT, ROOTS_LIMIT};
pub use verifier::{issuer_urls, verify};
