//! The EC2 instance identity document with its RSA-2048 PKCS#7 signature.
//!
//! **Proves**: that AWS has given this document to the instance that it names. The document names account, region, instance, image and the
//! time at which the instance was started.
//!
//! **Does not prove**: that the sender *is* the instance. The document has no nonce, it never expires, and every process on the instance
//! can read it. So a copy is as good as the original: [`verify`] returns it as [`Replayable`]. Two things limit this: the age of
//! `pendingTime` ([`IdentityDocumentRules::max_age_seconds`]), and the instance claim in the gateway. The first use binds the instance to
//! one node, and a second claimant is refused.
//!
//! **Key**: only the certificate that is configured for a region. A certificate inside of the message is ignored, and the document's own
//! region must be that of the certificate. Certificates with RSA-1024, whose key many regions share, and with DSA are refused when they are
//! loaded.

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
pub use partition::AwsPartition;
pub use rules::{CLOCK_SKEW_LIMIT_SECONDS, IdentityDocumentRules, ValueRule};
pub use verifier::verify;
