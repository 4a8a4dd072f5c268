use super::rules::CLOCK_SKEW_LIMIT_SECONDS;
use super::{IMDS_PATH, ValueRule};
use crate::advice::{Advice, advice};
use crate::pkcs7::Pkcs7Error;
use crate::withheld::Withheld;

/// Reason why an identity document is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityDocumentError {
    /// The PKCS#7 message does not hold.
    #[error("the answer of {IMDS_PATH} is refused: {0}")]
    Pkcs7(#[from] Pkcs7Error),
    /// No region's certificate is the signer's.
    #[error("the signer is {signer}, and none of the {certificates} configured certificates is the signer's")]
    SignerUnknown {
        /// Signer named in the message. Not verified.
        signer: String,
        /// Number of configured certificates.
        certificates: usize,
    },
    /// The region's certificate is not valid.
    #[error("the certificate of {certificate} is valid from {not_before} to {not_after}, it is now {now} (seconds since 1970)")]
    CertificateValidity {
        certificate: String,
        not_before: u64,
        not_after: u64,
        now: u64,
    },
    /// The signed content is not an identity document.
    #[error("the signed content is not an identity document: {problem}")]
    Json { problem: String },
    /// A field of another form than AWS gives it.
    #[error("{field} is {found:?}, required is {required}")]
    Field {
        field: &'static str,
        /// Its value, or the beginning.
        found: String,
        required: &'static str,
    },
    /// Another region's certificate has verified.
    #[error("the document is of region {document}, and the certificate that verifies it is of region {certificate}")]
    RegionMismatch {
        document: String,
        /// The regions that the certificate is configured for.
        certificate: String,
    },
    /// The pool does not say that it accepts evidence without a nonce.
    #[error("the document has no nonce, so a copy of it would be accepted as well; the pool requires a nonce")]
    Replayable,
    /// The instance was started after the time of verification.
    #[error("pendingTime is {pending_time}, it is now {now} (seconds since 1970); clocks may differ by {CLOCK_SKEW_LIMIT_SECONDS} s")]
    Future {
        /// Start time of the instance, in seconds since 1970.
        pending_time: u64,
        now: u64,
    },
    /// The instance was started too long ago.
    #[error("the instance was started {age_seconds} s ago")]
    TooOld {
        /// Since then, in seconds.
        age_seconds: u64,
        accepted: Withheld,
    },
    /// A value that the pool does not accept.
    #[error("the {rule} is {found}")]
    NotAccepted {
        /// The rule that refuses the value.
        rule: ValueRule,
        found: String,
        accepted: Withheld,
    },
}

advice! {
    /// Every code an [`IdentityDocumentError`] can have.
    MALFORMED = "aws-document-malformed", "The AWS identity document cannot be read", "Use the attest-node of the gateway's release: it sends IMDSv2's answer for /latest/dynamic/instance-identity/rsa2048.";
    ALGORITHM = "aws-document-algorithm", "The AWS identity document has a weak signature", "Use the document's rsa2048 form. The gateway never accepts RSA-1024, DSA or SHA-1.";
    SIGNER = "aws-document-signer", "No configured region certificate has signed the AWS identity document", "Put AWS's RSA-2048 certificate of the node's region into the directory of region certificates.";
    SIGNATURE = "aws-document-signature", "The AWS identity document's signature does not verify", "Boot again. If this repeats, the document was altered, or the region's certificate is not AWS's: compare it with AWS's documentation.";
    CERTIFICATE = "aws-document-certificate", "The region's certificate has expired or is not valid yet", "Compare the gateway's clock with the certificate. Get the region's current certificate from AWS.";
    REGION = "aws-document-region", "The AWS identity document and its signer are of different regions", "Each file in the directory of region certificates must contain that region's certificates only: correct it.";
    REPLAYABLE = "aws-document-replayable", "The pool accepts only evidence with a nonce, and an AWS identity document has none", "Let the node attest by NitroTPM or TPM as well. Or set `accept_replayable` in pool.toml, and require other evidence there.";
    AGE = "aws-document-age", "The instance started too long ago, or in the future", "Start the instance again. If this repeats, compare the gateway's clock, or raise `max_age_seconds` in pool.toml.";
    ACCOUNT = "aws-account-not-accepted", "The pool does not accept the instance's AWS account", "If the account is yours, add it to `accounts` in pool.toml.";
    PARTITION = "aws-partition-not-accepted", "The pool does not accept the instance's AWS partition", "If the pool's account is in that partition, add it to `partitions` in pool.toml.";
    PLACE = "aws-region-not-accepted", "The pool does not accept the instance's region", "If that is intended, add the region to `regions` in pool.toml.";
    ZONE = "aws-availability-zone-not-accepted", "The pool does not accept the instance's availability zone", "If that is intended, add the zone to `availability_zones` in pool.toml.";
    IMAGE = "aws-image-not-accepted", "The pool does not accept the instance's image", "After an update of the image, add its id to `image_ids` in pool.toml.";
    INSTANCE_TYPE = "aws-instance-type-not-accepted", "The pool does not accept the instance's type", "If that is intended, add the type to `instance_types` in pool.toml.";
}

impl IdentityDocumentError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Pkcs7(error) if error.is_algorithm() => ALGORITHM,
            Self::Pkcs7(error) if error.is_signature() => SIGNATURE,
            Self::Pkcs7(_) | Self::Json { .. } | Self::Field { .. } => MALFORMED,
            Self::SignerUnknown { .. } => SIGNER,
            Self::CertificateValidity { .. } => CERTIFICATE,
            Self::RegionMismatch { .. } => REGION,
            Self::Replayable => REPLAYABLE,
            Self::Future { .. } | Self::TooOld { .. } => AGE,
            Self::NotAccepted { rule, .. } => match rule {
                ValueRule::Account => ACCOUNT,
                ValueRule::Partition => PARTITION,
                ValueRule::Region => PLACE,
                ValueRule::AvailabilityZone => ZONE,
                ValueRule::Image => IMAGE,
                ValueRule::InstanceType => INSTANCE_TYPE,
            },
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::TooOld { accepted, .. } | Self::NotAccepted { accepted, .. } => Some(accepted),
            _ => None,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}
