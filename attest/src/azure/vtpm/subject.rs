use attest_wire::azure::vtpm::{AzureVtpmAttester, AzureVtpmTask};
use serde::{Deserialize, Serialize};

use crate::tpm::pcr::PcrSelection;

/// Expected values of a vTPM's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureVtpmSubject {
    /// AK, its certificate and the vmId as presented.
    pub attester: AzureVtpmAttester,
    /// The PCRs asked for.
    pub selection: PcrSelection,
}

impl From<&PcrSelection> for AzureVtpmTask {
    fn from(selection: &PcrSelection) -> Self {
        Self {
            pcr_bank: selection.bank().to_string(),
            pcrs: selection.pcrs().iter().copied().collect(),
        }
    }
}
