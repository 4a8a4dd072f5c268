//! The seal: what the gateway gives away and takes back unread and unchanged.
//!
//! Challenges and tickets carry their own state, so that any replica can take them. They are *encrypted*, not only
//! authenticated: a challenge holds the digest of the secret that proves where the AK lives, and a node that could read it would
//! not need the TPM.

mod file;
mod key;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use data_encoding::BASE64URL_NOPAD;
use key::Key;
use zeroize::Zeroizing;

use crate::files::FileError;

/// The id of the one key that an earlier release has made; what it sealed begins with none.
const UNNAMED: &str = "00000000";
/// How long a key seals: a random nonce of 96 bits is good for 2^32 texts (NIST SP 800-38D, 8.3), which no fleet reaches in a month.
const ROTATE_EVERY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longest sealed text that is looked at: twice the largest challenge request, which is what sealing makes of it.
const SEALED_LIMIT_BYTES: usize = 128 * 1024;

/// What is sealed: one kind cannot be presented as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    Challenge,
    Ticket,
}

impl Sealed {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Challenge => b"attestation-gateway/v1/challenge",
            Self::Ticket => b"attestation-gateway/v1/ticket",
        }
    }
}

/// The keys of the seal: one of them seals, and older ones open what they sealed until that has expired. Gateways that share them must share
/// their store too: what one has spent, the others must know.
pub struct Seal {
    file: PathBuf,
    keys: RwLock<Arc<Keys>>,
}

/// The first one seals.
struct Keys(Vec<Key>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(<secret>)")
    }
}

/// Why there is no seal.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The key file cannot be read or written.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The key file holds something else.
    #[error("{0} holds no keys of a seal; remove the file to have a new one made: challenges and tickets under way are worthless then")]
    NoKey(PathBuf),
    /// Others can read the key.
    #[error("{path} has mode {mode:04o}: only its owner may read it (chmod 0600)")]
    Mode { path: PathBuf, mode: u32 },
    /// The system's random generator failed.
    #[error("the system's random generator failed")]
    Random,
    /// A key or a text that AES-256-GCM does not take.
    #[error("AES-256-GCM took no key, or nothing to seal")]
    Cipher,
    /// What cannot be written.
    #[error("what is to be sealed cannot be written: {0}")]
    Content(#[from] serde_json::Error),
}

/// What was presented was not sealed by this key, or as something else, or was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not sealed by this gateway")]
pub struct NotSealed;

impl Seal {
    /// Reads the key file, or makes it with a new key.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn open(file: &Path) -> Result<Self, SealError> {
        Ok(Self {
            file: file.to_owned(),
            keys: RwLock::new(Arc::new(file::open(file)?)),
        })
    }

    /// Gives the seal a new key and drops all others: whatever was sealed before is worthless.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn replace(file: &Path) -> Result<(), SealError> {
        file::replace(file)
    }

    /// Gives the seal a new key. Older ones open what they sealed for as long as `keep`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn rotate(file: &Path, now: u64, keep: Duration) -> Result<(), SealError> {
        file::tend(file, now, keep, true).map(drop)
    }

    /// Takes over what has become of the file, drops keys whose time is over, and makes a new one if the newest is old. Says whether
    /// it made one.
    ///
    /// # Errors
    /// [`SealError`]: the keys stay what they were.
    pub fn tend(&self, now: u64, keep: Duration) -> Result<bool, SealError> {
        let (keys, rotated) = file::tend(&self.file, now, keep, false)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(rotated)
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seals `content` as `kind`: the key's id, a dot, base64url without padding.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, kind: Sealed, content: &[u8]) -> Result<String, SealError> {
        let keys = self.keys();
        let key = keys.0.first().ok_or_else(|| SealError::NoKey(self.file.clone()))?;
        let mut sealed = content.to_vec();
        let nonce = key
            .cipher
            .seal_in_place_append_tag(Aad::from(kind.domain()), &mut sealed)
            .map_err(|_| SealError::Cipher)?;
        let mut out = nonce.as_ref().to_vec();
        out.append(&mut sealed);
        Ok(format!("{}.{}", key.id, BASE64URL_NOPAD.encode(&out)))
    }

    /// Opens what [`Seal::seal`] sealed as `kind`.
    ///
    /// # Errors
    /// [`NotSealed`], whatever the cause.
    pub fn unseal(&self, kind: Sealed, text: &str) -> Result<Zeroizing<Vec<u8>>, NotSealed> {
        if text.len() > SEALED_LIMIT_BYTES {
            return Err(NotSealed);
        }
        let (id, text) = text.split_once('.').unwrap_or((UNNAMED, text));
        let keys = self.keys();
        let key = keys.0.iter().find(|key| key.id == id).ok_or(NotSealed)?;
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| NotSealed)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN).ok_or(NotSealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| NotSealed)?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let length = key
            .cipher
            .open_in_place(nonce, Aad::from(kind.domain()), &mut sealed)
            .map_err(|_| NotSealed)?
            .len();
        sealed.truncate(length);
        Ok(sealed)
    }
}

impl From<FileError> for SealError {
    fn from(FileError { path, source }: FileError) -> Self {
        Self::Io { path, source }
    }
}
