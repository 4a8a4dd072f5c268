//! Azure's vTPM: a quote by the AK that Azure has certified. It proves the PCRs and the identity of the machine.
//!
//! A virtual machine with a vTPM (Trusted Launch, confidential VMs) has an AK at [`AK_HANDLE`], and Azure's certificate for it in the NV
//! index [`AK_CERTIFICATE_NV_INDEX`]. It has no EK certificate, hence no credential to activate. Azure states by this certificate that the
//! AK is in a vTPM of Azure's, and the quote is by that very key.
//!
//! **Proves**: that the vTPM of a machine of Azure's has these PCRs now, for this gateway; and which machine that is. The certificate does
//! not name the vmId: its name is twelve hexadecimal digits that stand for the vTPM. The firmware does: before anything else it extends the
//! vmId into PCR 6 ([`VmId`]), which no software of the guest can undo.
//!
//! **Does not prove**: the owner of the machine. Anyone with a subscription can start the same image and get the same PCRs. So a pool names
//! the machines, or requires the attested document too, which names the subscription, or says that any subscription will do
//! ([`AzureVtpmRules`]). Nor does it prove that the machine is not compromised after its boot.
//!
//! Statements about Azure in this module come from public sources, from two or more places each:
//!
//! - handle, NV index, the AK's attributes and scheme: microsoft/openvmm `vm/devices/tpm/tpm_protocol` and `tpm_lib` (what makes the vTPM),
//!   Azure/confidential-computing-cvm-guest-attestation `Tss2Util.h`, edgelesssys/constellation `attestation/azure/trustedlaunch`;
//! - the certificates: three real ones, with their chains, in agentrust-io/cmcp `tests/fixtures/hardware/azure-vtpm-2026-07-27` (Trusted
//!   Launch) and flashbots/attested-tls `crates/attestation/test-assets` (confidential VMs); root and intermediates: Microsoft's "Trusted
//!   Launch FAQ";
//! - the vmId in PCR 6: microsoft/mu_msvm `MsvmPkg/VmMeasurementDxe` (the firmware), and the two real quotes of flashbots/attested-tls, beside
//!   which the vmId is known.

mod certificate;
mod error;
mod kind;
mod rules;
mod subject;
mod verifier;
mod vm_id;

pub use attest_wire::azure::vtpm::{
    AK_CERTIFICATE_NV_INDEX, AK_HANDLE, AzureVtpm, AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmTask, NotAVmId, VmId,
};
pub use certificate::{AkCertificate, AkRoots, verify_certificate};
pub use error::{ADVICE, AzureVtpmError};
pub use rules::{AzureVtpmRules, VtpmRulesError, appraise};
pub use subject::AzureVtpmSubject;
pub use verifier::{ExpectedBinding, VerifiedAzureVtpm, verify};
pub use vm_id::{VM_ID_PCR, is_measured};
