//! Reasons why an attestation document is refused.

use rustls_pki_types::UnixTime;
use x509_parser::certificate::X509Certificate;

use super::cbor::CborError;
use crate::advice::{Advice, advice};
use crate::aws::names::{name_text, printable};
use crate::tpm::boot_complete::BootCompleteError;
use crate::values::HexDigest;
use crate::withheld::Withheld;
use crate::x509::{Anchor, PathProblem};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NitroTpmError {
    /// More bytes than any document has.
    #[error("the document has {found} bytes, at most {limit} are read")]
    TooLarge { found: usize, limit: usize },
    /// Not the CBOR of a document.
    #[error("the {part} cannot be read: {error}")]
    Cbor { part: &'static str, error: CborError },
    /// The bytes are not a `COSE_Sign1`.
    #[error("it is not a COSE_Sign1: {problem}")]
    Cose { problem: String },
    /// The CBOR tag is not that of a `COSE_Sign1`.
    #[error("it has CBOR tag {found}, a COSE_Sign1 has 18 or none")]
    Tag {
        /// Tag of the document.
        found: u64,
    },
    /// Another algorithm than ES384, or more in the protected header.
    #[error("its protected header is {found}, accepted is {accepted}: ES384 and nothing else")]
    Algorithm {
        /// The header, or its beginning, hexadecimal.
        found: String,
        accepted: String,
    },
    /// The unprotected header has content, which is not signed.
    #[error("its unprotected header is not empty")]
    Unprotected,
    /// The signature does not have the length of ES384.
    #[error("its signature has {found} bytes, one of ES384 has {needed}")]
    SignatureLength {
        found: usize,
        /// Length of an ES384 signature, in bytes.
        needed: usize,
    },
    /// A field is not there.
    #[error("it has no {field}")]
    FieldMissing { field: &'static str },
    /// A field is there twice.
    #[error("it has {field} twice")]
    FieldRepeated { field: &'static str },
    /// A field is longer than the specification lets it be.
    #[error("its {field} has {found} bytes, at most {limit} are read")]
    FieldLength { field: &'static str, found: usize, limit: usize },
    /// More certificates than any chain has.
    #[error("its cabundle has {found} certificates, at most {limit} are read")]
    CabundleLength { found: usize, limit: usize },
    /// A certificate in the document cannot be parsed.
    #[error("a certificate in it cannot be read: {problem}")]
    CertificateUnreadable { problem: String },
    /// Two certificates for one CA.
    #[error("its cabundle has two certificates of {subject:?}")]
    CertificateRepeated { subject: String },
    /// No configured root is at the end of the chain.
    #[error("its certificate {certificate:?} does not lead to a configured root")]
    UnknownIssuer {
        /// The leaf's subject. Not verified.
        certificate: String,
    },
    /// A certificate is not valid yet.
    #[error("{certificate} is valid from {not_before}, it is now {now} (seconds since 1970)")]
    NotYetValid { certificate: String, not_before: u64, now: u64 },
    /// A certificate is not valid any more.
    #[error("{certificate} was valid until {not_after}, it is now {now} (seconds since 1970)")]
    Expired { certificate: String, not_after: u64, now: u64 },
    /// A signature in the chain does not verify.
    #[error("a signature in its chain does not verify under the issuer's key")]
    ChainSignature,
    /// A signature in the chain is of another algorithm or curve.
    #[error("a signature in its chain is not ECDSA on P-384 with SHA-384")]
    ChainAlgorithm,
    /// A certificate is not for what it is used for.
    #[error("the key usage of {certificate:?} does not include {needed}")]
    CertificateUsage {
        /// Subject of the certificate.
        certificate: String,
        /// The missing key usage.
        needed: &'static str,
    },
    /// Anything else that path validation refuses.
    #[error("path validation refuses its chain: {problem}")]
    Path { problem: String },
    /// The leaf's key is of another kind.
    #[error("the key of its certificate is not P-384")]
    LeafKey,
    /// The document was altered, or signed by another key.
    #[error("its signature does not verify under the key of its certificate")]
    Signature,
    /// The document of something else.
    #[error("it has {found}, required is a document with {wanted}")]
    Shape {
        /// The field it has.
        found: &'static str,
        /// The field it should have.
        wanted: &'static str,
    },
    /// PCRs of another digest.
    #[error("its digest is {found:?}, accepted is {accepted:?}")]
    Digest {
        /// Digest that the document names.
        found: String,
        accepted: &'static str,
    },
    /// A PCR that no TPM has.
    #[error("it has PCR {found}, the last one is {last}")]
    PcrIndex {
        found: u64,
        /// Highest PCR index of the specification.
        last: u64,
    },
    /// A PCR is there twice.
    #[error("it has PCR {index} twice")]
    PcrRepeated { index: u8 },
    /// A PCR's value does not have the length of a SHA-384 digest.
    #[error("its PCR {index} has {found} bytes, a SHA-384 digest has {needed}")]
    PcrLength {
        index: u8,
        /// Length of the value, in bytes.
        found: usize,
        /// Length of a SHA-384 digest, in bytes.
        needed: usize,
    },
    /// The module is not a TPM of an instance.
    #[error("its module_id is {found:?}, required is an instance's: {wanted} and 16 digits")]
    ModuleId {
        found: String,
        /// Infix of the `module_id` of an instance's TPM.
        wanted: &'static str,
    },
    /// The certificate is about another module.
    #[error("its module_id is {module_id:?}, but its certificate is for {common_name:?}")]
    ModuleIdNotCertified {
        module_id: String,
        /// The certificate's common name.
        common_name: String,
    },
    /// Not the answer to this challenge.
    #[error("its nonce is {found}, the challenge's is {expected}")]
    Nonce {
        /// The document's nonce, hexadecimal.
        found: String,
        /// The challenge's nonce, hexadecimal.
        expected: String,
    },
    /// Made for another purpose, pool or server.
    #[error("its user_data is {found}; for this challenge and this server it would be {expected}")]
    UserData {
        /// The user data, hexadecimal.
        found: String,
        expected: String,
    },
    /// The account does not have 12 digits.
    #[error("{found:?} is not an AWS account ID: 12 digits are required")]
    AccountForm { found: String },
    /// The other evidence is about another instance.
    #[error("it identifies instance {document}, and the other evidence instance {beside}")]
    OtherInstance {
        /// Instance that the document names.
        document: String,
        /// Instance that the other evidence names.
        beside: String,
    },
    /// No evidence has proven the account of the instance.
    #[error("no evidence shows the account of instance {instance}")]
    AccountUnknown {
        instance: String,
        /// The accounts that the pool accepts.
        accepted: Withheld,
    },
    /// The pool does not accept the account of the instance.
    #[error("its account is {found}")]
    Account {
        /// Account of the instance.
        found: String,
        accepted: Withheld,
    },
    /// An instance in another region.
    #[error("its region is {found}")]
    Region {
        /// Region of the instance.
        found: String,
        accepted: Withheld,
    },
    /// An instance that is not listed.
    #[error("its instance is {found}")]
    Instance {
        /// Instance that the document names.
        found: String,
        accepted: Withheld,
    },
    /// A document that is too old, or from the future.
    #[error("it was created at {made_ms}, it is now {now_ms} (milliseconds since 1970)")]
    Age {
        /// Timestamp of the document, in milliseconds since 1970.
        made_ms: u64,
        /// The time of appraisal.
        now_ms: u64,
        accepted: Withheld,
    },
    /// A PCR of the pool's reference values is missing.
    #[error("it has no PCR {index}, and the pool's reference values require it")]
    PcrMissing { index: u8 },
    /// The machine booted something else.
    #[error("PCR {index} is {found}")]
    PcrMismatch {
        index: u8,
        found: HexDigest,
        /// The accepted values, hexadecimal.
        accepted: Withheld,
    },
    /// The document was not made while the instance boots.
    #[error("the instance's boot is over: {0}")]
    BootIsOver(#[from] BootCompleteError),
}

advice! {
    /// Every code a [`NitroTpmError`] can have.
    MALFORMED = "nitro-tpm-malformed", "The attestation document cannot be parsed, or has unexpected fields, lengths or digests", "Use the attest-node of the gateway's release. If it is that one, AWS has changed the document's format: update the gateway.";
    ALGORITHM = "nitro-tpm-algorithm", "The attestation document is not signed with ES384", "Use the unmodified attest-node. AWS signs with ES384 only.";
    NOT_ENDORSED = "nitro-tpm-not-endorsed", "The attestation document's certificate chain ends at no configured root", "Put AWS's root for the partition into nitro-roots, and compare its fingerprint with AWS's documentation.";
    CERTIFICATE_TIME = "nitro-tpm-certificate-time", "A certificate of the attestation document has expired or is not valid yet", "Compare the gateway's clock: these certificates are valid for three hours. Boot again for a new document.";
    CERTIFICATE_INVALID = "nitro-tpm-certificate-invalid", "The attestation document's certificate chain is invalid", "Boot again. If this repeats, something alters the document between node and gateway.";
    SIGNATURE = "nitro-tpm-signature", "The attestation document's signature does not verify", "Boot again. If this repeats, something alters the document between node and gateway.";
    SHAPE = "nitro-tpm-shape", "The attestation document comes from an enclave, not from an instance's NitroTPM", "Attest from the instance, not from an enclave on it.";
    NONCE = "nitro-tpm-nonce", "The attestation document is for another challenge", "Boot again. If this repeats, somebody replays documents.";
    USER_DATA = "nitro-tpm-user-data", "The attestation document is for another pool or server", "Boot again. If this repeats, a proxy terminates TLS: nodes must connect to the gateway directly.";
    OTHER_INSTANCE = "nitro-tpm-other-instance", "The attestation document and the other evidence identify different instances", "Boot again. If this repeats, somebody presents another instance's evidence.";
    ACCOUNT = "nitro-tpm-account", "The pool does not accept the instance's account, or no evidence shows it", "Add the account to `aws_nitro_tpm.accounts` in pool.toml. The document has no account: let the node also send an identity document or an STS request.";
    REGION = "nitro-tpm-region", "The pool does not accept the instance's region", "If that is intended, add the region to `aws_nitro_tpm.regions` in pool.toml.";
    INSTANCE = "nitro-tpm-instance", "The pool does not accept this instance", "If the instance is yours, add it to `aws_nitro_tpm.instances` in pool.toml.";
    AGE = "nitro-tpm-age", "The attestation document is too old", "Compare the gateway's clock. Boot again for a new document.";
    PCR_MISMATCH = "nitro-tpm-pcr-mismatch", "A PCR in the attestation document is missing, or has a value that the pool does not accept", "Compare the image with the pool's reference values. After an update, add the new digest to `aws_nitro_tpm.pcrs` in pool.toml.";
    BOOT_IS_OVER = "nitro-tpm-boot-is-over", "The instance attests after its boot, and the pool accepts only booting machines", "Reboot the instance: it attests during the boot. If it was just rebooted, something in its boot extends PCR 13, the boot-complete PCR.";
}

impl NitroTpmError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::TooLarge { .. }
            | Self::Cbor { .. }
            | Self::Cose { .. }
            | Self::Tag { .. }
            | Self::Unprotected
            | Self::SignatureLength { .. }
            | Self::FieldMissing { .. }
            | Self::FieldRepeated { .. }
            | Self::FieldLength { .. }
            | Self::CabundleLength { .. }
            | Self::Digest { .. }
            | Self::PcrIndex { .. }
            | Self::PcrRepeated { .. }
            | Self::PcrLength { .. } => MALFORMED,
            Self::Algorithm { .. } => ALGORITHM,
            Self::UnknownIssuer { .. } => NOT_ENDORSED,
            Self::NotYetValid { .. } | Self::Expired { .. } => CERTIFICATE_TIME,
            Self::CertificateUnreadable { .. }
            | Self::CertificateRepeated { .. }
            | Self::ChainSignature
            | Self::ChainAlgorithm
            | Self::CertificateUsage { .. }
            | Self::Path { .. }
            | Self::LeafKey => CERTIFICATE_INVALID,
            Self::Signature => SIGNATURE,
            Self::Shape { .. } | Self::ModuleId { .. } | Self::ModuleIdNotCertified { .. } => SHAPE,
            Self::Nonce { .. } => NONCE,
            Self::UserData { .. } => USER_DATA,
            Self::OtherInstance { .. } => OTHER_INSTANCE,
            Self::AccountForm { .. } | Self::AccountUnknown { .. } | Self::Account { .. } => ACCOUNT,
            Self::Region { .. } => REGION,
            Self::Instance { .. } => INSTANCE,
            Self::Age { .. } => AGE,
            Self::PcrMissing { .. } | Self::PcrMismatch { .. } => PCR_MISMATCH,
            Self::BootIsOver(_) => BOOT_IS_OVER,
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::AccountUnknown { accepted, .. }
            | Self::Account { accepted, .. }
            | Self::Region { accepted, .. }
            | Self::Instance { accepted, .. }
            | Self::Age { accepted, .. }
            | Self::PcrMismatch { accepted, .. } => Some(accepted),
            _ => None,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }

    /// Converts the reason why the chain of `leaf` does not hold at `now`.
    pub(super) fn from_problem(problem: PathProblem<'_, Self>, leaf: &X509Certificate<'_>, now: UnixTime) -> Self {
        let (root, now) = (|anchor: &Anchor| printable(anchor.subject()), now.as_secs());
        match problem {
            PathProblem::NotYetValid(anchor) => Self::NotYetValid {
                certificate: root(anchor),
                not_before: anchor.not_before(),
                now,
            },
            PathProblem::Expired(anchor) => Self::Expired {
                certificate: root(anchor),
                not_after: anchor.not_after(),
                now,
            },
            PathProblem::PathLength { anchor, limit, found } => Self::Path {
                problem: format!("{found} CAs are below {}, which allows {limit}", root(anchor)),
            },
            PathProblem::BudgetSpent => Self::from_webpki(&webpki::Error::MaximumSignatureChecksExceeded, leaf),
            PathProblem::Path(error) => Self::from_webpki(&error, leaf),
            PathProblem::Own(refused) => refused,
        }
    }

    /// Converts webpki's error about the chain of `leaf`.
    pub(super) fn from_webpki(error: &webpki::Error, leaf: &X509Certificate<'_>) -> Self {
        use webpki::Error;
        let somebody = || "its certificate, or a CA above it,".to_owned();
        match error {
            Error::UnknownIssuer => Self::UnknownIssuer {
                certificate: name_text(leaf.subject()),
            },
            Error::CertNotValidYet { time, not_before } => Self::NotYetValid {
                certificate: somebody(),
                not_before: not_before.as_secs(),
                now: time.as_secs(),
            },
            Error::CertExpired { time, not_after } => Self::Expired {
                certificate: somebody(),
                not_after: not_after.as_secs(),
                now: time.as_secs(),
            },
            Error::InvalidSignatureForPublicKey => Self::ChainSignature,
            Error::UnsupportedSignatureAlgorithmContext(_) | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                Self::ChainAlgorithm
            }
            other => Self::Path {
                problem: other.to_string(),
            },
        }
    }
}
