//! Reasons why Google's certificate for a vTPM is refused.

use crate::advice::{Advice, advice};
use crate::gcp::GcpError;
use crate::tpm::ek_certificate::EkCertificateError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VtpmError {
    /// The vTPM's certificate does not hold.
    #[error("the vTPM's certificate is refused: {0}")]
    Certificate(EkCertificateError),
    /// The certificate is not that of an EK.
    #[error("the vTPM's certificate has {found}; an EK's has key usage keyEncipherment or keyAgreement, and not digitalSignature")]
    Usage { found: String },
    /// The certificate does not name its instance.
    #[error("the vTPM's certificate has no extension {}", super::INSTANCE_OID)]
    ExtensionMissing,
    /// The extension cannot be read.
    #[error("extension {} of the vTPM's certificate cannot be read: {problem}", super::INSTANCE_OID)]
    Extension { problem: String },
    /// The instance is one of Google's own tests.
    #[error("the vTPM's certificate is not from Google's production environment (isProduction)")]
    NotProduction,
    /// The certificate is about another EK than the TPM's.
    #[error("the vTPM's certificate is for EK {certificate}, but the TPM presents EK {presented}")]
    EkMismatch {
        /// Digest of the certificate's key, hexadecimal.
        certificate: String,
        /// Digest of the TPM's, hexadecimal.
        presented: String,
    },
    /// The certificate's description of the instance is not of Google's form.
    #[error(transparent)]
    Instance(#[from] GcpError),
}

advice! {
    /// The codes of a [`VtpmError`], without those of Google's other evidence.
    VTPM_CERTIFICATE = "gcp-vtpm-certificate", "The vTPM's certificate is invalid", "Compare the gateway's clock and its Google roots with the certificate that the gateway's log names.";
    VTPM_NOT_ENDORSED = "gcp-vtpm-not-endorsed", "The vTPM's certificate leads to no configured root of Google", "Add Google's EK roots and intermediates to the gateway: see docs/how-to/gcp.md.";
    VTPM_NO_INSTANCE = "gcp-vtpm-no-instance", "The vTPM's certificate names no instance", "Create the instance again as a Shielded VM. If this repeats, use the identity token.";
    EK_MISMATCH = "gcp-ek-mismatch", "The vTPM's certificate is for another EK", "Boot again. If this repeats, somebody may be presenting another machine's certificate.";
}

impl VtpmError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Certificate(error) if error.is_unknown_issuer() => VTPM_NOT_ENDORSED,
            Self::Certificate(_) | Self::Usage { .. } => VTPM_CERTIFICATE,
            Self::ExtensionMissing | Self::Extension { .. } | Self::NotProduction => VTPM_NO_INSTANCE,
            Self::EkMismatch { .. } => EK_MISMATCH,
            Self::Instance(error) => error.advice(),
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}
