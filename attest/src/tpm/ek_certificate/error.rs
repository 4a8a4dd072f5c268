use std::convert::Infallible;

use rustls_pki_types::UnixTime;

use super::{CERTIFICATE_LIMIT_BYTES, INTERMEDIATES_LIMIT};
use crate::x509::names::issuer_of;
use crate::x509::{Anchor, PathProblem};

/// Reason why an EK certificate endorses nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EkCertificateError {
    /// More bytes than a TPM's NV index can hold.
    #[error("it has {bytes} bytes, at most {CERTIFICATE_LIMIT_BYTES} are read")]
    TooLarge {
        /// Its length, padding included.
        bytes: usize,
    },
    /// The TPM sends more certificates than any chain needs.
    #[error("{found} intermediate certificates come with it, at most {INTERMEDIATES_LIMIT} are read")]
    TooManyIntermediates { found: usize },
    /// The bytes are not a DER element, or only the beginning of one.
    #[error("its DER header declares {needed} bytes, {found} are present")]
    Truncated {
        /// Length that its header states; 0 for a header that cannot be read.
        needed: usize,
        found: usize,
    },
    /// Bytes that are not padding follow the certificate.
    #[error("byte {byte:#04x} follows it at offset {offset}; only padding by 0xff or by 0x00 may follow")]
    TrailingByte { offset: usize, byte: u8 },
    /// The bytes are not an X.509 certificate of version 3 in DER.
    #[error("it cannot be read: {problem}")]
    Malformed { problem: String },
    /// The certificate cannot lead to any root: none is configured, or the pool accepts none.
    #[error("the gateway or the pool has no root of TPM manufacturers; its issuer is {issuer:?}")]
    NoRoots {
        /// The issuer that its text names. Not verified.
        issuer: String,
    },
    /// No configured root is at the end of its chain.
    #[error("its issuer {issuer:?} is neither a configured root nor linked to one")]
    UnknownIssuer {
        /// The issuer that its text names. Not verified.
        issuer: String,
    },
    /// The certificate, or a CA above it, is not valid yet.
    #[error("{certificate} is valid from {not_before}, it is now {now} (seconds since 1970)")]
    NotYetValid { certificate: String, not_before: u64, now: u64 },
    /// The certificate, or a CA above it, has expired.
    #[error("{certificate} was valid until {not_after}, it is now {now} (seconds since 1970)")]
    Expired { certificate: String, not_after: u64, now: u64 },
    /// A signature in its chain does not verify under the issuer's key.
    #[error("a signature in its chain does not verify under the key of the named issuer")]
    Signature,
    /// A signature in its chain is made with an algorithm that is not accepted.
    #[error("a signature in its chain is of algorithm {found}; accepted are RSA PKCS#1 and ECDSA with SHA-256 or better")]
    SignatureAlgorithm {
        /// Object identifier of the algorithm.
        found: String,
    },
    /// The certificate was not issued for an EK.
    #[error("its extended key usage is {found}, an EK certificate has {}", super::EK_CERTIFICATE.oid)]
    ExtendedKeyUsage {
        /// Object identifiers of the extended key usage, or another description.
        found: String,
    },
    /// Its key may not be used to encrypt to the TPM: it is an AK's certificate.
    #[error("its key usage is {found}, an EK's is keyEncipherment or keyAgreement")]
    KeyUsage {
        /// The usages it has.
        found: String,
    },
    /// The certificate is that of a CA.
    #[error("it is the certificate of a CA, not of an EK")]
    IsCa,
    /// A certificate that is not a CA's has issued another one.
    #[error("its chain contains a certificate that is not a CA's")]
    IssuerNotCa,
    /// The TPM sent a certificate in the place of a CA's.
    #[error("{subject:?}, which the TPM sent as its issuer or as one above, lacks {lacks}")]
    SentIssuerNotCa {
        /// Its subject. Not verified.
        subject: String,
        lacks: &'static str,
    },
    /// A CA has issued another CA against its own path length constraint.
    #[error("its chain is longer than {certificate} allows")]
    PathLength { certificate: String },
    /// The chain is longer than any manufacturer's.
    #[error("its chain is too long, or takes too many attempts to build")]
    ChainTooLong,
    /// A CA may not issue to this name.
    #[error("a CA in its chain may not issue to this name")]
    NameConstraints,
    /// A critical extension that the verifier does not know, in it or in its chain.
    #[error("it, or a CA that the TPM sent with it, has a critical extension that the verifier does not know")]
    CriticalExtension,
    /// The certified key is not of an EK template.
    #[error("its key is {found}; accepted are RSA-2048, RSA-3072, RSA-4096, P-256 and P-384")]
    Key { found: String },
    /// Anything else that path validation refuses.
    #[error("path validation refuses it: {0}")]
    Path(webpki::Error),
}

impl EkCertificateError {
    /// Returns whether no trusted CA has issued the certificate, judged by names only; other problems are then not examined. Every other
    /// error means that the certificate is invalid.
    #[must_use]
    pub const fn is_unknown_issuer(&self) -> bool {
        matches!(self, Self::UnknownIssuer { .. } | Self::NoRoots { .. })
    }

    /// Returns whether the bytes do not even name an issuer, so that no CA can have issued them.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. }
                | Self::TooManyIntermediates { .. }
                | Self::Truncated { .. }
                | Self::TrailingByte { .. }
                | Self::Malformed { .. }
        )
    }

    /// Converts the reason why the chain of `leaf` does not hold at `now`.
    pub(super) fn from_path_problem(problem: PathProblem<'_, Infallible>, leaf: &[u8], now: UnixTime) -> Self {
        let (ca, now) = (|anchor: &Anchor| format!("CA {:?}", anchor.subject()), now.as_secs());
        match problem {
            PathProblem::NotYetValid(anchor) => Self::NotYetValid {
                certificate: ca(anchor),
                not_before: anchor.not_before(),
                now,
            },
            PathProblem::Expired(anchor) => Self::Expired {
                certificate: ca(anchor),
                not_after: anchor.not_after(),
                now,
            },
            PathProblem::PathLength { anchor, .. } => Self::PathLength { certificate: ca(anchor) },
            PathProblem::BudgetSpent => Self::ChainTooLong,
            PathProblem::Path(error) => Self::from_webpki(error, leaf),
            PathProblem::Own(never) => match never {},
        }
    }

    fn from_webpki(error: webpki::Error, leaf: &[u8]) -> Self {
        use webpki::Error;
        let somebody = || "it, or a CA above it,".to_owned();
        match error {
            Error::UnknownIssuer => Self::UnknownIssuer { issuer: issuer_of(leaf) },
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
            Error::InvalidSignatureForPublicKey | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => Self::Signature,
            Error::UnsupportedSignatureAlgorithmContext(context) => Self::SignatureAlgorithm {
                found: super::algorithm_name(&context.signature_algorithm_id),
            },
            Error::RequiredEkuNotFoundContext(_) => Self::ExtendedKeyUsage {
                found: super::extended_key_usage_of(leaf),
            },
            Error::CaUsedAsEndEntity => Self::IsCa,
            Error::EndEntityUsedAsCa => Self::IssuerNotCa,
            Error::PathLenConstraintViolated => Self::PathLength {
                certificate: "a CA in it".to_owned(),
            },
            Error::MaximumPathDepthExceeded | Error::MaximumPathBuildCallsExceeded | Error::MaximumSignatureChecksExceeded => {
                Self::ChainTooLong
            }
            Error::NameConstraintViolation => Self::NameConstraints,
            Error::UnsupportedCriticalExtension => Self::CriticalExtension,
            other => Self::Path(other),
        }
    }
}
