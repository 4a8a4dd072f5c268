//! NitroTPM attestation documents: the Nitro hypervisor signs what an EC2 instance's PCRs hold.
//!
//! **Proves**: which instance it is, in which region, and what is in its PCRs, at this moment and for this gateway.
//!
//! **Does not prove**: whose instance it is. There is no account in the document: whoever has an AWS account can start the same
//! image and have the same PCRs. So a pool says which accounts it takes, and the account comes from evidence beside this one
//! ([`VerifiedNitroTpm::with_account`]), or it says that it does not check the account. Nor does it prove that the instance is
//! not compromised after its boot.
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

/// What a document has to answer.
pub use crate::nonce::Binding as Expected;

pub use attest_wire::aws::nitro_tpm::{DOCUMENT_LIMIT_BYTES, NitroTpm, NitroTpmEvidence, expected_user_data};
pub use cbor::CborError;
pub use chain::{NitroRoots, NitroRootsError, RootProblem};
pub use document::{AuthenticDocument, NONCE_LIMIT_BYTES, NitroTpmDocument, NitroTpmInstance, Shape, VerifiedNitroTpm};
pub use error::{ADVICE, NitroTpmError};
pub use rules::{NitroTpmRules, RulesError, appraise};
pub use subject::NitroTpmSubject;
pub use verifier::{authenticate, verify};
