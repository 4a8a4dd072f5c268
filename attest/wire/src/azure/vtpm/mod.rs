//! Azure's vTPM: the location of its AK, and the messages about it.

mod kind;
mod messages;
mod vm_id;

pub use kind::AzureVtpm;
pub use messages::{AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmTask};
pub use vm_id::{NotAVmId, VmId};

/// Handle of the AK, a persistent object.
pub const AK_HANDLE: u32 = 0x8100_0003;

/// NV index of Azure's certificate for the AK. The index has 4096 bytes, of which those behind the certificate are zero; older ones are as
/// long as the certificate.
pub const AK_CERTIFICATE_NV_INDEX: u32 = 0x01c1_01d0;
