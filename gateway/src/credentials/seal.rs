//! The seal: what the gateway gives away and takes back unread and unchanged.
//!
//! Challenges and tickets carry their own state, so that any replica can take them. They are *encrypted*, not only
//! authenticated: a challenge holds the digest of the secret that proves where the AK lives, and a node that could read it would
//! not need the TPM.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

use crate::files::{self, FileError};

/// The first line of the key file: its format.
const HEAD: &str = "attestation-gateway seal 2";
/// Bytes of a key's id: enough to tell some keys apart; that it is the right one is for the key to say.
const ID_BYTES: usize = 4;
/// The id of the one key that an earlier release has made; what it sealed begins with none.
const UNNAMED: &str = "00000000";
/// How long a key seals: a random nonce of 96 bits is good for 2^32 texts (NIST SP 800-38D, 8.3), which no fleet reaches in a month.
const ROTATE_EVERY: Duration = Duration::from_secs(30 * 24 * 3600);
/// AES-256.
const KEY_BYTES: usize = 32;
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

/// The keys of the seal: the newest seals, and older ones open what they sealed until that has expired. Gateways that share them must share
/// their store too: what one has spent, the others must know.
pub struct Seal {
    file: PathBuf,
    keys: RwLock<Arc<Keys>>,
}

struct Key {
    /// What a sealed text begins with, so that one key is tried.
    id: String,
    /// When it was made, seconds since 1970.
    made: u64,
    hex: Zeroizing<String>,
    key: RandomizedNonceKey,
}

/// The newest first.
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
        if !file.exists() {
            match files::create(file, files::PRIVATE, &Keys::new(0)?.text()) {
                Err(error) if error.source.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
                // Or another process was faster.
                _ => {}
            }
        }
        Ok(Self {
            file: file.to_owned(),
            keys: RwLock::new(Arc::new(Keys::read(file)?)),
        })
    }

    /// Gives the seal a new key and drops all others: whatever was sealed before is worthless.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn replace(file: &Path) -> Result<(), SealError> {
        Ok(files::replace(file, files::PRIVATE, &Keys::new(0)?.text())?)
    }

    /// Gives the seal a new key. Older ones open what they sealed for as long as `keep`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn rotate(file: &Path, now: u64, keep: Duration) -> Result<(), SealError> {
        tend(file, now, keep, true).map(drop)
    }

    /// Takes over what has become of the file, drops keys whose time is over, and makes a new one if the newest is old. Says whether
    /// it made one.
    ///
    /// # Errors
    /// [`SealError`]: the keys stay what they were.
    pub fn tend(&self, now: u64, keep: Duration) -> Result<bool, SealError> {
        let (keys, rotated) = tend(&self.file, now, keep, false)?;
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
            .key
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
            .key
            .open_in_place(nonce, Aad::from(kind.domain()), &mut sealed)
            .map_err(|_| NotSealed)?
            .len();
        sealed.truncate(length);
        Ok(sealed)
    }
}

/// Reads the file, and writes it if its keys have changed. Of two processes, one does so at a time.
fn tend(file: &Path, now: u64, keep: Duration, rotate: bool) -> Result<(Keys, bool), SealError> {
    let io = |source| SealError::Io {
        path: file.to_owned(),
        source,
    };
    let folder = File::open(files::folder(file)).map_err(io)?;
    folder.lock().map_err(io)?;
    let mut keys = Keys::read(file)?;
    let old = |key: &Key| now.saturating_sub(key.made) >= ROTATE_EVERY.as_secs();
    let rotate = rotate || keys.0.first().is_none_or(old);
    if rotate {
        keys.0.insert(0, Key::new(now)?);
    }
    let count = keys.0.len();
    keys.drop_over(now, keep);
    if rotate || keys.0.len() < count {
        files::replace(file, files::PRIVATE, &keys.text())?;
    }
    Ok((keys, rotate))
}

impl Keys {
    fn new(made: u64) -> Result<Self, SealError> {
        Ok(Self(vec![Key::new(made)?]))
    }

    fn read(file: &Path) -> Result<Self, SealError> {
        let io = |source| SealError::Io {
            path: file.to_owned(),
            source,
        };
        let text = Zeroizing::new(fs::read_to_string(file).map_err(io)?);
        let mode = fs::metadata(file).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SealError::Mode {
                path: file.to_owned(),
                mode,
            });
        }
        Self::parse(&text).ok_or_else(|| SealError::NoKey(file.to_owned()))
    }

    /// `None` if the text holds something else.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let keys: Option<Vec<Key>> = match lines.next()? {
            HEAD => lines.map(Key::parse).collect(),
            // Earlier releases wrote one key and nothing else.
            hex if lines.next().is_none() => Some(vec![Key::of(UNNAMED, 0, hex)?]),
            _ => None,
        };
        keys.filter(|keys| !keys.is_empty()).map(Self)
    }

    fn text(&self) -> Zeroizing<String> {
        let lines = self
            .0
            .iter()
            .map(|Key { id, made, hex, .. }| Zeroizing::new(format!("{id} {made} {}\n", **hex)));
        let mut text = Zeroizing::new(format!("{HEAD}\n"));
        for line in lines {
            text.push_str(&line);
        }
        text
    }

    /// Drops keys that have sealed nothing that is good still: a newer one is older than that.
    fn drop_over(&mut self, now: u64, keep: Duration) {
        let newer: Vec<u64> = self.0.iter().map(|key| key.made).collect();
        let over = newer
            .iter()
            .position(|made| now.saturating_sub(*made) > keep.as_secs() && *made > 0);
        if let Some(over) = over {
            self.0.truncate(over + 1);
        }
    }
}

impl Key {
    fn new(made: u64) -> Result<Self, SealError> {
        let (mut id, mut key) = ([0; ID_BYTES], Zeroizing::new([0; KEY_BYTES]));
        let random = SystemRandom::new();
        random
            .fill(&mut id)
            .and_then(|()| random.fill(&mut *key))
            .map_err(|_| SealError::Random)?;
        let hex = Zeroizing::new(HEXLOWER.encode(&*key));
        Self::of(&HEXLOWER.encode(&id), made, &hex).ok_or(SealError::Cipher)
    }

    fn of(id: &str, made: u64, hex: &str) -> Option<Self> {
        let bytes = Zeroizing::new(HEXLOWER.decode(hex.as_bytes()).ok()?);
        Some(Self {
            id: id.to_owned(),
            made,
            hex: Zeroizing::new(hex.to_owned()),
            key: RandomizedNonceKey::new(&AES_256_GCM, &bytes).ok()?,
        })
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(' ');
        let (id, made, hex) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        if parts.next().is_some() || id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        Self::of(id, made, hex)
    }
}

impl From<FileError> for SealError {
    fn from(FileError { path, source }: FileError) -> Self {
        Self::Io { path, source }
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
        let (id, sealed) = text.split_once('.').unwrap();
        let bytes = BASE64URL_NOPAD.decode(sealed.as_bytes()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                seal.unseal(Sealed::Challenge, &format!("{id}.{}", BASE64URL_NOPAD.encode(&altered))),
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

    const DAY: u64 = 24 * 3600;
    const KEEP: Duration = Duration::from_secs(600);

    #[test]
    fn a_newer_key_seals_and_an_older_one_opens_until_what_it_sealed_has_expired() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seal.key");
        let seal = Seal::open(&file).unwrap();
        assert!(seal.tend(100 * DAY, KEEP).unwrap(), "nobody says how old the first key is");
        assert!(!seal.tend(130 * DAY - 1, KEEP).unwrap());
        let old = seal.seal(Sealed::Ticket, b"x").unwrap();
        assert!(seal.tend(130 * DAY, KEEP).unwrap(), "a month is over");
        let new = seal.seal(Sealed::Ticket, b"x").unwrap();
        assert_ne!(old.split_once('.').unwrap().0, new.split_once('.').unwrap().0);
        let opens = |seal: &Seal, text: &str| seal.unseal(Sealed::Ticket, text).is_ok();
        seal.tend(130 * DAY + 600, KEEP).unwrap();
        assert!(opens(&seal, &old) && opens(&seal, &new));
        seal.tend(130 * DAY + 601, KEEP).unwrap();
        assert!(!opens(&seal, &old) && opens(&seal, &new));
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2, "the head, and one key");
        // By a command, while the gateway runs.
        Seal::rotate(&file, 131 * DAY, KEEP).unwrap();
        assert!(
            !opens(&seal, &Seal::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap()),
            "not seen yet"
        );
        assert!(!seal.tend(131 * DAY, KEEP).unwrap());
        assert!(opens(&seal, &Seal::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap()) && opens(&seal, &new));
        Seal::replace(&file).unwrap();
        let replaced = Seal::open(&file).unwrap();
        assert!(!opens(&replaced, &new) && opens(&replaced, &replaced.seal(Sealed::Ticket, b"x").unwrap()));
    }

    #[test]
    fn an_earlier_release_s_key_opens_what_it_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seal.key");
        fs::write(&file, format!("{}\n", "ab".repeat(32))).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let seal = Seal::open(&file).unwrap();
        let text = seal.seal(Sealed::Ticket, b"x").unwrap();
        let text = text.strip_prefix("00000000.").unwrap();
        assert!(seal.unseal(Sealed::Ticket, text).is_ok());
        assert!(seal.tend(100 * DAY, KEEP).unwrap());
        assert!(Seal::open(&file).unwrap().unseal(Sealed::Ticket, text).is_ok());
        assert!(!seal.seal(Sealed::Ticket, b"x").unwrap().starts_with("00000000"));
    }

    #[test]
    fn a_crash_leaves_no_key_or_a_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seal.key");
        // What a crash while it was written leaves.
        fs::write(folder.path().join(".seal.key.part"), "attestation-gateway se").unwrap();
        let text = Seal::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap();
        assert!(Seal::open(&file).unwrap().unseal(Sealed::Ticket, &text).is_ok());
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["seal.key"]);
        for broken in [
            "",
            "abc",
            "attestation-gateway seal 2\n",
            "attestation-gateway seal 2\n00 1 abc\n",
            "attestation-gateway seal 3\n",
        ] {
            fs::write(&file, broken).unwrap();
            assert!(matches!(Seal::open(&file), Err(SealError::NoKey(_))), "{broken:?}");
        }
    }
}
