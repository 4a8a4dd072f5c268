//! Hash algorithms of the TPM.

use attest_wire::tpm::wire::HashAlg;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;

/// Returns the name of a hash algorithm in tss-esapi.
pub(super) const fn hashing_algorithm(hash: HashAlg) -> HashingAlgorithm {
    match hash {
        HashAlg::Sha256 => HashingAlgorithm::Sha256,
        HashAlg::Sha384 => HashingAlgorithm::Sha384,
        HashAlg::Sha512 => HashingAlgorithm::Sha512,
    }
}
