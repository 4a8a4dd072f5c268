//! Request to a TPM: a credential that only it can open, and PCRs.

use zeroize::Zeroizing;

use super::ak::AkPublic;
use super::credential::{self, SECRET_BYTES, UnusableKey};
use super::endorsements::EndorsedEk;
use super::pcr::PcrSelection;
use super::{TpmAttester, TpmSubject, TpmTask};
use crate::nonce::sha256;
use crate::values::{Blob, HexDigest};

/// Makes a credential with this secret for the TPM that has this EK and this AK, and the expected values of its answer.
pub(crate) fn ask(
    ek: &EndorsedEk,
    ak: &AkPublic,
    attester: &TpmAttester,
    selection: PcrSelection,
    secret: &Zeroizing<[u8; SECRET_BYTES]>,
) -> Result<(TpmSubject, TpmTask), UnusableKey> {
    let credential = credential::make(&ek.ek, ak.name(), secret)?;
    let task = TpmTask {
        credential_blob: Blob(credential.blob.to_bytes()),
        encrypted_secret: Blob(credential.encrypted_secret.to_bytes()),
        pcr_bank: selection.bank().to_string(),
        pcrs: selection.pcrs().iter().copied().collect(),
    };
    let subject = TpmSubject {
        attester: attester.clone(),
        secret_sha256: HexDigest::from(sha256(&[&**secret])),
        selection,
        unendorsed: false,
    };
    Ok((subject, task))
}
