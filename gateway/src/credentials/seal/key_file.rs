//! The key file, of which each replica has a copy: its key encrypts the seal's keys in the store.

use std::fs::File;
use std::path::{Path, PathBuf};

use attest_system::files;
use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

use super::SealError;
use super::file::{check_version, read_private_or_given};
use super::key::KeyBytes;

/// The first line of the file: its format.
const HEAD: &str = "attestation-gateway store key 1";
/// Prefix that is hashed before a key to make its id.
const ID_DOMAIN: &[u8] = b"attestation-gateway/v1/store-key-id";
/// Digits of an id: enough to tell keys apart, and far too few to find one.
const ID_DIGITS: usize = 16;
/// Keys that a file may hold: the newest, and while it is being replaced the one before.
const KEYS_LIMIT: usize = 2;

/// The key file, read. The newest key comes first.
pub(super) struct KeyFile {
    path: PathBuf,
    keys: Vec<StoreKey>,
}

/// A key of the file.
pub(super) struct StoreKey {
    /// Id of the key: a digest of it, so that it cannot be claimed for another.
    pub(super) id: String,
    secret: KeyBytes,
    cipher: RandomizedNonceKey,
}

impl KeyFile {
    /// Makes the file with a new key; it must not be there yet.
    pub(super) fn make(path: &Path) -> Result<Self, SealError> {
        let made = Self {
            path: path.to_owned(),
            keys: vec![StoreKey::new(KeyBytes::random()?)?],
        };
        files::create(path, files::PRIVATE, &made.text())?;
        Ok(made)
    }

    pub(super) fn read(path: &Path) -> Result<Self, SealError> {
        let text = read_private_or_given(path)?;
        check_version(path, HEAD, &text)?;
        let keys = Self::parse(&text).ok_or_else(|| SealError::NoStoreKey(path.to_owned()))?;
        Ok(Self {
            path: path.to_owned(),
            keys: keys.into_iter().map(StoreKey::new).collect::<Result<_, _>>()?,
        })
    }

    /// Returns `None` if the text holds something else.
    fn parse(text: &str) -> Option<Vec<KeyBytes>> {
        let mut lines = text.lines();
        lines.next().filter(|head| *head == HEAD)?;
        let keys: Option<Vec<KeyBytes>> = lines.map(KeyBytes::from_hex).collect();
        keys.filter(|keys| (1..=KEYS_LIMIT).contains(&keys.len()))
    }

    fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(format!("{HEAD}\n"));
        for key in &self.keys {
            text.push_str(&key.secret.hex());
            text.push('\n');
        }
        text
    }

    /// Returns the key by which new data is encrypted.
    pub(super) fn newest(&self) -> Result<&StoreKey, SealError> {
        self.keys.first().ok_or_else(|| SealError::NoStoreKey(self.path.clone()))
    }

    /// Returns the key with this id.
    pub(super) fn key(&self, id: &str) -> Result<&StoreKey, SealError> {
        self.keys.iter().find(|key| key.id == id).ok_or_else(|| SealError::OtherStoreKey {
            path: self.path.clone(),
            found: self.keys.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(", "),
            wanted: id.to_owned(),
        })
    }

    /// Keeps other processes of this machine from replacing it until what this gives is dropped.
    pub(super) async fn alone(path: &Path) -> Result<File, SealError> {
        locked(files::folder(path).to_owned()).await
    }

    /// Keeps other processes that have this file from what is done for it here, until what this gives is dropped.
    pub(super) async fn lock(&self) -> Result<File, SealError> {
        locked(self.path.clone()).await
    }

    /// Puts a new key before the one that encrypts the store. Another one, of an interrupted replacement, is dropped: it may have been
    /// read, too.
    pub(super) fn begin_to_replace(self, in_use: &str) -> Result<Self, SealError> {
        let mut keys = vec![StoreKey::new(KeyBytes::random()?)?];
        keys.extend(self.keys.into_iter().filter(|key| key.id == in_use));
        let replaced = Self { keys, ..self };
        files::replace(&replaced.path, files::PRIVATE, &replaced.text())?;
        Ok(replaced)
    }

    /// Checks that this key is the newest: no other process has replaced the file.
    pub(super) fn begins_with(self, id: &str) -> Result<Self, SealError> {
        if self.newest()?.id != id {
            return Err(SealError::KeyFileReplaced(self.path));
        }
        Ok(self)
    }

    /// Drops all keys but the newest.
    pub(super) fn end_replacing(mut self) -> Result<(), SealError> {
        self.keys.truncate(1);
        Ok(files::replace(&self.path, files::PRIVATE, &self.text())?)
    }
}

/// Waits for the lock of this file, or folder, for as long as another process has it; nothing else waits meanwhile.
async fn locked(path: PathBuf) -> Result<File, SealError> {
    let locking = tokio::task::spawn_blocking(move || {
        let file = File::open(&path).and_then(|file| file.lock().map(|()| file));
        file.map_err(|source| SealError::Io { path, source })
    });
    locking.await.map_err(|_| SealError::Interrupted)?
}

impl StoreKey {
    fn new(secret: KeyBytes) -> Result<Self, SealError> {
        let digest = digest(&SHA256, &Zeroizing::new([ID_DOMAIN, secret.bytes().as_slice()].concat()));
        Ok(Self {
            id: HEXLOWER.encode(digest.as_ref()).chars().take(ID_DIGITS).collect(),
            cipher: secret.cipher()?,
            secret,
        })
    }

    /// Returns base64url of a nonce and a tag over this text.
    pub(super) fn authenticate(&self, text: &str) -> Result<String, SealError> {
        let mut tag = Vec::new();
        let nonce = self
            .cipher
            .seal_in_place_append_tag(Aad::from(text.as_bytes()), &mut tag)
            .map_err(|_| SealError::Cipher)?;
        Ok(BASE64URL_NOPAD.encode(&[nonce.as_ref().as_slice(), &tag].concat()))
    }

    /// Returns whether [`StoreKey::authenticate`] has made this tag of this text.
    pub(super) fn is_authentic(&self, tag: &str, text: &str) -> bool {
        let opened = || {
            let bytes = BASE64URL_NOPAD.decode(tag.as_bytes()).ok()?;
            let (nonce, tag) = bytes.split_at_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut tag = tag.to_vec();
            let rest = self.cipher.open_in_place(nonce, Aad::from(text.as_bytes()), &mut tag).ok()?;
            Some(rest.is_empty())
        };
        opened() == Some(true)
    }

    /// Returns base64url of nonce, ciphertext and tag. `beside` is authenticated, and must be the same when it is decrypted.
    pub(super) fn encrypt(&self, secret: &KeyBytes, beside: &str) -> Result<String, SealError> {
        let mut text = secret.bytes().to_vec();
        let nonce = self
            .cipher
            .seal_in_place_append_tag(Aad::from(beside.as_bytes()), &mut text)
            .map_err(|_| SealError::Cipher)?;
        Ok(BASE64URL_NOPAD.encode(&[nonce.as_ref().as_slice(), &text].concat()))
    }

    /// Returns `None` if the text or `beside` is not what was encrypted.
    pub(super) fn decrypt(&self, text: &str, beside: &str) -> Option<KeyBytes> {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (nonce, text) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = Zeroizing::new(text.to_vec());
        let secret = self.cipher.open_in_place(nonce, Aad::from(beside.as_bytes()), &mut text).ok()?;
        KeyBytes::from_bytes(secret)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(super) mod tests {
    use super::*;

    /// Returns a key of this byte alone.
    pub(in super::super) fn key(byte: u8) -> StoreKey {
        StoreKey::new(KeyBytes::from_bytes(&[byte; 32]).unwrap()).unwrap()
    }
}
