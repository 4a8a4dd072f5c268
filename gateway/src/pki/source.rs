//! Where certificates and keys come from: PEM files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::Certificate;

/// Largest file that is read: a bundle of a few dozen certificates.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// It is larger than anything of its kind.
    #[error("{path}: {found} bytes, at most {FILE_LIMIT_BYTES} are read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// It does not hold what it should.
    #[error("{path}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong; never what is in it.
        problem: String,
    },
}

/// All certificates of a file, in its order; at least one.
///
/// # Errors
/// [`SourceError`].
pub fn certificates(path: &Path) -> Result<Vec<Certificate>, SourceError> {
    let text = read(path)?;
    let problem = |problem: String| SourceError::Content {
        path: path.to_owned(),
        problem,
    };
    let mut all = Vec::new();
    for der in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let der = der.map_err(|error| problem(error.to_string()))?;
        all.push(Certificate::parse(der).map_err(&problem)?);
    }
    if all.is_empty() {
        return Err(problem("holds no certificate".to_owned()));
    }
    Ok(all)
}

/// All private keys of a file, in its order; at least one. There are two while a certificate is being replaced: the new key comes
/// before the new certificate, and the old one goes after it, so that a crash between leaves a pair that fits.
///
/// # Errors
/// [`SourceError`].
pub fn keys(path: &Path) -> Result<Vec<PrivateKeyDer<'static>>, SourceError> {
    let text = read(path)?;
    let problem = |problem: String| SourceError::Content {
        path: path.to_owned(),
        problem,
    };
    let all: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(text.as_bytes()).collect();
    match all {
        Ok(all) if all.is_empty() => Err(problem("holds no private key".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(problem(error.to_string())),
    }
}

/// The mode of a key's file, if others than its owner may read it.
#[must_use]
pub fn mode_too_open(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

fn read(path: &Path) -> Result<Zeroizing<String>, SourceError> {
    let io = |source| SourceError::Io {
        path: path.to_owned(),
        source,
    };
    let found = fs::metadata(path).map_err(io)?.len();
    if found > FILE_LIMIT_BYTES {
        return Err(SourceError::TooLarge {
            path: path.to_owned(),
            found,
        });
    }
    fs::read_to_string(path).map(Zeroizing::new).map_err(io)
}
