//! Azure's vTPM: its public values, and the quote by the key that Azure has certified.

use std::path::Path;
use std::thread;

use attest_wire::azure::vtpm::{AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmTask};
use attest_wire::protocol::Blob;

use super::binding::ChallengeBinding;
use super::{check_quote, digests, event_log};
use crate::boot_complete;
use crate::cloud::{MetadataClient, azure};
use crate::deadline::{Backoff, Deadline};
use crate::failure::Failure;
use crate::tpm::{AzureAk, TpmDevice, TpmError};

/// vTPM with Azure's key. The TPM is opened for each use, because another key of the same TPM may attest too.
pub(super) struct AzureVtpmSource {
    tcti: String,
    presented: AzureVtpmAttester,
    event_log: Option<Blob>,
}

impl AzureVtpmSource {
    /// Finds the machine's vTPM, with the vmId from its metadata service, and a note if there is an event log that cannot be sent; `None`
    /// for a TPM without Azure's key. A certificate that Azure has not provided yet is waited for.
    pub(super) fn find(
        tcti: String,
        log: &Path,
        metadata: &MetadataClient,
        deadline: Deadline,
    ) -> Result<Option<(Self, Option<String>)>, Failure> {
        let Some(AzureAk { public, certificate }) = wait_for_ak(&tcti, deadline)? else {
            return Ok(None);
        };
        let presented = AzureVtpmAttester {
            ak_public: public.into(),
            ak_certificate: certificate.into(),
            ak_intermediates: Vec::new(),
            vm_id: azure::vm_id(metadata, deadline)?,
        };
        let (event_log, note) = event_log(log);
        let vtpm = Self {
            tcti,
            presented,
            event_log: event_log.map(Blob::from),
        };
        Ok(Some((vtpm, note)))
    }

    /// Creates an instance that is only presented, never queried.
    #[cfg(test)]
    pub(super) const fn presenting(presented: AzureVtpmAttester) -> Self {
        Self {
            tcti: String::new(),
            presented,
            event_log: None,
        }
    }

    /// Returns the public halves of the keys.
    pub(super) fn presented(&self) -> AzureVtpmAttester {
        self.presented.clone()
    }

    /// Returns the VM's identity, for messages.
    pub(super) fn identity(&self) -> String {
        format!("azure-vtpm:{}", self.presented.vm_id)
    }

    /// The quote that is asked for.
    pub(super) fn quote(
        &self,
        task: &AzureVtpmTask,
        binding: &ChallengeBinding<'_>,
        deadline: Deadline,
    ) -> Result<AzureVtpmEvidence, Failure> {
        let bank = check_quote(&task.pcr_bank, &task.pcrs)?;
        let mut tpm = TpmDevice::open_until(&self.tcti, deadline)?;
        let quote = tpm.azure_quote(&binding.qualifying_data(), bank, &task.pcrs)?;
        boot_complete::warn_if_closed(bank, &quote.pcrs);
        Ok(AzureVtpmEvidence {
            pcrs: digests(&quote.pcrs)?,
            quoted: quote.quoted.into(),
            signature: quote.signature.into(),
            event_log: self.event_log.clone(),
        })
    }
}

/// The TPM is closed while nothing is read: others of this machine may need it.
fn wait_for_ak(tcti: &str, deadline: Deadline) -> Result<Option<AzureAk>, TpmError> {
    let mut backoff = Backoff::default();
    loop {
        let mut tpm = TpmDevice::open_until(tcti, deadline)?;
        match tpm.azure_ak() {
            Err(error @ TpmError::Unwritten { .. }) => {
                drop(tpm);
                thread::sleep(backoff.pause(deadline).ok_or(error)?);
            }
            found => return found,
        }
    }
}
