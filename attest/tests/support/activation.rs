//! A TPM as far as its EK goes: TPM2_ActivateCredential in software (TPM 2.0 Part 1, "Credential Protection" and Annexes B.10.3 and C.6.3).

use attest::HashAlg;
use attest::protocol::TpmTask;
use attest::tpm::ak::TpmName;
use attest::tpm::wire::{Curve, EncryptedSecret, IdObject, KeyParameters, Public, SymmetricCipher};
use aws_lc_rs::agreement::{self, ECDH_P256, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::cipher::{AES_128, AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::encoding::{AsBigEndian, AsDer, EcPrivateKeyBin, Pkcs8V1Der};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rsa::{self, KeyPair, KeySize, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use aws_lc_rs::signature::KeyPair as _;

use super::{SoftKey, ek_area};

/// The private half of an EK.
enum Private {
    Rsa(OaepPrivateDecryptingKey),
    Ecc(PrivateKey, Vec<u8>),
}

/// A TPM, as far as an EK goes.
pub struct SoftTpm {
    pub ek: Public,
    private: Private,
}

impl SoftTpm {
    /// Creates a TPM with an EK of the most common TCG template.
    pub fn p256() -> Self {
        Self::ecc(Curve::P256, &ECDH_P256, HashAlg::Sha256, SymmetricCipher::Aes128Cfb)
    }

    pub fn rsa(size: KeySize, key_bits: u16, name_alg: HashAlg, symmetric: SymmetricCipher) -> Self {
        let pair = KeyPair::generate(size).unwrap();
        let modulus = pair.public_key().modulus().big_endian_without_leading_zero().to_vec();
        let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        let private = PrivateDecryptingKey::from_pkcs8(pkcs8.as_ref()).unwrap();
        let key = KeyParameters::Rsa {
            key_bits,
            exponent: 0,
            modulus,
        };
        Self::with(
            key,
            name_alg,
            symmetric,
            Private::Rsa(OaepPrivateDecryptingKey::new(private).unwrap()),
        )
    }

    /// Returns the TPM that this secret came from.
    pub fn p256_of(secret: &[u8]) -> Self {
        let private = PrivateKey::from_private_key(&ECDH_P256, secret).unwrap();
        Self::from_key(private, Curve::P256, HashAlg::Sha256, SymmetricCipher::Aes128Cfb)
    }

    /// The private half of an EK on a curve, to be kept.
    pub fn secret(&self) -> Vec<u8> {
        match &self.private {
            Private::Rsa(_) => panic!("no number"),
            Private::Ecc(key, _) => AsBigEndian::<EcPrivateKeyBin<'_>>::as_be_bytes(key).unwrap().as_ref().to_vec(),
        }
    }

    pub fn ecc(curve: Curve, algorithm: &'static agreement::Algorithm, name_alg: HashAlg, symmetric: SymmetricCipher) -> Self {
        Self::from_key(PrivateKey::generate(algorithm).unwrap(), curve, name_alg, symmetric)
    }

    fn from_key(private: PrivateKey, curve: Curve, name_alg: HashAlg, symmetric: SymmetricCipher) -> Self {
        let public = private.compute_public_key().unwrap();
        let (x, y) = public.as_ref()[1..].split_at(curve.coordinate_bytes());
        let (x, y) = (x.to_vec(), y.to_vec());
        let key = KeyParameters::Ecc { curve, x: x.clone(), y };
        Self::with(key, name_alg, symmetric, Private::Ecc(private, x))
    }

    fn with(key: KeyParameters, name_alg: HashAlg, symmetric: SymmetricCipher, private: Private) -> Self {
        let ek = Public {
            name_alg,
            symmetric,
            key,
            ..ek_area(&SoftKey::p256())
        };
        Self { ek, private }
    }

    /// The seed, recovered with the private key.
    pub fn seed(&self, encrypted_secret: &[u8]) -> Vec<u8> {
        let hash = self.ek.name_alg;
        match &self.private {
            Private::Rsa(key) => {
                let EncryptedSecret::Rsa(ciphertext) = EncryptedSecret::parse_rsa(encrypted_secret).unwrap() else {
                    panic!("an OAEP ciphertext")
                };
                let algorithm = match hash {
                    HashAlg::Sha256 => &rsa::OAEP_SHA256_MGF1SHA256,
                    HashAlg::Sha384 => &rsa::OAEP_SHA384_MGF1SHA384,
                    HashAlg::Sha512 => &rsa::OAEP_SHA512_MGF1SHA512,
                };
                let mut out = vec![0; key.min_output_size()];
                key.decrypt(algorithm, &ciphertext, &mut out, Some(b"IDENTITY\0")).unwrap().to_vec()
            }
            Private::Ecc(key, own_x) => {
                let EncryptedSecret::Ecc { x, y } = EncryptedSecret::parse_ecc(encrypted_secret).unwrap() else {
                    panic!("a point")
                };
                let peer = UnparsedPublicKey::new(key.algorithm(), [&[4], x.as_slice(), &y].concat());
                let shared = agreement::agree(key, peer, (), |z| Ok(z.to_vec())).unwrap();
                // KDFe: the ephemeral key is party U, the EK is party V.
                let block = hash.digest(&[&[0, 0, 0, 1], &shared, b"IDENTITY\0", &x, own_x]);
                block.as_ref().to_vec()
            }
        }
    }

    /// Performs `TPM2_ActivateCredential` for the object with this Name; `None` if a TPM would answer `TPM_RC_INTEGRITY`.
    pub fn activate(&self, task: &TpmTask, object: &TpmName) -> Option<Vec<u8>> {
        let hash = self.ek.name_alg;
        let seed = self.seed(task.encrypted_secret.as_ref());
        let blob = IdObject::parse(task.credential_blob.as_ref()).unwrap();
        let bits = u32::try_from(hash.digest_bytes() * 8).unwrap();
        let key = kdfa(hash, &seed, b"INTEGRITY\0", &[], bits);
        let signed = [blob.encrypted_identity.as_slice(), object.as_bytes()].concat();
        hmac::verify(&hmac::Key::new(hmac_algorithm(hash), &key), &signed, &blob.integrity).ok()?;

        let (algorithm, bits) = match self.ek.symmetric {
            SymmetricCipher::Aes128Cfb => (&AES_128, 128),
            SymmetricCipher::Aes256Cfb => (&AES_256, 256),
            SymmetricCipher::Null => panic!("an EK has a cipher"),
        };
        let key = kdfa(hash, &seed, b"STORAGE\0", object.as_bytes(), bits);
        let key = DecryptingKey::cfb128(UnboundCipherKey::new(algorithm, &key).unwrap()).unwrap();
        let mut identity = blob.encrypted_identity;
        let context = DecryptionContext::Iv128(FixedLength::from([0; 16]));
        let plain = key.decrypt(&mut identity, context).unwrap();
        let (size, secret) = plain.split_at(2);
        assert_eq!(usize::from(u16::from_be_bytes([size[0], size[1]])), secret.len(), "a TPM2B_DIGEST");
        Some(secret.to_vec())
    }
}

/// KDFa of at most one block.
fn kdfa(hash: HashAlg, key: &[u8], label: &[u8], context: &[u8], bits: u32) -> Vec<u8> {
    let key = hmac::Key::new(hmac_algorithm(hash), key);
    let said = [&[0, 0, 0, 1], label, context, &bits.to_be_bytes()].concat();
    hmac::sign(&key, &said).as_ref()[..usize::try_from(bits / 8).unwrap()].to_vec()
}

fn hmac_algorithm(hash: HashAlg) -> hmac::Algorithm {
    match hash {
        HashAlg::Sha256 => hmac::HMAC_SHA256,
        HashAlg::Sha384 => hmac::HMAC_SHA384,
        HashAlg::Sha512 => hmac::HMAC_SHA512,
    }
}
