//! Policies of endorsement keys (TCG EK Credential Profile 2.6, B.6), and how the use of a key is authorised.

use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::Public;

/// The digest of PolicyA, PolicySecret(endorsement), for SHA-256 and SHA-384.
const POLICY_A_SHA256: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24, 0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52,
    0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];
const POLICY_A_SHA384: [u8; 48] = [
    0x8b, 0xbf, 0x22, 0x66, 0x53, 0x7c, 0x17, 0x1c, 0xb5, 0x6e, 0x40, 0x3c, 0x4d, 0xc1, 0xd4, 0xb6, 0x4f, 0x43, 0x26, 0x11, 0xdc, 0x38,
    0x6e, 0x6f, 0x53, 0x20, 0x50, 0xc3, 0x27, 0x8c, 0x93, 0x0e, 0x14, 0x3e, 0x8b, 0xb1, 0x13, 0x38, 0x24, 0xcc, 0xb4, 0x31, 0x05, 0x38,
    0x71, 0xc6, 0xdb, 0x53,
];
/// PolicyC: PolicyAuthorizeNV of the index that belongs to the hash.
const POLICY_C_SHA256: [u8; 32] = [
    0x37, 0x67, 0xe2, 0xed, 0xd4, 0x3f, 0xf4, 0x5a, 0x3a, 0x7e, 0x1e, 0xae, 0xfc, 0xef, 0x78, 0x64, 0x3d, 0xca, 0x96, 0x46, 0x32, 0xe7,
    0xaa, 0xd8, 0x2c, 0x67, 0x3a, 0x30, 0xd8, 0x63, 0x3f, 0xde,
];
const POLICY_C_SHA384: [u8; 48] = [
    0xd6, 0x03, 0x2c, 0xe6, 0x1f, 0x2f, 0xb3, 0xc2, 0x40, 0xeb, 0x3c, 0xf6, 0xa3, 0x32, 0x37, 0xef, 0x2b, 0x6a, 0x16, 0xf4, 0x29, 0x3c,
    0x22, 0xb4, 0x55, 0xe2, 0x61, 0xcf, 0xfd, 0x21, 0x7a, 0xd5, 0xb4, 0x94, 0x7c, 0x2d, 0x73, 0xe6, 0x30, 0x05, 0xee, 0xd2, 0xdc, 0x2b,
    0x35, 0x93, 0xd1, 0x65,
];
/// PolicyB: PolicyOR of PolicyA and PolicyC.
pub(super) const POLICY_B_SHA256: [u8; 32] = [
    0xca, 0x3d, 0x0a, 0x99, 0xa2, 0xb9, 0x39, 0x06, 0xf7, 0xa3, 0x34, 0x24, 0x14, 0xef, 0xcf, 0xb3, 0xa3, 0x85, 0xd4, 0x4c, 0xd1, 0xfd,
    0x45, 0x90, 0x89, 0xd1, 0x9b, 0x50, 0x71, 0xc0, 0xb7, 0xa0,
];
const POLICY_B_SHA384: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a, 0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3,
    0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca, 0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00,
    0xf3, 0xf8, 0x0e, 0x12,
];

/// The authorization by which an EK is used.
///
/// A key with one of the profile's policies is used by that policy, even if its password would do. A TPM in dictionary-attack lockout
/// refuses the password of a key without noDA; PolicySecret(endorsement) is not subject to that protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EkAuthorization {
    /// userWithAuth: the EK's own password, which is empty.
    Password,
    /// PolicySecret(endorsement) in a session of this hash, and for PolicyB the two digests of its PolicyOR.
    Policy {
        hash: HashingAlgorithm,
        either: Option<[&'static [u8]; 2]>,
    },
}

impl EkAuthorization {
    pub(super) fn from_public(public: &Public) -> Self {
        let has_password = public.object_attributes().user_with_auth();
        Self::by(public.name_hashing_algorithm(), public.auth_policy().value(), has_password)
    }

    fn by(hash: HashingAlgorithm, policy: &[u8], has_password: bool) -> Self {
        let either: Option<[&'static [u8]; 2]> = match policy {
            policy if policy == POLICY_B_SHA256 => Some([&POLICY_A_SHA256, &POLICY_C_SHA256]),
            policy if policy == POLICY_B_SHA384 => Some([&POLICY_A_SHA384, &POLICY_C_SHA384]),
            policy if policy == POLICY_A_SHA256 || policy == POLICY_A_SHA384 => None,
            _ if has_password => return Self::Password,
            _ => None,
        };
        Self::Policy { hash, either }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, digest};

    use super::*;

    /// TPM_CC_PolicyOR and TPM_CC_PolicySecret; TPM_RH_ENDORSEMENT.
    const POLICY_OR: [u8; 4] = [0, 0, 1, 0x71];
    const POLICY_SECRET: [u8; 4] = [0, 0, 1, 0x51];
    const ENDORSEMENT: [u8; 4] = [0x40, 0, 0, 0x0b];

    /// Computes PolicyA and PolicyB as a TPM does (TPM 2.0 Part 3, TPM2_PolicySecret and TPM2_PolicyOR), and compares them.
    fn check(algorithm: &'static Algorithm, [a, b, c]: [&[u8]; 3]) {
        let zeros = vec![0; algorithm.output_len()];
        let hash = |parts: &[&[u8]]| digest(algorithm, &parts.concat()).as_ref().to_vec();
        assert_eq!(hash(&[&hash(&[&zeros, &POLICY_SECRET, &ENDORSEMENT])]), a);
        assert_eq!(hash(&[&zeros, &POLICY_OR, a, c]), b);
    }

    #[test]
    fn policy_digests_match_the_tcg_profile() {
        check(&SHA256, [&POLICY_A_SHA256, &POLICY_B_SHA256, &POLICY_C_SHA256]);
        check(&SHA384, [&POLICY_A_SHA384, &POLICY_B_SHA384, &POLICY_C_SHA384]);
    }

    #[test]
    fn known_ek_policy_is_preferred_to_the_password() {
        let (sha256, sha384) = (HashingAlgorithm::Sha256, HashingAlgorithm::Sha384);
        let policy = |hash, either| EkAuthorization::Policy { hash, either };
        for has_password in [false, true] {
            let by = |hash, digest: &[u8]| EkAuthorization::by(hash, digest, has_password);
            assert_eq!(by(sha256, &POLICY_A_SHA256), policy(sha256, None));
            assert_eq!(by(sha384, &POLICY_A_SHA384), policy(sha384, None));
            assert_eq!(
                by(sha256, &POLICY_B_SHA256),
                policy(sha256, Some([&POLICY_A_SHA256, &POLICY_C_SHA256]))
            );
            assert_eq!(
                by(sha384, &POLICY_B_SHA384),
                policy(sha384, Some([&POLICY_A_SHA384, &POLICY_C_SHA384]))
            );
        }
        assert_eq!(EkAuthorization::by(sha256, &[7; 32], true), EkAuthorization::Password);
        assert_eq!(EkAuthorization::by(sha256, &[], true), EkAuthorization::Password);
        assert_eq!(EkAuthorization::by(sha256, &[7; 32], false), policy(sha256, None));
    }
}
