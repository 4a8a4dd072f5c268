use std::convert::Infallible;

use super::subject::{SubjectError, issuer_of};
use attest::UnixTime;
use attest::x509::PathProblem;
use attest_system::clock::rfc3339;
use rustls_pki_types::CertificateDer;

use super::{CERTIFICATE_LIMIT_BYTES, CHAIN_LIMIT_CERTIFICATES};

/// Reason why a certificate is not accepted as a kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeletError {
    /// No certificate at all.
    #[error("the client has presented an empty chain")]
    Empty,
    /// A longer chain than any cluster has.
    #[error("{found} certificates were presented, at most {CHAIN_LIMIT_CERTIFICATES} are read")]
    TooMany { found: usize },
    /// A larger certificate than any kubelet has.
    #[error("a certificate of {found} bytes was presented, at most {CERTIFICATE_LIMIT_BYTES} are read")]
    TooLarge {
        /// Its length in bytes.
        found: usize,
    },
    /// Not an X.509 certificate.
    #[error("the client certificate cannot be read: {problem}")]
    Malformed { problem: String },
    /// The chain ends at no configured CA that is currently valid.
    #[error("the client certificate's issuer {issuer:?} is not a currently valid client CA, nor linked to one")]
    UnknownIssuer {
        /// The issuer that its text names. Not verified.
        issuer: String,
    },
    /// It, or a CA above it, is not valid yet.
    #[error("the client certificate, or a CA above it, is valid from {}, it is now {}", rfc3339(*.not_before), rfc3339(*.now))]
    NotYetValid {
        /// Its first second, since 1970.
        not_before: u64,
        /// The time of the request, seconds since 1970.
        now: u64,
    },
    /// It, or a CA above it, is not valid any more.
    #[error("the client certificate, or a CA above it, was valid until {}, it is now {}", rfc3339(*.not_after), rfc3339(*.now))]
    Expired {
        /// Its last second, since 1970.
        not_after: u64,
        /// The time of the request, seconds since 1970.
        now: u64,
    },
    /// A signature in its chain does not verify.
    #[error("a signature in the client certificate's chain does not verify under the key of the named issuer")]
    Signature,
    /// It was issued for another purpose.
    #[error("the client certificate's extended key usage is {found}, a kubelet's has clientAuth")]
    Usage { found: String },
    /// It is a CA's certificate.
    #[error("the client certificate is a CA certificate")]
    IsCa,
    /// The chain is longer than webpki follows, or takes too many attempts to build.
    #[error("the client certificate's chain is too long, or takes too many attempts to build")]
    ChainTooLong,
    /// Anything else that path validation refuses.
    #[error("the client certificate's chain is invalid: {0}")]
    Path(webpki::Error),
    /// The chain holds, and the subject is not a node's.
    #[error("the client certificate is for {subject:?}, which is not a node: {problem}")]
    NotANode {
        /// The subject, from a verified chain.
        subject: String,
        /// Reason why it is not a node's.
        problem: SubjectError,
        /// The verified chain, the leaf first, for the record.
        path: Vec<CertificateDer<'static>>,
    },
}

impl KubeletError {
    /// Returns the chain, leaf first, if it is verified. For an unverified certificate it is empty, so that only the cluster's CAs decide
    /// what records keep.
    #[must_use]
    pub fn path(&self) -> &[CertificateDer<'static>] {
        match self {
            Self::NotANode { path, .. } => path,
            _ => &[],
        }
    }

    /// Returns the code of the refusal.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotANode { .. } => "kubelet-certificate-not-a-node",
            error if error.is_about_dates() => "kubelet-certificate-expired",
            _ => "kubelet-certificate-invalid",
        }
    }

    /// Returns whether only the validity dates are wrong.
    #[must_use]
    pub const fn is_about_dates(&self) -> bool {
        matches!(self, Self::NotYetValid { .. } | Self::Expired { .. })
    }

    /// Returns the reason why the chain of `leaf` is invalid at `now`.
    pub(super) fn from_path_problem(problem: PathProblem<'_, Infallible>, leaf: &[u8], now: UnixTime) -> Self {
        let now = now.as_secs();
        match problem {
            PathProblem::NotYetValid(ca) => Self::NotYetValid {
                not_before: ca.not_before(),
                now,
            },
            PathProblem::Expired(ca) => Self::Expired {
                not_after: ca.not_after(),
                now,
            },
            PathProblem::PathLength { .. } => Self::Path(webpki::Error::PathLenConstraintViolated),
            PathProblem::BudgetSpent => Self::ChainTooLong,
            PathProblem::Path(error) => Self::from_webpki(error, leaf),
            PathProblem::Own(never) => match never {},
        }
    }

    fn from_webpki(error: webpki::Error, leaf: &[u8]) -> Self {
        use webpki::Error;
        match error {
            Error::UnknownIssuer => Self::UnknownIssuer { issuer: issuer_of(leaf) },
            Error::CertNotValidYet { time, not_before } => Self::NotYetValid {
                not_before: not_before.as_secs(),
                now: time.as_secs(),
            },
            Error::CertExpired { time, not_after } => Self::Expired {
                not_after: not_after.as_secs(),
                now: time.as_secs(),
            },
            Error::InvalidSignatureForPublicKey | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => Self::Signature,
            Error::RequiredEkuNotFoundContext(_) => Self::Usage {
                found: "for another purpose, or a CA above it has another".to_owned(),
            },
            Error::CaUsedAsEndEntity => Self::IsCa,
            Error::MaximumPathDepthExceeded | Error::MaximumPathBuildCallsExceeded | Error::MaximumSignatureChecksExceeded => {
                Self::ChainTooLong
            }
            other => Self::Path(other),
        }
    }
}
