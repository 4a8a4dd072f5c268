//! A key: its bytes and its cipher.

use aws_lc_rs::aead::{AES_256_GCM, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

use super::SealError;

/// Length of an AES-256 key.
const KEY_BYTES: usize = 32;

/// The bytes of a key. They are wiped when they go, and are in no `Debug`.
pub(super) struct KeyBytes(Zeroizing<[u8; KEY_BYTES]>);

/// A key that seals and opens.
pub(super) struct SealKey {
    /// Prefix of a sealed text, so that only one key is tried.
    pub(super) id: String,
    pub(super) cipher: RandomizedNonceKey,
}

impl KeyBytes {
    pub(super) fn random() -> Result<Self, SealError> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        SystemRandom::new().fill(&mut *bytes).map_err(|_| SealError::Random)?;
        Ok(Self(bytes))
    }

    /// Returns `None` if these are not as many bytes as a key has.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Like [`KeyBytes::from_bytes`], for hexadecimal digits.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        Self::from_bytes(&Zeroizing::new(HEXLOWER.decode(hex.as_bytes()).ok()?))
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    pub(super) fn hex(&self) -> Zeroizing<String> {
        Zeroizing::new(HEXLOWER.encode(&*self.0))
    }

    pub(super) fn cipher(&self) -> Result<RandomizedNonceKey, SealError> {
        RandomizedNonceKey::new(&AES_256_GCM, &*self.0).map_err(|_| SealError::Cipher)
    }

    pub(super) fn key(&self, id: &str) -> Result<SealKey, SealError> {
        Ok(SealKey {
            id: id.to_owned(),
            cipher: self.cipher()?,
        })
    }
}

/// Returns an id of so many random bytes, hexadecimal.
pub(super) fn random_id<const BYTES: usize>() -> Result<String, SealError> {
    let mut id = [0; BYTES];
    SystemRandom::new().fill(&mut id).map_err(|_| SealError::Random)?;
    Ok(HEXLOWER.encode(&id))
}
