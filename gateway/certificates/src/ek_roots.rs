//! The folder of certificates that endorse EKs.

use std::path::Path;
use std::sync::Arc;

use attest::tpm::ek_certificate::EkRootProblem;
use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;

use super::folder::{self, CertificateFolder, CertificateFolderError, FolderCertificate};

/// Contents of the folder.
#[derive(Debug, Clone)]
pub struct EkRootsFolder {
    /// The usable certificates, as trust anchors.
    pub roots: Arc<EkRoots>,
    /// Every certificate that was read, usable or not, for auditors.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Certificates that are roots by the names of their files; a self-issued one is a root in any case.
    pub named_roots: Vec<CertificateDer<'static>>,
    /// Files and certificates that were left out, with reasons. Leaving out is safe, and one bad certificate must not stop a gateway.
    pub refused: Vec<String>,
    /// Those of them that are broken themselves: an intermediate without its issuer is not.
    pub broken: Vec<String>,
}

/// The folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EkRootsFolderError(#[from] CertificateFolderError);

/// Reads every `*.pem`, `*.crt`, `*.cer` and `*.der` of a folder. A self-issued certificate is a root, and so is one in a file named
/// `*.root.pem` ([`folder::is_named_root`]). A missing folder counts as empty: then only the allowlist endorses.
///
/// # Errors
/// [`EkRootsFolderError`].
pub fn load(folder: &Path) -> Result<EkRootsFolder, EkRootsFolderError> {
    let CertificateFolder {
        found,
        refused: unreadable,
    } = folder::read(folder)?;
    let (mut refused, mut broken) = (unreadable.clone(), unreadable);
    let named = found.iter().filter(|found| folder::is_named_root(&found.path));
    let named = named.map(|found| found.certificate.clone());
    let named_roots: Vec<_> = named.filter(|certificate| !EkRoots::is_self_issued(certificate)).collect();
    let (roots, problems) = sorted(found.iter().map(|found| found.certificate.clone()), &named_roots);
    for problem in &problems {
        let file = folder::file_of(&found, &problem.sha256).unwrap_or(folder);
        let message = format!("{}: {problem}{}", file.display(), advice(&problem.problem));
        if !matches!(problem.problem, EkRootProblem::IssuerMissing { .. }) {
            broken.push(message.clone());
        }
        refused.push(message);
    }
    Ok(EkRootsFolder {
        roots: Arc::new(roots),
        certificates: found.into_iter().map(|FolderCertificate { certificate, .. }| certificate).collect(),
        named_roots,
        refused,
        broken,
    })
}

/// Separates roots from intermediates. Unusable certificates are left out and reported.
pub fn sorted(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
    named_roots: &[CertificateDer<'static>],
) -> (EkRoots, Vec<EkRootsError>) {
    let (roots, intermediates) = certificates
        .into_iter()
        .partition(|certificate| named_roots.contains(certificate) || EkRoots::is_self_issued(certificate));
    EkRoots::load(roots, intermediates)
}

/// Returns the advice for the administrator about a CA that is not usable.
const fn advice(problem: &EkRootProblem) -> &'static str {
    match problem {
        EkRootProblem::IssuerMissing { .. } => {
            "; add that issuer's certificate to the folder, or, to trust this one as a root, put it into a file named *.root.pem"
        }
        _ => "",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::fs;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

    use super::*;

    /// AMD Pluton's published top CA has an issuer whose certificate is not published.
    #[test]
    fn root_suffix_admits_a_ca_not_self_issued() {
        let folder = tempfile::tempdir().unwrap();
        let (top, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let ca = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params
        };
        let certificate = ca("Published").signed_by(&key, &Issuer::from_params(&ca("Hidden"), &top)).unwrap();
        let load = || load(folder.path()).unwrap();
        fs::write(folder.path().join("published.der"), certificate.der()).unwrap();
        let read = load();
        assert!(read.roots.is_empty() && read.named_roots.is_empty());
        assert_eq!(read.refused.len(), 1, "{:?}", read.refused);
        let refused = &read.refused[0];
        for part in ["published.der: ", "CN=Hidden\" is not configured", "*.root.pem"] {
            assert!(refused.contains(part), "{refused}");
        }
        fs::rename(folder.path().join("published.der"), folder.path().join("published.root.der")).unwrap();
        let read = load();
        assert!(!read.roots.is_empty() && read.refused.is_empty(), "{:?}", read.refused);
        assert_eq!(read.named_roots, [certificate.der().clone()]);
        // Without the word of the administrator a record of it would come to another result.
        assert!(sorted(read.certificates.clone(), &[]).0.is_empty());
        assert!(!sorted(read.certificates, &read.named_roots).0.is_empty());
        // The name makes no root of what is no CA.
        let leaf = CertificateParams::default().signed_by(&top, &Issuer::from_params(&ca("Published"), &key));
        fs::write(folder.path().join("leaf.root.der"), leaf.unwrap().der()).unwrap();
        let read = load();
        assert!(
            read.refused.len() == 1 && read.refused[0].contains("leaf.root.der"),
            "{:?}",
            read.refused
        );
    }

    #[test]
    fn error_names_the_file_of_an_unusable_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, "MCS CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca = params.self_signed(&key).unwrap();
        let server = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let server = server
            .signed_by(&KeyPair::generate().unwrap(), &Issuer::from_params(&params, &key))
            .unwrap();
        let roots = folder.path().join("ek-roots");
        fs::create_dir(&roots).unwrap();
        fs::write(roots.join("good.pem"), ca.pem()).unwrap();
        // A server's certificate, which nobody signs EKs with; and two certificates in one file, the second of them bad.
        fs::write(roots.join("no-ca.crt"), server.pem()).unwrap();
        let both = ca.pem() + "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
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
