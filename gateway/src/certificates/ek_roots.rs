//! The folder of certificates that endorse EKs.

use std::path::Path;
use std::sync::Arc;

use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;

use super::folder::{self, CertificateFolderError, Folder, FolderCertificate};

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
    let Folder { found, mut refused } = folder::read(folder)?;
    let (roots, problems) = sorted(found.iter().map(|found| found.certificate.clone()));
    refused.extend(problems.iter().map(|problem| {
        let file = folder::file_of(&found, &problem.sha256).unwrap_or(folder);
        format!("{}: {problem}", file.display())
    }));
    Ok(EkRootsFolder {
        roots: Arc::new(roots),
        certificates: found.into_iter().map(|FolderCertificate { certificate, .. }| certificate).collect(),
        refused,
    })
}

/// Roots and intermediates told apart; what cannot be used is left out and named.
pub fn sorted(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (EkRoots, Vec<EkRootsError>) {
    let (roots, intermediates) = certificates
        .into_iter()
        .partition(|certificate| EkRoots::is_self_issued(certificate));
    EkRoots::load(roots, intermediates)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::clock::Clock;
    use crate::pki::{self, Names};
    use crate::settings::Settings;

    #[test]
    fn a_certificate_that_cannot_be_used_is_named_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let tls = Settings::defaults(folder.path()).unwrap().tls;
        let names = Names {
            hosts: vec!["localhost".to_owned()],
            addresses: Vec::new(),
        };
        pki::create(&tls, &names, Clock::System.now()).unwrap();
        let roots = folder.path().join("ek-roots");
        fs::create_dir(&roots).unwrap();
        fs::copy(&tls.ca, roots.join("good.pem")).unwrap();
        // A server's certificate, which nobody signs EKs with; and two certificates in one file, the second of them bad.
        fs::copy(&tls.certificate, roots.join("no-ca.crt")).unwrap();
        let both = fs::read_to_string(&tls.ca).unwrap() + "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        fs::write(roots.join("two.pem"), both).unwrap();
        let read = load(&roots).unwrap();
        assert!(!read.roots.is_empty());
        let named = |file: &str| read.refused.iter().filter(|refused| refused.contains(file)).count();
        assert_eq!(
            (named("good.pem:"), named("no-ca.crt:"), named("two.pem:")),
            (0, 1, 1),
            "{:?}",
            read.refused
        );
    }
}
