//! The folder of certificates that endorse EKs.

use std::path::Path;
use std::sync::Arc;

use attest::EkRoots;
use rustls_pki_types::CertificateDer;

use crate::certificate_folder::{self, CertificateFolderError, Found};

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
#[error(transparent)]
pub struct EkRootsFolderError(#[from] CertificateFolderError);

/// Reads every `*.pem`, `*.crt`, `*.cer` and `*.der` of a folder; a certificate that issued itself is a root. A folder that is not
/// there is an empty one: then only the allowlist endorses.
///
/// # Errors
/// [`EkRootsFolderError`].
pub fn load(folder: &Path) -> Result<EkRootsFolder, EkRootsFolderError> {
    let certificate_folder::Folder { found, mut refused } = certificate_folder::read(folder)?;
    let certificates: Vec<CertificateDer<'static>> = found.into_iter().map(|Found { certificate, .. }| certificate).collect();
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
