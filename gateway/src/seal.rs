//! The seal: what the gateway gives away and takes back unread and unchanged.
//!
//! Challenges and tickets carry their own state, so that any replica can take them. They are *encrypted*, not only
//! authenticated: a challenge holds the digest of the secret that proves where the AK lives, and a node that could read it would
//! not need the TPM.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

/// AES-256.
const KEY_BYTES: usize = 32;
/// Longest sealed text that is looked at: twice the largest challenge request, which is what sealing makes of it.
const SEALED_LIMIT_BYTES: usize = 128 * 1024;

/// What is sealed: one kind cannot be presented as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// A challenge.
    Challenge,
    /// A ticket.
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

/// The key of the seal. Gateways that share it must share their store too: what one has spent, the others must know.
pub struct Seal {
    key: RandomizedNonceKey,
}

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
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The key file holds something else.
    #[error("{0} holds no key: 64 hexadecimal digits are expected; remove the file to have a new key made")]
    NoKey(PathBuf),
    /// Others can read the key.
    #[error("{path} has mode {mode:04o}: only its owner may read it (chmod 0600)")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The system's random generator failed.
    #[error("the system's random generator failed")]
    Random,
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
        let io = |source| SealError::Io {
            path: file.to_owned(),
            source,
        };
        let text = match fs::read_to_string(file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::create(file)?,
            Err(error) => return Err(io(error)),
        };
        let mode = fs::metadata(file).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SealError::Mode {
                path: file.to_owned(),
                mode,
            });
        }
        let key = HEXLOWER
            .decode(text.trim().as_bytes())
            .map(Zeroizing::new)
            .map_err(|_| SealError::NoKey(file.to_owned()))?;
        RandomizedNonceKey::new(&AES_256_GCM, &key)
            .map(|key| Self { key })
            .map_err(|_| SealError::NoKey(file.to_owned()))
    }

    fn create(file: &Path) -> Result<Zeroizing<String>, SealError> {
        let io = |source| SealError::Io {
            path: file.to_owned(),
            source,
        };
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        SystemRandom::new().fill(&mut *key).map_err(|_| SealError::Random)?;
        let text = Zeroizing::new(format!("{}\n", HEXLOWER.encode(&*key)));
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(io)?;
        out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(io)?;
        Ok(text)
    }

    /// Gives the seal a new key: whatever was sealed before is worthless.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn replace(file: &Path) -> Result<(), SealError> {
        match fs::remove_file(file) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(SealError::Io {
                path: file.to_owned(),
                source,
            }),
            _ => Self::create(file).map(drop),
        }
    }

    /// Seals `content` as `kind`: base64url without padding.
    ///
    /// # Errors
    /// [`SealError::Random`].
    pub fn seal(&self, kind: Sealed, content: &[u8]) -> Result<String, SealError> {
        let mut sealed = content.to_vec();
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(kind.domain()), &mut sealed)
            .map_err(|_| SealError::Random)?;
        let mut out = nonce.as_ref().to_vec();
        out.append(&mut sealed);
        Ok(BASE64URL_NOPAD.encode(&out))
    }

    /// Opens what [`Seal::seal`] sealed as `kind`.
    ///
    /// # Errors
    /// [`NotSealed`], whatever the cause.
    pub fn unseal(&self, kind: Sealed, text: &str) -> Result<Zeroizing<Vec<u8>>, NotSealed> {
        if text.len() > SEALED_LIMIT_BYTES {
            return Err(NotSealed);
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| NotSealed)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN).ok_or(NotSealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| NotSealed)?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let length = self
            .key
            .open_in_place(nonce, Aad::from(kind.domain()), &mut sealed)
            .map_err(|_| NotSealed)?
            .len();
        sealed.truncate(length);
        Ok(sealed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn opens_what_it_sealed_as_the_same_kind_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let seal = Seal::open(&folder.path().join("seal.key")).unwrap();
        let text = seal.seal(Sealed::Challenge, b"content").unwrap();
        assert_eq!(seal.unseal(Sealed::Challenge, &text).unwrap().as_slice(), b"content");
        assert_eq!(seal.unseal(Sealed::Ticket, &text), Err(NotSealed), "another kind");
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                seal.unseal(Sealed::Challenge, &BASE64URL_NOPAD.encode(&altered)),
                Err(NotSealed),
                "bit {bit}"
            );
        }
        for length in 0..text.len() {
            assert_eq!(
                seal.unseal(Sealed::Challenge, &text[..length]),
                Err(NotSealed),
                "{length} characters"
            );
        }
        assert!(!text.contains("content") && seal.seal(Sealed::Challenge, b"content").unwrap() != text);
    }

    #[test]
    fn the_key_outlives_the_process_and_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seal.key");
        let text = Seal::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap();
        assert!(Seal::open(&file).unwrap().unseal(Sealed::Ticket, &text).is_ok());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = Seal::open(&folder.path().join("other.key")).unwrap();
        assert_eq!(other.unseal(Sealed::Ticket, &text), Err(NotSealed));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Seal::open(&file), Err(SealError::Mode { mode: 0o640, .. })));
        fs::write(folder.path().join("bad.key"), "abc").unwrap();
        fs::set_permissions(folder.path().join("bad.key"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(Seal::open(&folder.path().join("bad.key")), Err(SealError::NoKey(_))));
    }
}
