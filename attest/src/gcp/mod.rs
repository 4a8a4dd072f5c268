//! Google Compute Engine: which virtual machine a node is, said by Google.
//!
//! Two kinds of evidence, which stand by themselves or together:
//!
//! - The **identity token** of the metadata server ([`verify`]): a JWT that Google signs for any process that asks on the machine. Its
//!   audience is the caller's choice, and so carries the challenge: see [`Audience`]. It proves which instance of which project
//!   asked, moments ago, for this gateway and this challenge. It does not prove what was booted, nor that it was the operating
//!   system that asked: any process on the instance that reaches the metadata server can.
//! - The **EK certificate of Shielded VM's vTPM** ([`crate::tpm::vtpm::verify`]): a certificate that Google has issued when the instance was
//!   made, and that names it. It proves offline to which instance an EK belongs. It proves nothing about freshness: that comes
//!   from the TPM's own evidence for the same EK ([`crate::tpm::vtpm::VerifiedInstance::check_ek`]).
//!
//! Both identify a [`GceInstance`]. Its identity is the instance id, which Google never assigns twice; another machine can get the name after
//! this one was deleted.

mod discovery;
mod document;
mod error;
mod instance;
mod keys;
mod kind;
mod openid;
mod profile;
mod rules;
mod verifier;

pub use attest_wire::gcp::{Audience, Gcp, GcpEvidence, GcpTask, IDENTITY_TOKEN_LIMIT_BYTES, METADATA_HEADER, METADATA_HOST, request_path};
pub use discovery::{DISCOVERY_LIMIT_BYTES, DISCOVERY_URL, DiscoveryError, keys_url};
pub use document::{GceIdentity, ServiceAccount, VerifiedIdentity};
pub(crate) use error::printable;
pub use error::{ADVICE, GcpError};
pub use instance::GceInstance;
pub use keys::{GoogleKeys, JWKS_LIMIT_BYTES, JWKS_URL, KEYS_LIMIT, KeysError};
pub use profile::{AGE_LIMIT_SECONDS, CLOCK_SKEW_SECONDS, ISSUER, LIFETIME_LIMIT_SECONDS};
pub(crate) use rules::matches;
pub use rules::{GceRules, NamePattern, Project, appraise, appraise_vtpm};
pub use verifier::verify;
