//! Credential activation: the proof that an AK lives in the TPM that holds an EK.
//!
//! TPM2_MakeCredential in software (TPM 2.0 Part 1, "Credential Protection" and Annexes B.10.3 and C.6.3): a secret is encrypted
//! so that only the TPM with that EK can recover it, and only if an object with that Name is loaded in it.

use aws_lc_rs::agreement::{self, EphemeralPrivateKey};
use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::rsa::{self, OaepPublicEncryptingKey, PublicEncryptingKey};
use zeroize::{Zeroize, Zeroizing};

use super::ak::TpmName;
use super::ek::EkPublic;
use super::ek_certificate::EkKey;
use super::wire::{EncryptedSecret, HashAlg, IdObject, SymmetricCipher, put_sized};

/// Length of the secret, in bytes: fits the digest of every EK's nameAlg.
pub const SECRET_BYTES: usize = 32;

/// The encrypted credential, for TPM2_ActivateCredential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedCredential {
    /// The protected secret, a `TPM2B_ID_OBJECT`.
    pub blob: IdObject,
    /// The encrypted seed, a `TPM2B_ENCRYPTED_SECRET`.
    pub encrypted_secret: EncryptedSecret,
}

/// The EK's key cannot encrypt: its point is not on its curve, or its modulus is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the EK's public key is unusable")]
pub struct UnusableKey;

/// Encrypts `secret` for the object named `ak` in the TPM that holds `ek`.
///
/// # Errors
/// [`UnusableKey`].
pub fn make(ek: &EkPublic, ak: &TpmName, secret: &[u8; SECRET_BYTES]) -> Result<EncryptedCredential, UnusableKey> {
    let hash = ek.area().name_alg;
    let (seed, encrypted_secret) = match ek.key() {
        EkKey::Rsa { n, e } => rsa_seed(hash, n, e),
        EkKey::P256 { x, y } => ecc_seed(hash, &agreement::ECDH_P256, x, y),
        EkKey::P384 { x, y } => ecc_seed(hash, &agreement::ECDH_P384, x, y),
    }?;
    let algorithm = match ek.area().symmetric {
        SymmetricCipher::Aes128Cfb => &AES_128,
        SymmetricCipher::Aes256Cfb => &AES_256,
        SymmetricCipher::Null => return Err(UnusableKey),
    };
    let key_bytes = if ek.area().symmetric == SymmetricCipher::Aes128Cfb {
        16
    } else {
        32
    };
    let key = kdfa(hash, &seed, b"STORAGE", ak.as_bytes(), key_bytes);
    let mut encrypted_identity = Vec::with_capacity(2 + SECRET_BYTES);
    put_sized(&mut encrypted_identity, secret);
    UnboundCipherKey::new(algorithm, &key)
        .and_then(EncryptingKey::cfb128)
        // The zero IV is the specification's: the key is used once.
        .and_then(|key| key.less_safe_encrypt(&mut encrypted_identity, EncryptionContext::Iv128(FixedLength::from([0; 16]))))
        .map_err(|_| UnusableKey)?;

    let key = hmac::Key::new(hmac_algorithm(hash), &kdfa(hash, &seed, b"INTEGRITY", &[], hash.digest_bytes()));
    let mut outer = hmac::Context::with_key(&key);
    outer.update(&encrypted_identity);
    outer.update(ak.as_bytes());
    let integrity = outer.sign().as_ref().to_vec();
    Ok(EncryptedCredential {
        blob: IdObject {
            integrity,
            encrypted_identity,
        },
        encrypted_secret,
    })
}

type Seed = Zeroizing<Vec<u8>>;

/// Part 1, B.10.3: a random seed, OAEP-encrypted with the EK's nameAlg and the label "IDENTITY" (with its zero byte).
fn rsa_seed(hash: HashAlg, n: &[u8], e: &[u8]) -> Result<(Seed, EncryptedSecret), UnusableKey> {
    let algorithm = match hash {
        HashAlg::Sha256 => &rsa::OAEP_SHA256_MGF1SHA256,
        HashAlg::Sha384 => &rsa::OAEP_SHA384_MGF1SHA384,
        HashAlg::Sha512 => &rsa::OAEP_SHA512_MGF1SHA512,
    };
    let mut seed = Zeroizing::new(vec![0; hash.digest_bytes()]);
    SystemRandom::new().fill(&mut seed).map_err(|_| UnusableKey)?;
    let key: PublicEncryptingKey = rsa::PublicKeyComponents { n, e }.try_into().map_err(|_| UnusableKey)?;
    let key = OaepPublicEncryptingKey::new(key).map_err(|_| UnusableKey)?;
    let mut out = vec![0; key.ciphertext_size()];
    let ciphertext = key
        .encrypt(algorithm, &seed, &mut out, Some(b"IDENTITY\0"))
        .map_err(|_| UnusableKey)?
        .to_vec();
    Ok((seed, EncryptedSecret::Rsa(ciphertext)))
}

/// Part 1, C.6.3: the seed comes from ECDH with an ephemeral key, through KDFe.
fn ecc_seed(hash: HashAlg, curve: &'static agreement::Algorithm, x: &[u8], y: &[u8]) -> Result<(Seed, EncryptedSecret), UnusableKey> {
    let rng = SystemRandom::new();
    let private = EphemeralPrivateKey::generate(curve, &rng).map_err(|_| UnusableKey)?;
    let public = private.compute_public_key().map_err(|_| UnusableKey)?;
    // Uncompressed: 0x04, x, y.
    let (_, point) = public.as_ref().split_first().ok_or(UnusableKey)?;
    let (own_x, own_y) = point.split_at_checked(x.len()).ok_or(UnusableKey)?;
    let peer = [&[0x04], x, y].concat();
    let seed = agreement::agree_ephemeral(private, agreement::UnparsedPublicKey::new(curve, peer), UnusableKey, |z| {
        Ok(kdfe(hash, z, b"IDENTITY", own_x, x, hash.digest_bytes()))
    })?;
    Ok((
        seed,
        EncryptedSecret::Ecc {
            x: own_x.to_vec(),
            y: own_y.to_vec(),
        },
    ))
}

const fn hmac_algorithm(hash: HashAlg) -> hmac::Algorithm {
    match hash {
        HashAlg::Sha256 => hmac::HMAC_SHA256,
        HashAlg::Sha384 => hmac::HMAC_SHA384,
        HashAlg::Sha512 => hmac::HMAC_SHA512,
    }
}

/// The number of bits in `bytes`, as the KDFs hash it. Their callers ask for at most 64 bytes.
fn bits(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes * 8).unwrap_or(u32::MAX).to_be_bytes()
}

/// KDFa (Part 1, 11.4.10.2) with an empty contextV. `bytes` is at most one digest here, but the loop is the specification's.
fn kdfa(hash: HashAlg, key: &[u8], label: &[u8], context: &[u8], bytes: usize) -> Seed {
    let key = hmac::Key::new(hmac_algorithm(hash), key);
    counter_mode(bytes, |counter, out| {
        let mut hmac = hmac::Context::with_key(&key);
        for part in [&counter.to_be_bytes(), label, &[0], context, &bits(bytes)] {
            hmac.update(part);
        }
        out.extend_from_slice(hmac.sign().as_ref());
    })
}

/// KDFe (Part 1, 11.4.10.3): `z` is the x of the shared point, `party_u` and `party_v` those of the two public keys.
fn kdfe(hash: HashAlg, z: &[u8], label: &[u8], party_u: &[u8], party_v: &[u8], bytes: usize) -> Seed {
    counter_mode(bytes, |counter, out| {
        out.extend_from_slice(hash.digest(&[&counter.to_be_bytes(), z, label, &[0], party_u, party_v]).as_ref());
    })
}

fn counter_mode(bytes: usize, mut block: impl FnMut(u32, &mut Vec<u8>)) -> Seed {
    let mut out = Vec::with_capacity(bytes + 64);
    let mut counter = 1;
    while out.len() < bytes {
        block(counter, &mut out);
        counter += 1;
    }
    if let Some(excess) = out.get_mut(bytes..) {
        excess.zeroize();
    }
    out.truncate(bytes);
    Zeroizing::new(out)
}
