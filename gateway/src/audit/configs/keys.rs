//! Keys of copies: what configs are sealed to, what opens them, and what digests of redacted ones are made by.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::agreement::{PrivateKey, X25519};
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256;
use rustls::crypto::hpke::{Hpke, HpkePrivateKey, HpkePublicKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use zeroize::Zeroizing;

use super::{Blobs, ConfigCopyError};
use crate::files::{self, SMALL_FILE_LIMIT_BYTES};

/// What stands before the 32 bytes of an X25519 key in a SubjectPublicKeyInfo (RFC 8410, 4).
const PUBLIC_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x03, 0x21, 0x00];
/// And before those of a private one in a PrivateKeyInfo (RFC 8410, 7).
const PRIVATE_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x04, 0x22, 0x04, 0x20,
];
const KEY_BYTES: usize = 32;

/// Who can open what is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient([u8; KEY_BYTES]);

impl Recipient {
    /// Reads the file of the public key, and tries it.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn read(file: &Path) -> Result<Self, ConfigCopyError> {
        let pem = Zeroizing::new(read(file)?);
        if PrivatePkcs8KeyDer::from_pem_slice(&pem).is_ok() {
            return Err(ConfigCopyError::PrivateKeyHere(file.to_owned()));
        }
        let der = SubjectPublicKeyInfoDer::from_pem_slice(&pem);
        let key = der.ok().and_then(|der| der.as_ref().strip_prefix(&PUBLIC_HEAD)?.try_into().ok());
        let recipient = Self(key.ok_or_else(|| ConfigCopyError::NoPublicKey(file.to_owned()))?);
        // A point of small order agrees with everybody on the same secret.
        let public = HpkePublicKey(recipient.0.to_vec());
        match DH_KEM_X25519_HKDF_SHA256_AES_256.seal(b"", b"", b"", &public) {
            Ok(_) => Ok(recipient),
            Err(_) => Err(ConfigCopyError::UnusableKey(file.to_owned())),
        }
    }

    pub(super) const fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// SHA-256 of it as a SubjectPublicKeyInfo, DER.
    pub(super) fn id(&self) -> String {
        Blobs::name(&[PUBLIC_HEAD.as_slice(), &self.0].concat())
    }
}

/// Opens what is sealed to its public half.
pub struct OpeningKey {
    key: HpkePrivateKey,
    public: Recipient,
}

impl fmt::Debug for OpeningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpeningKey").field(&self.public).finish()
    }
}

impl OpeningKey {
    /// Reads the file of a private key.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn read(file: &Path) -> Result<Self, ConfigCopyError> {
        let pem = Zeroizing::new(read(file)?);
        let none = || ConfigCopyError::NoPrivateKey(file.to_owned());
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| none())?;
        let bytes = der.secret_pkcs8_der().strip_prefix(&PRIVATE_HEAD);
        let bytes = bytes.filter(|bytes| bytes.len() == KEY_BYTES).ok_or_else(none)?;
        let private = PrivateKey::from_private_key(&X25519, bytes).map_err(|_| none())?;
        let public = private.compute_public_key().map_err(|_| none())?;
        Ok(Self {
            public: Recipient(public.as_ref().try_into().map_err(|_| none())?),
            key: bytes.to_vec().into(),
        })
    }

    pub(super) const fn hpke(&self) -> &HpkePrivateKey {
        &self.key
    }

    pub(super) fn id(&self) -> String {
        self.public.id()
    }
}

/// What digests of redacted configs are made by: this gateway's own, so that nobody can guess a short secret by its digest who has not got it.
#[derive(Debug)]
pub struct RedactionKey {
    key: hmac::Key,
    id: String,
}

impl RedactionKey {
    /// Reads the key's file, or makes it with a new key.
    ///
    /// # Errors
    /// [`ConfigCopyError`].
    pub fn open(file: &Path) -> Result<Self, ConfigCopyError> {
        if !file.exists() {
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            aws_lc_rs::rand::fill(key.as_mut_slice()).map_err(|_| ConfigCopyError::Random)?;
            let text = Zeroizing::new(HEXLOWER.encode(key.as_slice()) + "\n");
            match files::create(file, files::PRIVATE, &text) {
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
    /// [`ConfigCopyError`].
    pub fn read(file: &Path) -> Result<Self, ConfigCopyError> {
        let io = |source| ConfigCopyError::Io {
            path: file.to_owned(),
            source,
        };
        let mode = fs::metadata(file).map_err(io)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(ConfigCopyError::Mode {
                path: file.to_owned(),
                mode,
            });
        }
        let text = Zeroizing::new(read(file)?);
        let key = HEXLOWER.decode(text.trim_ascii_end()).map(Zeroizing::new).ok();
        let key = key.filter(|key| key.len() == KEY_BYTES);
        let key = key.ok_or_else(|| ConfigCopyError::NoRedactionKey(file.to_owned()))?;
        Ok(Self {
            id: Blobs::name(&key),
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
        })
    }

    pub(super) const fn hmac(&self) -> &hmac::Key {
        &self.key
    }

    /// SHA-256 of it.
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

fn read(file: &Path) -> Result<Vec<u8>, ConfigCopyError> {
    files::read(file, SMALL_FILE_LIMIT_BYTES).map_err(|source| ConfigCopyError::Io {
        path: file.to_owned(),
        source,
    })
}
