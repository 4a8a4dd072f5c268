use std::convert::Infallible;

use rustls_pki_types::UnixTime;

use super::AzureValueRule;
use super::rules::CLOCK_SKEW_LIMIT_SECONDS;
use crate::advice::{Advice, advice};
use crate::pkcs7::Pkcs7Error;
use crate::withheld::Withheld;
use crate::x509::PathProblem;
use crate::x509::names::issuer_of;

/// Reason why an attested document is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttestedDocumentError {
    /// The PKCS#7 message does not hold.
    #[error("the attested document is refused: {0}")]
    Pkcs7(#[from] Pkcs7Error),
    /// The signer is not a metadata service of Azure.
    #[error("the signer's certificate ({certificate}) is refused: {problem}")]
    Chain {
        /// Its issuer and serial number.
        certificate: String,
        problem: ChainError,
    },
    /// The signed content is not an attested document.
    #[error("the signed content is not an attested document: {problem}")]
    Json { problem: String },
    /// A field of another form than Azure gives it.
    #[error("{field} is {found:?}, required is {required}")]
    Field {
        field: &'static str,
        /// Its value, or the beginning.
        found: String,
        /// The form that Azure gives the field.
        required: &'static str,
    },
    /// The document was made for something else.
    #[error("the document's nonce is {document:?}, the challenge's is {expected:?}")]
    Nonce {
        document: String,
        /// Nonce that follows from the challenge.
        expected: String,
    },
    /// The document was made after the time of verification.
    #[error("createdOn is {created_on}, it is now {now} (seconds since 1970); clocks may differ by {CLOCK_SKEW_LIMIT_SECONDS} s")]
    Future {
        /// Creation time of the document, in seconds since 1970.
        created_on: u64,
        now: u64,
    },
    /// The document does not hold any more.
    #[error("the document held until {expires_on}, it is now {now} (seconds since 1970)")]
    Expired { expires_on: u64, now: u64 },
    /// The document was made too long ago.
    #[error("the document was made {age_seconds} s ago")]
    TooOld {
        /// Since then, in seconds.
        age_seconds: u64,
        accepted: Withheld,
    },
    /// A value that the pool does not accept.
    #[error("the {rule} is {found}")]
    NotAccepted {
        /// The rule that refuses the value.
        rule: AzureValueRule,
        /// The document's value, quoted; or that it has none.
        found: String,
        /// The values that the pool accepts.
        accepted: Withheld,
    },
}

/// Reason why a certificate is not that of a metadata service.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// No name of a metadata service.
    #[error("its names are {found:?}, none of them is under {required}")]
    Names {
        /// The DNS names it has.
        found: String,
        /// The domains of the configured clouds.
        required: String,
    },
    /// The certificate is not for TLS servers.
    #[error("its extended key usage does not include serverAuth")]
    ServerAuth,
    /// Its key may not sign.
    #[error("its key usage is {found}, required is Digital Signature")]
    KeyUsage {
        /// The usages it has.
        found: String,
    },
    /// No configured root is at the end of its chain.
    #[error("its issuer {issuer:?} is neither a configured root nor linked to one by an intermediate that is at hand")]
    UnknownIssuer {
        /// The issuer that its text names. Not verified.
        issuer: String,
    },
    /// The root is not valid.
    #[error("{certificate} is valid from {not_before} to {not_after}, it is now {now} (seconds since 1970)")]
    Validity {
        certificate: String,
        not_before: u64,
        not_after: u64,
        now: u64,
    },
    /// Anything else that path validation refuses: dates, signatures, constraints, the effort that it would take.
    #[error("path validation refuses it: {0}")]
    Path(webpki::Error),
}

advice! {
    /// Every code an [`AttestedDocumentError`] can have.
    MALFORMED = "azure-document-malformed", "The Azure attested document cannot be read", "Use the attest-node of the gateway's release: it sends the signature in IMDS's answer for /metadata/attested/document.";
    ALGORITHM = "azure-document-algorithm", "The Azure attested document has a weak signature", "Boot again. If this repeats, something answers in place of Azure's metadata service.";
    SIGNER = "azure-document-signer", "The Azure attested document does not have exactly one signer with its certificate", "Use the unmodified attest-node. If this repeats, something answers in place of Azure's metadata service.";
    SIGNATURE = "azure-document-signature", "The Azure attested document's signature does not verify", "Boot again. If this repeats, something alters the document between node and gateway.";
    ISSUER = "azure-document-issuer", "The certificate of the Azure attested document's signer leads to no configured root", "From Microsoft's list of Azure's certificate authorities, add the CA that the gateway's log names to the directory of Azure's intermediates, or its root to the roots.";
    CERTIFICATE = "azure-document-certificate", "The Azure attested document's signer is not Azure's metadata service", "Compare the gateway's clock and the configured clouds with the certificate. The gateway's log names the failed check.";
    NONCE = "azure-document-nonce", "The Azure attested document is for another challenge", "attest-node requests a new challenge by itself: IMDS may repeat an older answer for some seconds. If this repeats, use the attest-node of the gateway's release; after that, somebody replays documents.";
    EXPIRED = "azure-document-expired", "The Azure attested document is too old, or from the future", "Boot again. If this repeats, compare the gateway's clock, or raise `max_age_seconds` in pool.toml.";
    SUBSCRIPTION = "azure-subscription-not-accepted", "The pool does not accept the machine's Azure subscription", "If the subscription is yours, add it to `subscriptions` in pool.toml.";
    VM = "azure-vm-not-accepted", "The pool does not accept this machine's vmId", "If the machine is yours, add its vmId to `vm_ids` in pool.toml.";
    SKU = "azure-sku-not-accepted", "The pool does not accept the SKU of the machine's image", "If that is intended, add the SKU to `skus` in pool.toml.";
    LOCATION = "azure-location-not-accepted", "The pool does not accept the machine's region", "If that is intended, add the region to `locations` in pool.toml.";
}

impl AttestedDocumentError {
    /// Returns `true` if no chain could be built, and nothing else is wrong: then an intermediate may be missing ([`super::issuer_urls`]).
    #[must_use]
    pub const fn is_unknown_issuer(&self) -> bool {
        matches!(
            self,
            Self::Chain {
                problem: ChainError::UnknownIssuer { .. },
                ..
            }
        )
    }

    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Pkcs7(error) if error.is_algorithm() => ALGORITHM,
            Self::Pkcs7(error) if error.is_signature() => SIGNATURE,
            Self::Pkcs7(error) if error.is_signer() => SIGNER,
            Self::Pkcs7(_) | Self::Json { .. } | Self::Field { .. } => MALFORMED,
            Self::Chain {
                problem: ChainError::UnknownIssuer { .. },
                ..
            } => ISSUER,
            Self::Chain { .. } => CERTIFICATE,
            Self::Nonce { .. } => NONCE,
            Self::Future { .. } | Self::Expired { .. } | Self::TooOld { .. } => EXPIRED,
            Self::NotAccepted { rule, .. } => match rule {
                AzureValueRule::Subscription => SUBSCRIPTION,
                AzureValueRule::Vm => VM,
                AzureValueRule::Sku => SKU,
                AzureValueRule::Location => LOCATION,
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

impl ChainError {
    /// Converts the reason why the chain of `leaf` does not hold at `now`.
    pub(super) fn from_path_problem(problem: PathProblem<'_, Infallible>, leaf: &[u8], now: UnixTime) -> Self {
        match problem {
            PathProblem::NotYetValid(root) | PathProblem::Expired(root) => Self::Validity {
                certificate: format!("root {:?}", root.subject()),
                not_before: root.not_before(),
                not_after: root.not_after(),
                now: now.as_secs(),
            },
            PathProblem::PathLength { .. } => Self::Path(webpki::Error::PathLenConstraintViolated),
            PathProblem::BudgetSpent => Self::Path(webpki::Error::MaximumSignatureChecksExceeded),
            PathProblem::Path(webpki::Error::UnknownIssuer) => Self::UnknownIssuer { issuer: issuer_of(leaf) },
            PathProblem::Path(error) => Self::Path(error),
            PathProblem::Own(never) => match never {},
        }
    }
}
