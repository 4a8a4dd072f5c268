//! The key that signs checkpoints of the attestation log. Each gateway has its own, and nothing else is signed by it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES, WriteError};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use data_encoding::{BASE64, HEXLOWER};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// Encoding before the 32 bytes of an Ed25519 key in a `SubjectPublicKeyInfo` (RFC 8410, 4).
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PUBLIC_KEY_BYTES: usize = 32;

/// Error in reading or making the key.
#[derive(Debug, thiserror::Error)]
pub enum LogKeyError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    File(#[from] WriteError),
    /// The file holds something else.
    #[error(
        "{0} holds no Ed25519 key in PEM (PKCS #8). Restore it; if it is lost, remove the file, restart the gateway, and give auditors the new public key: `attest-gateway log show-key`"
    )]
    NoKey(PathBuf),
    /// Other users can read the file.
    #[error("{path} has mode {mode:04o}, but only its owner may read it: run chmod 0600")]
    Mode { path: PathBuf, mode: u32 },
    /// The system's random generator failed.
    #[error("the system's random generator failed")]
    Random,
}

/// Key pair that signs checkpoints.
pub struct LogKey {
    pair: Ed25519KeyPair,
    public: LogPublicKey,
}

impl fmt::Debug for LogKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogKey").field(&self.public).finish()
    }
}

impl LogKey {
    /// Reads the key's file, or makes it with a new key.
    ///
    /// # Errors
    /// [`LogKeyError`].
    pub fn open(file: &Path) -> Result<Self, LogKeyError> {
        if !file.exists() {
            match files::create(file, files::PRIVATE, &new_key()?) {
                Err(error) if error.source.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
                // Or another process was faster.
                _ => {}
            }
        }
        Self::read(file)
    }

    /// Reads the key's file.
    ///
    /// # Errors
    /// [`LogKeyError`].
    pub fn read(file: &Path) -> Result<Self, LogKeyError> {
        let io = |source| LogKeyError::Io {
            path: file.to_owned(),
            source,
        };
        let mode = fs::metadata(file).map_err(io)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(LogKeyError::Mode {
                path: file.to_owned(),
                mode,
            });
        }
        let text = Zeroizing::new(files::read(file, SMALL_FILE_LIMIT_BYTES).map_err(io)?);
        Self::parse(&text, file)
    }

    /// Like [`LogKey::read`], but parses a text as if it were in that file.
    ///
    /// # Errors
    /// [`LogKeyError`].
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, LogKeyError> {
        let no_key = || LogKeyError::NoKey(file.to_owned());
        let der = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|_| no_key())?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).map_err(|_| no_key())?;
        let public = pair.public_key().as_ref().try_into().map(LogPublicKey).map_err(|_| no_key())?;
        Ok(Self { pair, public })
    }

    #[must_use]
    pub const fn public(&self) -> LogPublicKey {
        self.public
    }

    #[must_use]
    pub fn sign(&self, text: &[u8]) -> Vec<u8> {
        self.pair.sign(text).as_ref().to_vec()
    }
}

fn new_key() -> Result<Zeroizing<String>, LogKeyError> {
    let pair = Ed25519KeyPair::generate().map_err(|_| LogKeyError::Random)?;
    let der: Pkcs8V1Der<'_> = pair.as_der().map_err(|_| LogKeyError::Random)?;
    // 48 bytes: one line of 64 characters.
    let text = Zeroizing::new(BASE64.encode(der.as_ref()));
    Ok(Zeroizing::new(format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        *text
    )))
}

/// Public half of such a key. As text it is its `SubjectPublicKeyInfo`, Base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPublicKey([u8; PUBLIC_KEY_BYTES]);

impl LogPublicKey {
    fn from_spki(der: &[u8]) -> Option<Self> {
        der.strip_prefix(&SPKI_HEAD)?.try_into().ok().map(Self)
    }

    /// Parses the keys of a file, PEM; `None` if it has none, or a key of another kind.
    #[must_use]
    pub fn all_of_pem(pem: &[u8]) -> Option<Vec<Self>> {
        let keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem);
        let keys: Option<Vec<Self>> = keys.map(|der| Self::from_spki(der.ok()?.as_ref())).collect();
        keys.filter(|keys| !keys.is_empty())
    }

    /// Returns its 32 bytes, hexadecimal: part of an id in the store.
    #[must_use]
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    #[must_use]
    pub fn pem(&self) -> String {
        // 44 bytes: less than a line.
        format!("-----BEGIN PUBLIC KEY-----\n{self}\n-----END PUBLIC KEY-----\n")
    }

    /// Returns whether this is a signature over `text` by this key.
    #[must_use]
    pub fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(text, signature).is_ok()
    }
}

impl fmt::Display for LogPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&[SPKI_HEAD.as_slice(), &self.0].concat()))
    }
}

impl fmt::Debug for LogPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for LogPublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LogPublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let der = BASE64.decode(text.as_bytes()).ok();
        der.and_then(|der| Self::from_spki(&der))
            .ok_or_else(|| de::Error::custom("expected the SubjectPublicKeyInfo of an Ed25519 key, Base64"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn log_key_is_created_once_with_mode_0600() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log.key");
        assert!(matches!(LogKey::read(&file), Err(LogKeyError::Io { .. })));
        let key = LogKey::open(&file).unwrap();
        let again = LogKey::open(&file).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let signature = again.sign(b"text");
        assert!(key.public().has_signed(b"text", &signature));
        assert!(!key.public().has_signed(b"texT", &signature));
        assert!(!key.public().has_signed(b"text", &signature[1..]));
        assert!(!format!("{key:?}").contains(&fs::read_to_string(&file).unwrap().lines().nth(1).unwrap()[30..]));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(LogKey::open(&file), Err(LogKeyError::Mode { mode: 0o640, .. })));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        for other in ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            fs::write(&file, other).unwrap();
            assert!(matches!(LogKey::open(&file), Err(LogKeyError::NoKey(_))), "{other:?}");
        }
    }

    #[test]
    fn public_key_round_trips_through_pem_and_json() {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["a", "b"].map(|name| LogKey::open(&folder.path().join(name)).unwrap().public());
        let pem: String = keys.iter().map(LogPublicKey::pem).collect();
        assert_eq!(LogPublicKey::all_of_pem(pem.as_bytes()).unwrap(), keys);
        let text = serde_json::to_string(&keys).unwrap();
        assert_eq!(serde_json::from_str::<Vec<LogPublicKey>>(&text).unwrap(), keys);
        for none in ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
            assert!(LogPublicKey::all_of_pem(none.as_bytes()).is_none());
            assert!(LogPublicKey::all_of_pem((pem.clone() + none).as_bytes()).is_none() != none.is_empty());
        }
        for none in ["\"\"", "\"AAAA\"", "7"] {
            assert!(serde_json::from_str::<LogPublicKey>(none).is_err());
        }
    }
}
