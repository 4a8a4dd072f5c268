//! Extension of the boot-complete PCR, so that later software cannot quote this boot's PCRs.

use attest_wire::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, is_closed};
use attest_wire::tpm::wire::HashAlg;
use aws_lc_rs::digest;
use tss_esapi::constants::CapabilityType;
use tss_esapi::handles::PcrHandle;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::{CapabilityData, Digest, DigestValues, PcrSlot};

use super::error::Doing as _;
use super::retry::{EMPTY_PASSWORD, UNAUTHORIZED};
use super::{TpmDevice, TpmError};

/// Banks that a gateway can ask for. They are its only source about the boot-complete PCR.
const QUOTED: [(HashingAlgorithm, HashAlg); 3] = [
    (HashingAlgorithm::Sha256, HashAlg::Sha256),
    (HashingAlgorithm::Sha384, HashAlg::Sha384),
    (HashingAlgorithm::Sha512, HashAlg::Sha512),
];

/// Result of extending the boot-complete PCR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// The PCR was extended by this call, in these banks.
    Now(Vec<String>),
    /// The PCR was extended already.
    Before,
}

impl TpmDevice {
    /// Extends the boot-complete PCR in every bank in use. Nothing is extended if each bank that can be asked for shows that this was done
    /// since the TPM was reset. If the firmware has measured something into it, that cannot be determined, and the PCR is extended again.
    ///
    /// # Errors
    /// [`TpmError::Command`], and [`TpmError::Unextended`] if its value is unchanged afterwards.
    pub fn extend_boot_complete_pcr(&mut self) -> Result<Closed, TpmError> {
        const DOING: &str = "extending the PCR that ends this boot";
        let banks = self.boot_complete_banks()?;
        let quoted = quoted(&banks);
        let before = self.boot_complete_values(&quoted)?;
        let is_done = |(bank, value): &(HashAlg, Vec<u8>)| is_closed(*bank, &vec![0; bank.digest_bytes()], value);
        if !before.is_empty() && before.iter().all(is_done) {
            return Ok(Closed::Before);
        }
        let mut digests = DigestValues::new();
        for bank in &banks {
            if let Some(digest) = label_digest(*bank) {
                digests.set(*bank, Digest::try_from(digest).doing(DOING)?);
            }
        }
        self.run(DOING, EMPTY_PASSWORD, |context| {
            context.pcr_extend(PcrHandle::Pcr13, digests.clone())
        })?;
        let after = self.boot_complete_values(&quoted)?;
        // Others may extend it meanwhile, so it need not be what this alone leads to.
        if let Some(((bank, _), _)) = before.iter().zip(&after).find(|(before, after)| before == after) {
            return Err(TpmError::Unextended { bank: bank.to_string() });
        }
        Ok(Closed::Now(quoted.iter().map(ToString::to_string).collect()))
    }

    /// Returns the value of the PCR in each bank that a gateway can ask for.
    ///
    /// # Errors
    /// [`TpmError::Command`].
    pub fn boot_complete_pcr(&mut self) -> Result<Vec<(HashAlg, Vec<u8>)>, TpmError> {
        let banks = self.boot_complete_banks()?;
        self.boot_complete_values(&quoted(&banks))
    }

    /// The banks in which the TPM has this PCR.
    fn boot_complete_banks(&mut self) -> Result<Vec<HashingAlgorithm>, TpmError> {
        let (data, _) = self.run("listing the PCR banks", UNAUTHORIZED, |context| {
            context.get_capability(CapabilityType::AssignedPcr, 0, 1)
        })?;
        let CapabilityData::AssignedPcr(banks) = data else {
            return Err(TpmError::Unexpected {
                what: "another capability than asked for",
            });
        };
        let has_it = banks
            .get_selections()
            .iter()
            .filter(|bank| bank.selected().contains(&PcrSlot::Slot13));
        Ok(has_it.map(|bank| bank.hashing_algorithm()).collect())
    }

    fn boot_complete_values(&mut self, banks: &[HashAlg]) -> Result<Vec<(HashAlg, Vec<u8>)>, TpmError> {
        let mut values = Vec::new();
        for bank in banks {
            let value = self
                .read_pcrs(*bank, &[BOOT_COMPLETE_PCR])?
                .into_values()
                .next()
                .unwrap_or_default();
            values.push((*bank, value));
        }
        Ok(values)
    }
}

/// Returns those of the banks that a gateway can ask for.
fn quoted(banks: &[HashingAlgorithm]) -> Vec<HashAlg> {
    let asked = QUOTED.into_iter().filter(|(id, _)| banks.contains(id));
    asked.map(|(_, bank)| bank).collect()
}

/// Returns the digest to extend in a bank; `None` for an unknown bank, which no gateway asks for. No gateway asks for SHA-1's either: it is
/// extended so that the banks of a TPM agree.
fn label_digest(bank: HashingAlgorithm) -> Option<Vec<u8>> {
    let hash = match bank {
        HashingAlgorithm::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        HashingAlgorithm::Sha256 => &digest::SHA256,
        HashingAlgorithm::Sha384 => &digest::SHA384,
        HashingAlgorithm::Sha512 => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(hash, CLOSING_WORD).as_ref().to_vec())
}
