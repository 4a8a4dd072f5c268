//! The folder of certificates that endorse EKs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::tpm::ek_certificate::EkRootProblem;
use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;

use super::folder::{self, CertificateFolder, CertificateFolderError};
use super::{Certificate, Fingerprint};

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
    /// The file of each of the certificates, in their order.
    files: Vec<PathBuf>,
    /// Fingerprints of those that are not usable.
    unusable: BTreeSet<String>,
}

/// Role of a CA among the EK roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EkCaRole {
    /// Trusted because it was configured.
    Root,
    /// Trusted through a root.
    Intermediate,
    /// Left out, because it cannot be used.
    Unusable,
}

impl EkCaRole {
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Intermediate => "intermediate",
            Self::Unusable => "unusable",
        }
    }

    /// Returns the role of a CA that is usable, by its certificate alone.
    #[must_use]
    pub fn by_issuer(certificate: &[u8]) -> Self {
        match EkRoots::is_self_issued(certificate) {
            true => Self::Root,
            false => Self::Intermediate,
        }
    }
}

/// A CA in the folder.
#[derive(Debug, Clone)]
pub struct EkCa<'a> {
    pub file: &'a Path,
    pub role: EkCaRole,
    /// Manufacturer that it names as its organisation, or its whole subject.
    pub maker: String,
    pub certificate: Certificate,
}

impl EkRootsFolder {
    /// Returns every certificate that can be parsed, with its file.
    pub fn authorities(&self) -> impl Iterator<Item = EkCa<'_>> {
        self.files.iter().zip(&self.certificates).filter_map(|(file, der)| {
            let certificate = Certificate::parse(der.clone()).ok()?;
            let role = if self.unusable.contains(&certificate.fingerprint.to_string()) {
                EkCaRole::Unusable
            } else if self.named_roots.contains(der) {
                EkCaRole::Root
            } else {
                EkCaRole::by_issuer(der)
            };
            Some(EkCa {
                file,
                role,
                maker: EkRoots::maker_of(der)?,
                certificate,
            })
        })
    }
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
    let mut files: BTreeMap<String, &Path> = BTreeMap::new();
    for found in &found {
        files.entry(Fingerprint::of(&found.certificate).to_string()).or_insert(&found.path);
    }
    let mut unusable = BTreeSet::new();
    for problem in &problems {
        let file = files.get(&problem.sha256).copied().unwrap_or(folder);
        let message = format!("{}: {problem}{}", file.display(), advice(&problem.problem));
        if !matches!(problem.problem, EkRootProblem::IssuerMissing { .. }) {
            broken.push(message.clone());
        }
        refused.push(message);
        unusable.insert(problem.sha256.clone());
    }
    let (files, certificates) = found.into_iter().map(|found| (found.path, found.certificate)).unzip();
    Ok(EkRootsFolder {
        roots: Arc::new(roots),
        certificates,
        named_roots,
        refused,
        broken,
        files,
        unusable,
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
pub(super) const fn advice(problem: &EkRootProblem) -> &'static str {
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
