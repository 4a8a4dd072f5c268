//! Paths of the private keys of CAs: next to the CA's certificate, if they are on this machine.

use std::path::{Path, PathBuf};

use attest::SpkiSha256;
use attest_certificates::Certificate;
use attest_certificates::source::{self, CertificateFileError};

use super::error::InstallError;
use super::issue::SigningKey;
use crate::settings::TlsSettings;

/// Returns the path of the key of the CA in use, next to the CA. The key may be kept elsewhere.
#[must_use]
pub fn authority_key(files: &TlsSettings) -> PathBuf {
    files.ca.with_extension("key")
}

/// Returns the path of the next CA's key until the old CA is retired.
#[must_use]
pub fn next_authority_key(files: &TlsSettings) -> PathBuf {
    sibling_path(files, "next")
}

/// Returns the path of a retired CA's key.
pub(super) fn old_authority_key(files: &TlsSettings) -> PathBuf {
    sibling_path(files, "old")
}

pub(super) fn sibling_path(files: &TlsSettings, word: &str) -> PathBuf {
    let stem = files.ca.file_stem().unwrap_or_default().to_string_lossy();
    files.ca.with_file_name(format!("{stem}-{word}.key"))
}

/// Returns the file next to the CA that holds its key, if there is one.
#[must_use]
pub fn ca_key_path(files: &TlsSettings, ca: &Certificate) -> Option<PathBuf> {
    [authority_key(files), next_authority_key(files), old_authority_key(files)]
        .into_iter()
        .find(|path| holds(path, ca.key))
}

pub(super) fn holds(path: &Path, key: SpkiSha256) -> bool {
    signing_keys(path).is_ok_and(|keys| keys.iter().any(|found| found.public() == key))
}

pub(super) fn signing_keys(path: &Path) -> Result<Vec<SigningKey>, CertificateFileError> {
    let keys = source::keys(path)?;
    Ok(keys.iter().filter_map(|key| SigningKey::parse(key).ok()).collect())
}

/// Returns the first key in these files that is the CA's.
///
/// # Errors
/// [`InstallError::NoAuthorityKey`], or the error in the one file that was given.
pub fn find_authority_key(files: &TlsSettings, ca: &Certificate, given: Option<&Path>) -> Result<SigningKey, InstallError> {
    let looked = match given {
        Some(path) => vec![path.to_owned()],
        None => vec![authority_key(files), next_authority_key(files), old_authority_key(files)],
    };
    for path in &looked {
        match signing_keys(path) {
            Ok(keys) => {
                if let Some(key) = keys.into_iter().find(|key| key.public() == ca.key) {
                    return Ok(key);
                }
            }
            Err(error) if given.is_some() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Err(InstallError::NoAuthorityKey {
        subject: ca.subject.clone(),
        looked,
    })
}
