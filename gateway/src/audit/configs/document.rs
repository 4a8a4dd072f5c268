//! What is in a copy's file.

use attest::protocol::Blob;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePublicKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys::{OpeningKey, Recipient, RedactionKey};
use super::{Blobs, ConfigCopyError, ConfigForm};
use crate::ignition;

/// The document's version.
const VERSION: u32 = 1;
/// What is sealed is a config that was served, and nothing else.
const INFO: &[u8] = b"attestation-gateway/v1/served-config";

/// A copy of a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "lowercase", deny_unknown_fields)]
pub enum Document {
    Redacted {
        v: u32,
        /// SHA-256 of the config that was served.
        config_sha256: String,
        /// SHA-256 of the key that its digests are made by.
        key_sha256: String,
        /// The config, with what may be read of it.
        config: Value,
    },
    Sealed {
        v: u32,
        config_sha256: String,
        /// SHA-256 of the public key that it is sealed to, as a SubjectPublicKeyInfo, DER.
        key_sha256: String,
        /// RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
        enc: Blob,
        ciphertext: Blob,
    },
}

impl Document {
    /// A copy without the config's secrets.
    ///
    /// # Errors
    /// [`ConfigCopyError::NotMade`].
    pub fn redacted(config: &[u8], sha256: &str, key: &RedactionKey) -> Result<Self, ConfigCopyError> {
        // The parser's words could have a secret in them.
        let config: Value = serde_json::from_slice(config).map_err(|_| ConfigCopyError::NotMade("it is no JSON".to_owned()))?;
        Ok(Self::Redacted {
            v: VERSION,
            config_sha256: sha256.to_owned(),
            key_sha256: key.id().to_owned(),
            config: ignition::redacted(&config, key.hmac()),
        })
    }

    /// The whole of it, for the recipient alone.
    ///
    /// # Errors
    /// [`ConfigCopyError::NotMade`].
    pub fn sealed(config: &[u8], sha256: &str, recipient: &Recipient) -> Result<Self, ConfigCopyError> {
        let public = HpkePublicKey(recipient.bytes().to_vec());
        let sealed = DH_KEM_X25519_HKDF_SHA256_AES_256.seal(INFO, sha256.as_bytes(), config, &public);
        let (EncapsulatedSecret(enc), ciphertext) = sealed.map_err(|error| ConfigCopyError::NotMade(error.to_string()))?;
        Ok(Self::Sealed {
            v: VERSION,
            config_sha256: sha256.to_owned(),
            key_sha256: recipient.id(),
            enc: Blob(enc),
            ciphertext: Blob(ciphertext),
        })
    }

    pub(super) fn text(&self) -> Result<Vec<u8>, ConfigCopyError> {
        serde_json::to_vec(self).map_err(|error| ConfigCopyError::NotMade(error.to_string()))
    }

    pub(super) fn read(content: &[u8]) -> Result<Self, ConfigCopyError> {
        let document: Self = serde_json::from_slice(content).map_err(|error| ConfigCopyError::NotACopy(error.to_string()))?;
        let (Self::Redacted { v, .. } | Self::Sealed { v, .. }) = &document;
        if *v != VERSION {
            return Err(ConfigCopyError::NotACopy(format!("it is of version {v}")));
        }
        Ok(document)
    }

    #[must_use]
    pub const fn form(&self) -> ConfigForm {
        match self {
            Self::Redacted { .. } => ConfigForm::Redacted,
            Self::Sealed { .. } => ConfigForm::Sealed,
        }
    }

    /// SHA-256 of the config that was served, as the copy says.
    #[must_use]
    pub fn config_sha256(&self) -> &str {
        let (Self::Redacted { config_sha256, .. } | Self::Sealed { config_sha256, .. }) = self;
        config_sha256
    }

    /// The config that was served, byte for byte: it has the SHA-256 that the copy says.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn open(&self, key: &OpeningKey) -> Result<Vec<u8>, ConfigCopyError> {
        let Self::Sealed {
            config_sha256,
            key_sha256,
            enc,
            ciphertext,
            ..
        } = self
        else {
            return Err(ConfigCopyError::Redacted);
        };
        if *key_sha256 != key.id() {
            return Err(ConfigCopyError::AnotherKey {
                sealed_to: key_sha256.clone(),
                given: key.id(),
            });
        }
        let enc = EncapsulatedSecret(enc.0.clone());
        let opened = DH_KEM_X25519_HKDF_SHA256_AES_256.open(&enc, INFO, config_sha256.as_bytes(), &ciphertext.0, key.hpke());
        let config = opened.map_err(|_| ConfigCopyError::CannotOpen)?;
        let found = Blobs::name(&config);
        if found != *config_sha256 {
            return Err(ConfigCopyError::WrongDigest {
                wanted: config_sha256.clone(),
                found,
            });
        }
        Ok(config)
    }
}
