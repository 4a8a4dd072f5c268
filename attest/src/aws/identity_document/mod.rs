//! The EC2 instance identity document with its RSA-2048 PKCS#7 signature.
//!
//! What it proves: that AWS has given this document to the instance that it names. The document names account, region, instance,
//! image and the time at which the instance was started.
//!
//! What it does not prove: that whoever presents it *is* the instance. It has no nonce, it never expires, and every process on the
//! instance can read it, so a copy is as good as the original: [`verify`] returns it as [`Replayable`]. What bounds this is the
//! age of pendingTime ([`IdentityDocumentRules::max_age_seconds`]), and what the gateway does: the first use binds the instance
//! to one node, and a second claimant is refused.
//!
//! Which key: the certificate that is configured for a region, and no other. A certificate inside of the message is not looked
//! at, and the document's own region has to be that of the certificate. RSA-1024, whose key many regions share, and DSA are refused
//! when certificates are loaded.

mod appraisal;
mod certificates;
mod document;
mod error;
mod kind;
mod partition;
mod rules;
mod verifier;

pub use appraisal::appraise;
pub use attest_wire::aws::identity_document::{IMDS_PATH, IdentityDocument, IdentityDocumentEvidence};
pub use certificates::{
    CERTIFICATES_PER_REGION_LIMIT, REGIONS_LIMIT, RegionCertificateProblem, RegionCertificates, RegionCertificatesError,
};
pub use document::{ClaimedDocument, InstanceIdentity, Replayable, VerifiedIdentityDocument};
pub use error::{ADVICE, IdentityDocumentError};
pub use partition::Partition;
pub use rules::{CLOCK_SKEW_LIMIT_SECONDS, IdentityDocumentRules, Rule};
pub use verifier::verify;
