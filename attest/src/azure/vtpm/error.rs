//! Reasons why a vTPM's evidence is refused.

use super::{VM_ID_PCR, VmId};
use crate::advice::{Advice, advice};
use crate::azure::attested_document::AttestedDocumentError;
use crate::tpm::TpmEvidenceError;
use crate::tpm::ek_certificate::{AK_CERTIFICATE, EkCertificateError};
use crate::withheld::Withheld;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AzureVtpmError {
    /// The certificate does not hold.
    #[error("the certificate of the vTPM's AK is refused: {0}")]
    Certificate(#[from] EkCertificateError),
    /// The certificate is not that of an AK.
    #[error("the certificate of the vTPM's AK is {found}; required are the extended key usage {oid} and the key usage digitalSignature", oid = AK_CERTIFICATE.oid)]
    Usage { found: String },
    /// The certificate's name is not that of a vTPM.
    #[error("the certificate of the vTPM's AK names {found:?}, which is not the name of an Azure vTPM (CN=….TrustedVM.Azure.windows.net)")]
    Name {
        /// Subject of the certificate.
        found: String,
    },
    /// The certificate is about another key.
    #[error("the certificate is for another key than the AK {ak} that the vTPM presents")]
    OtherKey {
        /// The AK's Name, hexadecimal.
        ak: String,
    },
    /// The quote does not prove the vmId.
    #[error("PCR {VM_ID_PCR} is {quoted}, but the firmware of machine {vm_id} would have extended its vmId first")]
    VmId {
        /// The vmId that the node presents.
        vm_id: VmId,
        /// Quoted value of PCR 6, hexadecimal, or `not quoted`.
        quoted: String,
    },
    /// A machine that the pool does not accept.
    #[error(transparent)]
    Machine(AttestedDocumentError),
    /// A refusal that is the same for every TPM: the AK's attributes, the quote, the PCRs, the event log.
    #[error(transparent)]
    Tpm(#[from] TpmEvidenceError),
}

advice! {
    /// The codes of an [`AzureVtpmError`], without those that every TPM's evidence can have, and those of attested documents.
    CERTIFICATE = "azure-vtpm-certificate", "The certificate of the vTPM's AK is invalid", "Compare the gateway's clock and azure-vtpm-roots with the certificate that the gateway's log names. If it has expired, boot again: Azure renews it.";
    NOT_ENDORSED = "azure-vtpm-not-endorsed", "The certificate of the vTPM's AK leads to no configured root", "Add Azure's virtual TPM root, and the intermediate that the gateway's log names, to azure-vtpm-roots: see docs/how-to/azure.md.";
    OTHER_KEY = "azure-vtpm-other-key", "The certificate is for another key than the vTPM's AK", "Deallocate and start the machine. If this repeats, somebody may be presenting another machine's certificate.";
    VM_ID = "azure-vtpm-vm-id", "The quote does not prove the vmId that the node claims", "Boot again. If this repeats, the firmware measures in a new way: update the gateway. Otherwise somebody presents another machine's vmId. The gateway's log has the PCR.";
}

impl AzureVtpmError {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Certificate(error) if error.is_unknown_issuer() => NOT_ENDORSED,
            Self::Certificate(_) | Self::Usage { .. } | Self::Name { .. } => CERTIFICATE,
            Self::OtherKey { .. } => OTHER_KEY,
            Self::VmId { .. } => VM_ID,
            Self::Machine(error) => error.advice(),
            Self::Tpm(error) => vtpm_advice(error),
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::Machine(error) => error.withheld(),
            Self::Tpm(error) => error.withheld(),
            _ => None,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}

/// Adapts the advice for every TPM's evidence to a vTPM. Its key is not made by attest-node, it has no firmware setup, and its pool has
/// another section. Codes and meanings are the same.
const fn vtpm_advice(error: &TpmEvidenceError) -> Advice {
    let advice = error.advice();
    let next_step = match error {
        TpmEvidenceError::AkAttributes { .. } | TpmEvidenceError::AkAlgorithm { .. } | TpmEvidenceError::AkHierarchy { .. } => FOREIGN_AK,
        TpmEvidenceError::Selection { .. } | TpmEvidenceError::ReferenceSelection { .. } => SELECTION,
        TpmEvidenceError::EventLogMissing => NO_EVENT_LOG,
        TpmEvidenceError::EventLog(error) | TpmEvidenceError::EventLogMismatch(error) if error.is_of_sha1_only() => return advice,
        TpmEvidenceError::EventLog(_) => MALFORMED_EVENT_LOG,
        TpmEvidenceError::EventLogMismatch(_) => OTHER_EVENT_LOG,
        _ => return advice,
    };
    Advice { next_step, ..advice }
}

/// Next step for an AK that Azure does not make.
const FOREIGN_AK: &str = "Deallocate and start the machine. If this repeats, somebody has replaced Azure's key.";
/// Next step for a quote of other PCRs than were asked for.
const SELECTION: &str =
    "Boot again: the pool's PCRs may have changed since the challenge. If this repeats, use the unmodified attest-node.";
const NO_EVENT_LOG: &str =
    "Mount securityfs in the initramfs. For images with an empty log, set event_log = \"checked\" in [azure_vtpm] of the pool's pool.toml.";
/// Next step for an event log that cannot be parsed.
const MALFORMED_EVENT_LOG: &str = "The gateway's log has the byte of the error. With event_log = \"recorded\" in [azure_vtpm] of the pool's pool.toml, no decision depends on the event log.";
/// Next step for an event log that does not lead to the quoted PCRs.
const OTHER_EVENT_LOG: &str = "Boot again. If this repeats, the log was altered, or something extends a PCR that the firmware does not log. With event_log = \"recorded\" in [azure_vtpm] of the pool's pool.toml, no decision depends on the event log.";
