//! NitroTPM attestation documents: the Nitro hypervisor signs what an EC2 instance's PCRs hold.
//!
//! **Proves**: which instance it is, in which region, and what is in its PCRs, at this moment and for this gateway.
//!
//! **Does not prove**: the owner of the instance. The document names no account: anyone with an AWS account can start the same image and
//! get the same PCRs. So a pool names the accounts that it accepts, and the account comes from other evidence
//! ([`VerifiedNitroTpm::with_account`]). Or the pool says that it does not check the account. Nor does the document prove that the instance
//! is not compromised after its boot.
//!
//! **Freshness**: the document holds the challenge's nonce, and as user data what binds it to the purpose, the pool and the
//! gateway's key ([`expected_user_data`]). The certificate that signs it lives three hours.
//!
//! A document is a COSE_Sign1 (RFC 9052) with ES384, around a CBOR map. The certificate that verifies it is inside the map, so
//! the order is: read the certificates from the unverified payload and nothing else ([`cose`]), validate their path to a
//! configured root ([`chain`]), verify the signature with the leaf's key, and only then parse the payload ([`document`]), from
//! the bytes that the signature was verified over.

mod cbor;
mod chain;
mod cose;
mod document;
mod error;
mod kind;
mod rules;
mod subject;
mod verifier;

/// Values that a document must be bound to.
pub use crate::nonce::EvidenceBinding as Expected;

pub use attest_wire::aws::nitro_tpm::{DOCUMENT_LIMIT_BYTES, NitroTpm, NitroTpmEvidence, expected_user_data};
pub use cbor::CborError;
pub use chain::{NitroRoots, NitroRootsError, RootProblem};
pub use document::{AuthenticDocument, DocumentKind, NONCE_LIMIT_BYTES, NitroTpmDocument, NitroTpmInstance, VerifiedNitroTpm};
pub use error::{ADVICE, NitroTpmError};
pub use rules::{NitroTpmRules, NitroTpmRulesError, appraise};
pub use subject::NitroTpmSubject;
pub use verifier::{authenticate, verify};
