//! The credential that a challenge holds: only the TPM with that EK gets the secret, and only for that AK.

use crate::support::activation::SoftTpm;
use crate::support::{Case, SoftKey};
use attest::HashAlg;
use attest::protocol::{HexDigest, TpmTask};
use attest::tpm::ak::AkPublic;
use attest::tpm::wire::{Curve, SymmetricCipher};
use aws_lc_rs::agreement::{ECDH_P256, ECDH_P384};
use aws_lc_rs::rsa::KeySize;

/// Returns a TPM for each kind of EK that the TCG's templates make.
fn tpms() -> Vec<SoftTpm> {
    use HashAlg::{Sha256, Sha384, Sha512};
    use SymmetricCipher::{Aes128Cfb, Aes256Cfb};
    vec![
        SoftTpm::rsa(KeySize::Rsa2048, 2048, Sha256, Aes128Cfb),
        SoftTpm::rsa(KeySize::Rsa3072, 3072, Sha384, Aes256Cfb),
        SoftTpm::rsa(KeySize::Rsa4096, 4096, Sha512, Aes256Cfb),
        SoftTpm::ecc(Curve::P256, &ECDH_P256, Sha256, Aes128Cfb),
        SoftTpm::ecc(Curve::P384, &ECDH_P384, Sha384, Aes256Cfb),
    ]
}

fn challenged(tpm: &SoftTpm) -> (Case, TpmTask, HexDigest) {
    let case = Case::new(SoftKey::p256()).but(|case| case.ek_area = tpm.ek.clone());
    let issued = case.issue().unwrap_or_else(|reject| panic!("{:?}: {reject}", tpm.ek.key));
    let secret_sha256 = issued.challenge.subject.tpm.unwrap().secret_sha256;
    (case, issued.task.tpm.unwrap(), secret_sha256)
}

#[test]
fn credential_activates_only_with_its_ek_and_ak() {
    let other = AkPublic::parse(&SoftKey::p256().ak_area().to_bytes()).unwrap();
    for tpm in tpms() {
        let (case, task, secret_sha256) = challenged(&tpm);
        let ak = AkPublic::parse(&case.ak_area.to_bytes()).unwrap();
        let secret = tpm.activate(&task, ak.name()).expect("the HMAC is right");
        let digest = HexDigest::new(HashAlg::Sha256.digest(&[&secret]).as_ref()).unwrap();
        assert_eq!(digest, secret_sha256, "{:?}", tpm.ek.key);
        assert_eq!(tpm.activate(&task, other.name()), None, "{:?}", tpm.ek.key);
    }
}

#[test]
fn secrets_and_seeds_are_never_reused() {
    for tpm in tpms() {
        let ((_, first, first_sha256), (_, second, second_sha256)) = (challenged(&tpm), challenged(&tpm));
        assert_ne!(first_sha256, second_sha256);
        assert_ne!(
            tpm.seed(first.encrypted_secret.as_ref()),
            tpm.seed(second.encrypted_secret.as_ref()),
            "{:?}",
            tpm.ek.key
        );
    }
}
