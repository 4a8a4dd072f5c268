//! The key that Azure has put into a machine's vTPM: read, and used for a quote.

use attest_wire::azure::vtpm::{AK_CERTIFICATE_NV_INDEX, AK_HANDLE};
use attest_wire::tpm::wire::HashAlg;
use tss_esapi::handles::KeyHandle;
use tss_esapi::structures::{Public, RsaScheme};

use super::ek::marshal;
use super::hash::hashing_algorithm;
use super::retry::UNAUTHORIZED;
use super::{QuoteWithPcrs, TpmDevice, TpmError};

/// The hash of the scheme that Azure's AK has: RSASSA with SHA-256.
const HASH: HashAlg = HashAlg::Sha256;

/// Azure's AK as the vTPM keeps it.
#[derive(Debug, Clone)]
pub struct AzureAk {
    /// Public area of the key (`TPMT_PUBLIC`).
    pub public: Vec<u8>,
    /// Azure's certificate for it, as stored in NV memory.
    pub certificate: Vec<u8>,
}

impl TpmDevice {
    /// Azure's AK, with its certificate; `None` for a TPM that has not both.
    ///
    /// Azure defines the certificate's NV index before the machine starts, and writes it when its host has answered, possibly during this
    /// read. After a failure, it tries again when the index is read (microsoft/openvmm `vm/devices/tpm/tpm_device`, `poll_ak_cert_request`
    /// and `refresh_device_attestation_data_on_nv_read`).
    ///
    /// # Errors
    /// [`TpmError::Unwritten`] for a certificate that is not there yet, [`TpmError::Command`].
    pub fn azure_ak(&mut self) -> Result<Option<AzureAk>, TpmError> {
        let has = |handles: &[u32]| !handles.is_empty();
        let there = has(&self.handles(AK_HANDLE, AK_HANDLE)?) && has(&self.handles(AK_CERTIFICATE_NV_INDEX, AK_CERTIFICATE_NV_INDEX)?);
        if !there {
            return Ok(None);
        }
        let certificate = self.nv_read_settled(AK_CERTIFICATE_NV_INDEX)?;
        let public = self.with_azure_ak(|tpm, ak| tpm.public_of(ak))?;
        if scheme_hash(&public) != Some(HASH) {
            return Ok(None);
        }
        let public = marshal(&public)?;
        Ok(Some(AzureAk { public, certificate }))
    }

    /// Quotes exactly these PCRs of one bank with Azure's AK.
    ///
    /// # Errors
    /// The same as for [`super::Attester::quote`].
    pub fn azure_quote(&mut self, extra_data: &[u8], bank: HashAlg, pcrs: &[u8]) -> Result<QuoteWithPcrs, TpmError> {
        self.with_azure_ak(|tpm, ak| tpm.quote_by(ak, HASH, extra_data, bank, pcrs))
    }

    fn with_azure_ak<T>(&mut self, commands: impl FnOnce(&mut Self, KeyHandle) -> Result<T, TpmError>) -> Result<T, TpmError> {
        let ak = self.open_persistent(AK_HANDLE)?;
        let result = commands(self, ak);
        self.close(ak.into());
        result
    }

    fn public_of(&mut self, ak: KeyHandle) -> Result<Public, TpmError> {
        self.run("reading Azure's attestation key", UNAUTHORIZED, |context| context.read_public(ak))
            .map(|(public, _, _)| public)
    }
}

fn scheme_hash(public: &Public) -> Option<HashAlg> {
    match public {
        Public::Rsa { parameters, .. } => match parameters.rsa_scheme() {
            RsaScheme::RsaSsa(scheme) if scheme.hashing_algorithm() == hashing_algorithm(HASH) => Some(HASH),
            _ => None,
        },
        _ => None,
    }
}
