//! Azure's vTPM: what it presents, and the quote by the key that Azure has certified.

use std::path::Path;

use attest::azure::vtpm::{AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmTask};
use attest::protocol::Blob;

use super::cloud::Binding;
use super::{check_quote, digests, event_log};
use crate::cloud::{Metadata, azure};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::tpm::{AzureAk, Tpm};

/// A vTPM with Azure's key. The TPM is opened for each use: beside it another key of the same TPM may attest.
pub(super) struct AzureVtpm {
    tcti: String,
    presented: AzureVtpmAttester,
    event_log: Option<Blob>,
}

impl AzureVtpm {
    /// The machine's, by what its metadata service says; `None` for a TPM without Azure's key.
    pub(super) fn find(tcti: String, log: &Path, metadata: &Metadata, deadline: Deadline) -> Result<Option<Self>, Failure> {
        let Some(AzureAk { public, certificate }) = Tpm::open(&tcti)?.azure_ak()? else {
            return Ok(None);
        };
        let presented = AzureVtpmAttester {
            ak_public: public.into(),
            ak_certificate: certificate.into(),
            ak_intermediates: Vec::new(),
            vm_id: azure::vm_id(metadata, deadline)?,
        };
        let (event_log, _) = event_log(log);
        Ok(Some(Self {
            tcti,
            presented,
            event_log: event_log.map(Blob::from),
        }))
    }

    /// One that is never asked for anything.
    #[cfg(test)]
    pub(super) const fn presenting(presented: AzureVtpmAttester) -> Self {
        Self {
            tcti: String::new(),
            presented,
            event_log: None,
        }
    }

    /// The public halves.
    pub(super) fn presented(&self) -> AzureVtpmAttester {
        self.presented.clone()
    }

    /// Who it is, for a message.
    pub(super) fn identity(&self) -> String {
        format!("azure-vtpm:{}", self.presented.vm_id)
    }

    /// The quote that is asked for.
    pub(super) fn quote(&self, task: &AzureVtpmTask, binding: &Binding<'_>) -> Result<AzureVtpmEvidence, Failure> {
        let bank = check_quote(&task.pcr_bank, &task.pcrs)?;
        let quote = Tpm::open(&self.tcti)?.azure_quote(&binding.qualifying_data(), bank, &task.pcrs)?;
        Ok(AzureVtpmEvidence {
            pcrs: digests(&quote.pcrs)?,
            quoted: quote.quoted.into(),
            signature: quote.signature.into(),
            event_log: self.event_log.clone(),
        })
    }
}
