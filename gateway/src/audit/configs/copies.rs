//! Which copies are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::super::blobs::{BlobError, Blobs};
use super::{ConfigCopy, ConfigCopyError, Document, Recipient, RedactionKey};
use crate::settings::{ConfigsSettings, Settings};

/// Copies that are at hand at once: the configs of some dozens of pools, in the versions that their nodes ask for. Others are made again.
const MADE_LIMIT: usize = 128;

#[derive(Debug)]
enum How {
    Not,
    Redacted(Box<RedactionKey>),
    Sealed(Recipient),
}

/// Makes copies of what is served: of each config one, as long as it is served.
#[derive(Debug)]
pub struct ConfigCopies {
    how: How,
    made: Mutex<BTreeMap<String, ConfigCopy>>,
}

impl ConfigCopies {
    /// As the settings say it; makes the redaction key if it is needed and there is none.
    ///
    /// # Errors
    /// [`ConfigCopyError`]: a key that cannot be used.
    pub fn open(settings: &Settings) -> Result<Self, ConfigCopyError> {
        let how = match &settings.configs {
            ConfigsSettings::None => How::Not,
            ConfigsSettings::Redacted => How::Redacted(Box::new(RedactionKey::open(&settings.redaction_key())?)),
            ConfigsSettings::Sealed(key) => How::Sealed(Recipient::read(key)?),
        };
        let made = Mutex::default();
        Ok(Self { how, made })
    }

    /// The key that they are sealed to, or that their digests are made by: what it is called, and its SHA-256, as copies name it.
    #[must_use]
    pub fn key(&self) -> Option<(&'static str, String)> {
        match &self.how {
            How::Not => None,
            How::Redacted(key) => Some(("redaction.key", key.id().to_owned())),
            How::Sealed(recipient) => Some(("attestation_log.configs_key", recipient.id())),
        }
    }

    /// Looks whether that will do, and makes nothing.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn look(settings: &Settings) -> Result<(), ConfigCopyError> {
        let redaction_key = settings.redaction_key();
        match &settings.configs {
            ConfigsSettings::Redacted if redaction_key.symlink_metadata().is_ok() => RedactionKey::read(&redaction_key).map(drop),
            ConfigsSettings::Sealed(key) => Recipient::read(key).map(drop),
            _ => Ok(()),
        }
    }

    /// The folder of copies, if there are any to be made.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn folder(settings: &Settings) -> Result<Option<Blobs>, BlobError> {
        match settings.configs {
            ConfigsSettings::None => Ok(None),
            _ => Blobs::open(&settings.configs_folder()).map(Some),
        }
    }

    /// A copy of a config with this SHA-256; none if none is kept.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn of(&self, config: &[u8], sha256: &str) -> Result<Option<ConfigCopy>, ConfigCopyError> {
        if matches!(self.how, How::Not) {
            return Ok(None);
        }
        // Whoever asks meanwhile for the same waits for it, instead of making another.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = made.get(sha256) {
            return Ok(Some(copy.clone()));
        }
        let Some(document) = self.make(config, sha256)? else {
            return Ok(None);
        };
        let copy = ConfigCopy::of(&document)?;
        if made.len() >= MADE_LIMIT {
            made.clear();
        }
        made.insert(sha256.to_owned(), copy.clone());
        Ok(Some(copy))
    }

    fn make(&self, config: &[u8], sha256: &str) -> Result<Option<Document>, ConfigCopyError> {
        match &self.how {
            How::Not => Ok(None),
            How::Redacted(key) => Document::redacted(config, sha256, key).map(Some),
            How::Sealed(recipient) => Document::sealed(config, sha256, recipient).map(Some),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::tests::{CONFIG, key_pair, sha256};
    use super::*;

    fn copies(how: How) -> ConfigCopies {
        let made = Mutex::default();
        ConfigCopies { how, made }
    }

    #[test]
    fn a_copy_is_made_once_for_each_config() {
        let folder = tempfile::tempdir().unwrap();
        let (public, _) = key_pair(folder.path(), "a");
        let copies = copies(How::Sealed(Recipient::read(&public).unwrap()));
        let first = copies.of(CONFIG, &sha256()).unwrap().unwrap();
        assert_eq!(copies.of(CONFIG, &sha256()).unwrap().unwrap(), first);
        let other = copies.of(b"{}", &Blobs::name(b"{}")).unwrap().unwrap();
        assert_ne!(other.sha256, first.sha256);
        for number in 0..MADE_LIMIT {
            let config = format!("{{\"a\":{number}}}");
            copies.of(config.as_bytes(), &Blobs::name(config.as_bytes())).unwrap();
            assert!(copies.made.lock().unwrap().len() <= MADE_LIMIT);
        }
        // It was made anew, and HPKE makes no two that are the same.
        assert_ne!(copies.of(CONFIG, &sha256()).unwrap().unwrap(), first);
    }

    #[test]
    fn what_cannot_be_kept_is_not_served_and_its_parser_does_not_say_what_it_has_read() {
        let folder = tempfile::tempdir().unwrap();
        let key = RedactionKey::open(&folder.path().join("redaction.key")).unwrap();
        let error = copies(How::Redacted(Box::new(key))).of(b"SECRET", "0").unwrap_err().to_string();
        assert!(!error.contains("SECRET"), "{error}");
    }

    #[test]
    fn nothing_is_made_where_nothing_is_kept() {
        assert_eq!(copies(How::Not).of(CONFIG, &sha256()).unwrap(), None);
    }
}
