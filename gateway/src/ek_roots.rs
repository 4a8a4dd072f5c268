//! The folder of certificates that endorse EKs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::EkRoots;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Largest certificate file that is read: a bundle of a few hundred certificates.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// What the folder holds.
#[derive(Debug, Clone)]
pub struct EkRootsFolder {
    /// The usable certificates.
    pub roots: Arc<EkRoots>,
    /// Every certificate that was read, usable or not: what an auditor needs to have.
    pub certificates: Vec<CertificateDer<'static>>,
    /// What was left out, and why: leaving out is safe, and one odd certificate must not keep a gateway from serving.
    pub refused: Vec<String>,
}

/// The folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct EkRootsFolderError {
    path: PathBuf,
    source: std::io::Error,
}

/// Reads every `*.pem`, `*.crt`, `*.cer` and `*.der` of a folder; a certificate that issued itself is a root. A folder that is not
/// there is an empty one: then only the allowlist endorses.
///
/// # Errors
/// [`EkRootsFolderError`].
pub fn load(folder: &Path) -> Result<EkRootsFolder, EkRootsFolderError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| EkRootsFolderError { path, source }
    };
    let mut paths = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                let path = entry.map_err(io(folder))?.path();
                let extension = path.extension().and_then(|extension| extension.to_str());
                if matches!(extension, Some("pem" | "crt" | "cer" | "der")) {
                    paths.push(path);
                }
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(folder)(error)),
    }
    paths.sort();
    let (mut certificates, mut refused) = (Vec::new(), Vec::new());
    for path in paths {
        if fs::metadata(&path).map_err(io(&path))?.len() > FILE_LIMIT_BYTES {
            refused.push(format!("{}: larger than {FILE_LIMIT_BYTES} bytes", path.display()));
            continue;
        }
        let bytes = fs::read(&path).map_err(io(&path))?;
        if bytes.trim_ascii_start().starts_with(b"-----") || bytes.windows(11).any(|window| window == b"-----BEGIN ") {
            for certificate in CertificateDer::pem_slice_iter(&bytes) {
                match certificate {
                    Ok(certificate) => certificates.push(certificate.into_owned()),
                    Err(error) => refused.push(format!("{}: {error}", path.display())),
                }
            }
        } else {
            certificates.push(CertificateDer::from(bytes));
        }
    }
    let (roots, problems) = sorted(certificates.iter().cloned());
    refused.extend(problems);
    Ok(EkRootsFolder {
        roots: Arc::new(roots),
        certificates,
        refused,
    })
}

/// Roots and intermediates told apart; what cannot be used is left out and named.
pub fn sorted(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (EkRoots, Vec<String>) {
    let (roots, intermediates) = certificates
        .into_iter()
        .partition(|certificate| EkRoots::is_self_issued(certificate));
    let (usable, refused) = EkRoots::load(roots, intermediates);
    (usable, refused.iter().map(ToString::to_string).collect())
}
