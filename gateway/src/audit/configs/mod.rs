//! Configs that were served, for whoever looks into it later: redacted, or sealed to a key whose private half is elsewhere. A copy is a file named by
//! the SHA-256 of what is in it, which each record has that was written with it; and it names the config by its SHA-256.

mod copies;
mod document;
mod keys;

use std::io;
use std::path::PathBuf;

use axum::body::Bytes;
pub use copies::ConfigCopies;
pub use document::Document;
pub use keys::{OpeningKey, Recipient, RedactionKey};
use serde::{Deserialize, Serialize};

use super::blobs::{BlobError, Blobs};
use crate::files::FileError;

/// Largest copy that is read back: a pool's files are at most 64 MiB, and Base64 and escapes make more of that.
const COPY_LIMIT_BYTES: u64 = 512 * 1024 * 1024;

/// In which form a config was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfigForm {
    /// Without its secrets.
    Redacted,
    /// Whole, for whoever has the key.
    Sealed,
}

/// The copy of a config, as a record names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigCopy {
    pub form: ConfigForm,
    /// SHA-256 of the copy: the name of its file.
    pub sha256: String,
    /// What is in the file. Not written into the record, and not there in one that was read.
    #[serde(skip)]
    pub(super) content: Bytes,
}

/// Why there is no copy of a config, or nothing can be had of it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigCopyError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The file of the public key holds something else.
    #[error("{0} holds no X25519 public key, PEM, as `openssl pkey -pubout` writes it")]
    NoPublicKey(PathBuf),
    /// The file of the public key holds a private one.
    #[error(
        "{0} holds a private key: whoever has this machine's disk could open what is sealed; put `openssl pkey -pubout` of it here, and keep it elsewhere"
    )]
    PrivateKeyHere(PathBuf),
    /// Nothing can be sealed to it.
    #[error("{0} holds a key that nothing can be sealed to")]
    UnusableKey(PathBuf),
    /// The file of the private key holds something else.
    #[error("{0} holds no X25519 private key, PEM (PKCS #8), as `openssl genpkey -algorithm X25519` writes it")]
    NoPrivateKey(PathBuf),
    /// The file of the redaction key holds something else.
    #[error(
        "{0} holds no redaction key, 64 hexadecimal digits; if it is lost, remove the file to have a new one made: digests made by the old one cannot be compared any more"
    )]
    NoRedactionKey(PathBuf),
    /// Others can read it.
    #[error("{path} has mode {mode:04o}: only its owner may read it (chmod 0600)")]
    Mode { path: PathBuf, mode: u32 },
    #[error("the system's random generator failed")]
    Random,
    /// It could not be sealed, or put into JSON.
    #[error("the copy of a config cannot be made: {0}")]
    NotMade(String),
    /// It is no copy of a config.
    #[error("no copy of a config: {0}")]
    NotACopy(String),
    /// It is the copy of another config, or in another form.
    #[error("it is the copy of config {found}, not of {wanted}")]
    OfAnother { wanted: String, found: String },
    /// It is redacted.
    #[error("it is redacted: no key opens it")]
    Redacted,
    /// It was sealed to another key.
    #[error("it is sealed to the key {sealed_to}, and this is {given} (SHA-256 of the public key, DER)")]
    AnotherKey { sealed_to: String, given: String },
    /// It was altered after it was sealed, or names a key that it was not sealed to.
    #[error("it cannot be opened: it was altered, or was not sealed to this key")]
    CannotOpen,
    /// What is in it is not what it is called.
    #[error("what is sealed in it has the SHA-256 {found}, not {wanted}")]
    WrongDigest { wanted: String, found: String },
}

impl ConfigCopy {
    /// What is to be written of it, and what the record says.
    ///
    /// # Errors
    /// [`ConfigCopyError::NotMade`].
    pub fn of(document: &Document) -> Result<Self, ConfigCopyError> {
        let content: Bytes = document.text()?.into();
        Ok(Self {
            form: document.form(),
            sha256: Blobs::name(&content),
            content,
        })
    }

    /// What was kept of a config under this copy's name: whether it is that, unaltered.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn read(&self, folder: &Blobs, config_sha256: &str) -> Result<Document, ConfigCopyError> {
        let document = Document::read(&folder.get_up_to(&self.sha256, COPY_LIMIT_BYTES)?)?;
        if document.config_sha256() != config_sha256 {
            return Err(ConfigCopyError::OfAnother {
                wanted: config_sha256.to_owned(),
                found: document.config_sha256().to_owned(),
            });
        }
        if document.form() != self.form {
            return Err(ConfigCopyError::NotACopy("its form is not the one that was recorded".to_owned()));
        }
        Ok(document)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
mod tests;
