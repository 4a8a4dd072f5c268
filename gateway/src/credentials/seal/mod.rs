//! The seal: what the gateway gives away and takes back unread and unchanged.
//!
//! Challenges and tickets carry their own state, so that any replica can take them. They are *encrypted*, not only
//! authenticated: a challenge holds the digest of the secret that proves where the AK lives, and a node that could read it would
//! not need the TPM.

mod document;
mod file;
mod key;
mod key_file;
mod shared;
mod state_file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use attest_store::{Store, StoreEntry, StoreError, StoreMark};
use attest_system::files::WriteError;
use attest_system::newer_format::NewerFormat;
use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use data_encoding::BASE64URL_NOPAD;
use key::SealKey;
use key_file::KeyFile;
use zeroize::Zeroizing;

pub use document::VERSION as SEAL_VERSION;
use document::could_be_an_id;
use shared::{SealChange, SharedSeal};
pub(crate) use state_file::{FILE as SET_FILE, VERSION as SET_VERSION};

/// Time that a key seals. A random nonce of 96 bits is good for 2^32 texts (NIST SP 800-38D, 8.3), which no fleet reaches in a month.
const ROTATE_EVERY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Longest sealed text that is looked at: twice the largest challenge request, which is what sealing makes of it.
const SEALED_LIMIT_BYTES: usize = 128 * 1024;

/// Kind of a sealed text: one kind cannot be presented as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    Challenge,
    Ticket,
    /// Proof of an attestation, for reports.
    Report,
}

impl Sealed {
    const fn domain(self) -> &'static [u8] {
        match self {
            Self::Challenge => b"attestation-gateway/v1/challenge",
            Self::Ticket => b"attestation-gateway/v1/ticket",
            Self::Report => b"attestation-gateway/v1/report",
        }
    }
}

/// Current time by two clocks, in seconds since 1970, for keys that replicas share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Store time, or the time of this gateway's clock if that is behind it: the dates of shared keys must not come from one clock.
    pub store: u64,
    /// Time of this gateway's clock, by which challenges and tickets expire.
    pub clock: u64,
}

impl Times {
    /// Combines the store time and the time of this gateway's clock.
    #[must_use]
    pub fn new(believed: u64, clock: u64) -> Self {
        let store = believed.min(clock);
        Self { store, clock }
    }
}

impl From<u64> for Times {
    /// Uses one time for both clocks.
    fn from(now: u64) -> Self {
        Self::new(now, now)
    }
}

/// The keys of the seal: one of them seals, and older ones open what they sealed until that has expired. Gateways that share them must share
/// their store too: what one has spent, the others must know.
pub struct SealKeyRing {
    home: Home,
    keys: RwLock<Arc<SealKeys>>,
}

/// Location of the seal's keys.
enum Home {
    /// A file of this gateway.
    File(PathBuf),
    /// The store, encrypted by a key that replicas share.
    Store(SharedSeal),
}

/// The first one seals.
struct SealKeys(Vec<SealKey>);

impl std::fmt::Debug for SealKeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(<secret>)")
    }
}

/// Error of the seal or of its keys.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The key file cannot be read or written.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The key file holds something else.
    #[error("{0} holds no seal keys; to create new ones, remove the file: this invalidates all challenges and tickets")]
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
    /// No key may seal at this time.
    #[error("the seal has no key that is good at this time")]
    NoneSeals,
    /// The store's key file holds something else.
    #[error("{0} holds no key of a store (`attest-gateway store create-key` makes one, and all replicas share it)")]
    NoStoreKey(PathBuf),
    /// The store's key file is another one's.
    #[error(
        "{path} holds key {found}, but the seal's keys in the store are encrypted by {wanted}: copy the key file of the other replicas; \
         if it is lost: `attest-gateway seal rotate --drop --key-lost`"
    )]
    OtherStoreKey { path: PathBuf, found: String, wanted: String },
    /// Another process has replaced the store's key file.
    #[error("{0} was replaced while its key was rotated: restore the file that decrypts the store's keys, and run the command again")]
    KeyFileReplaced(PathBuf),
    /// A lock could not be waited for.
    #[error("waiting for another process was interrupted")]
    Interrupted,
    /// A key in the store is not what was written.
    #[error(
        "the seal's key {0:?} in the store, or its dates, was altered; create new keys, which invalidates all challenges and tickets: `attest-gateway seal rotate --drop`"
    )]
    Altered(String),
    /// The keys in the store are not all, or not those, that were written.
    #[error(
        "the seal's keys in the store are not the set that was written: a key was removed or added; create new keys, which invalidates all challenges and tickets: `attest-gateway seal rotate --drop`"
    )]
    OtherSet,
    /// The keys in the store are older ones.
    #[error(
        "the seal's keys in the store were rolled back to change {found}; {known} was seen before ({by}). Restore the newer ones, or create new keys, which invalidates all challenges and tickets: `attest-gateway seal rotate --drop`"
    )]
    SetBack {
        /// Number of changes of the set in the store.
        found: u64,
        /// Number of changes that are known here.
        known: u64,
        /// Source of the known number.
        by: String,
    },
    /// The file with the newest known set was altered.
    #[error(
        "{0} does not hold the last change of the seal's keys: it was altered. Restore it; if it is lost, remove it and create new keys: `attest-gateway seal rotate --drop`"
    )]
    NotKept(PathBuf),
    /// A newer release has written a file of keys, or of the newest known set.
    #[error("{path} has {newer}")]
    NewerFile {
        path: PathBuf,
        #[source]
        newer: NewerFormat,
    },
    /// The entry in the store does not hold a seal's keys.
    #[error("the seal's keys in the store cannot be read: {0}. If a newer release has written them: run that one")]
    Document(serde_json::Error),
    /// They are a newer release's.
    #[error("the seal's keys in the store have {0}")]
    Version(#[source] NewerFormat),
    /// The store cannot say which it is.
    #[error("the store does not say which one it is, so that the seal's keys cannot be told to be its own")]
    Nameless,
    /// Others have changed the keys again and again meanwhile.
    #[error("the seal's keys in the store change all the time")]
    Contended,
    /// The store was read in vain a moment ago.
    #[error("the seal's keys in the store could not be read a moment ago")]
    Unread,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The content cannot be written as JSON.
    #[error("cannot encode the data to seal: {0}")]
    Content(#[from] serde_json::Error),
}

/// The text was not sealed by this key, or not as this kind, or it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not sealed by this gateway")]
pub struct NotSealed;

impl SealKeyRing {
    /// Reads the key file, or makes it with a new key.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn open(file: &Path) -> Result<Self, SealError> {
        Ok(Self {
            home: Home::File(file.to_owned()),
            keys: RwLock::new(Arc::new(file::open(file)?)),
        })
    }

    /// Reads the keys in the store, which are encrypted by the key in the file; makes the first one.
    ///
    /// # Errors
    /// [`SealError`]. Nothing is written in the place of what cannot be read.
    pub async fn open_shared(store: Arc<dyn Store>, key_file: &Path, now: impl Into<Times>) -> Result<Self, SealError> {
        let shared = SharedSeal::open(store, key_file, now.into()).await?;
        let keys = RwLock::new(Arc::new(shared.keys()?));
        Ok(Self {
            home: Home::Store(shared),
            keys,
        })
    }

    /// Makes the key file that replicas share; gives its id.
    ///
    /// # Errors
    /// [`SealError`], also if it is there.
    pub fn make_key_file(path: &Path) -> Result<String, SealError> {
        Ok(KeyFile::make(path)?.newest()?.id.clone())
    }

    /// Checks that there is a usable key file.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn check_key_file(path: &Path) -> Result<(), SealError> {
        KeyFile::read(path).map(drop)
    }

    /// The entry of [`attest_store::EntryKind::SealKey`] that has the keys which replicas share.
    pub const SHARED_ENTRY: &str = shared::ENTRY;

    /// Checks that the key file opens the entry of this store.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn check_shared(entry: &StoreEntry, store: &StoreMark, key_file: &Path) -> Result<(), SealError> {
        let file = KeyFile::read(key_file)?;
        shared::open(entry, &store.id, &file).map(drop)
    }

    /// Gives the seal a new key and drops all others: whatever was sealed before is worthless.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn replace(file: &Path) -> Result<(), SealError> {
        file::replace(file)
    }

    /// Returns whether a newer release has written the file.
    #[must_use]
    pub fn is_newer(file: &Path) -> bool {
        file::is_newer(file)
    }

    /// Like [`Seal::replace`], but only if the file exists.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn replace_if_exists(file: &Path) -> Result<(), SealError> {
        match std::fs::symlink_metadata(file).is_ok() {
            true => file::replace(file),
            false => Ok(()),
        }
    }

    /// Gives the seal a new key. Older ones open what they sealed for as long as `keep`.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn rotate(file: &Path, now: u64, keep: Duration) -> Result<(), SealError> {
        file::maintain(file, now, keep, true).map(drop)
    }

    /// Like [`Seal::rotate`], for keys in a store: the new one seals when every replica has had time to read it.
    ///
    /// # Errors
    /// [`SealError`].
    pub async fn rotate_shared(store: &dyn Store, key_file: &Path, now: impl Into<Times>) -> Result<(), SealError> {
        shared::change(store, key_file, now.into(), &SealChange::Rotate, None)
            .await
            .map(drop)
    }

    /// Like [`Seal::replace`], for keys in a store, whatever is there. If they are encrypted by a key that the file lacks, that key must be
    /// lost.
    ///
    /// # Errors
    /// [`SealError`].
    pub async fn replace_shared(store: &dyn Store, key_file: &Path, now: impl Into<Times>, key_is_lost: bool) -> Result<(), SealError> {
        shared::change(store, key_file, now.into(), &SealChange::Drop { key_is_lost }, None)
            .await
            .map(drop)
    }

    /// Gives the key file a new key, and encrypts the keys in the store by it. Gives the ids of the one before and of the new one. If it is
    /// broken off, it can be done again.
    ///
    /// # Errors
    /// [`SealError`].
    pub async fn replace_key_file(store: &dyn Store, key_file: &Path, now: impl Into<Times>) -> Result<(String, String), SealError> {
        shared::replace_key_file(store, key_file, now.into()).await
    }

    /// Reads the keys again, drops those whose time is over, and makes a new one if the newest is old. Returns whether it made one. For
    /// keys in a file, older ones are kept for as long as `keep`.
    ///
    /// # Errors
    /// [`SealError`]: the keys stay what they were, each until its end.
    pub async fn maintain(&self, now: impl Into<Times>, keep: Duration) -> Result<bool, SealError> {
        let now = now.into();
        match &self.home {
            Home::File(file) => {
                let file = file.clone();
                // A command may hold the file's lock.
                let tended = tokio::task::spawn_blocking(move || file::maintain(&file, now.clock, keep, false));
                let (keys, made) = tended.await.map_err(|_| SealError::Interrupted)??;
                self.set(|| Ok(keys))?;
                Ok(made)
            }
            Home::Store(shared) => {
                let tended = shared.maintain(now).await;
                if tended.is_err() {
                    shared.until_their_ends(now);
                }
                self.set(|| shared.keys())?;
                tended
            }
        }
    }

    /// Returns whether the keys are in the store.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.home, Home::Store(_))
    }

    /// Reads the store again if the text was sealed by an unknown key, such as another replica's newest. It does so at most once a second,
    /// whatever unauthenticated clients send. Afterwards [`Seal::unseal`] knows the key.
    ///
    /// # Errors
    /// [`SealError`]: whether there is such a key is not known.
    pub async fn refresh_for(&self, text: &str) -> Result<(), SealError> {
        let (Home::Store(shared), Some((id, _))) = (&self.home, text.split_once('.')) else {
            return Ok(());
        };
        let is_known = || !could_be_an_id(id) || self.keys().0.iter().any(|key| key.id == id);
        if !is_known() && shared.reread(is_known).await? {
            self.set(|| shared.keys())?;
        }
        Ok(())
    }

    /// Uses these from now on. Of two that do so at once the later one has what is known by then.
    fn set(&self, keys: impl FnOnce() -> Result<SealKeys, SealError>) -> Result<(), SealError> {
        let mut used = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        *used = Arc::new(keys()?);
        Ok(())
    }

    fn keys(&self) -> Arc<SealKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seals `content` as `kind`: the key's id, a dot, base64url without padding.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, kind: Sealed, content: &[u8]) -> Result<String, SealError> {
        let keys = self.keys();
        let key = keys.0.first().ok_or(SealError::NoneSeals)?;
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
        let (id, text) = text.split_once('.').ok_or(NotSealed)?;
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

impl From<WriteError> for SealError {
    fn from(WriteError { path, source }: WriteError) -> Self {
        Self::Io { path, source }
    }
}
