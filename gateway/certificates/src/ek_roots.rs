//! The folder of certificates that endorse EKs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest::tpm::ek_certificate::EkRootProblem;
use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::certificate::pem;
use super::folder::{self, CertificateFolder, CertificateFolderError};
use super::{Certificate, Fingerprint};

/// Maximum length of [`EkRootsFolder::pem`] in bytes. A bundle of the maximum size ([`super::ek_bundle`]) fits.
pub const PEM_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Contents of the folder.
#[derive(Debug, Clone)]
pub struct EkRootsFolder {
    /// The usable certificates, as trust anchors.
    pub roots: Arc<EkRoots>,
    /// Every certificate that was read, usable or not.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Usable certificates that are roots by the names of their files; a self-issued one is a root in any case.
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
    /// Returns the usable certificates as PEM, one after the other, for auditors: [`read_pem`] and [`sorted`] make the same trust anchors of
    /// them.
    #[must_use]
    pub fn pem(&self) -> String {
        pem_of_usable(&self.certificates, |sha256| self.unusable.contains(sha256))
    }

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
pub enum EkRootsFolderError {
    #[error(transparent)]
    Folder(#[from] CertificateFolderError),
    #[error("{}: {error}", .folder.display())]
    TooLarge { folder: PathBuf, error: EkRootsTooLarge },
}

/// The usable CAs are longer than a record of an attestation can name.
#[derive(Debug, thiserror::Error)]
#[error(
    "the usable CAs of TPM manufacturers have {bytes} bytes as PEM, and the limit is {PEM_LIMIT_BYTES}: keep only those of manufacturers whose TPMs you have"
)]
pub struct EkRootsTooLarge {
    bytes: usize,
}

impl EkRootsTooLarge {
    /// Compares the length of [`EkRootsFolder::pem`] with [`PEM_LIMIT_BYTES`].
    ///
    /// # Errors
    /// [`EkRootsTooLarge`].
    pub(super) const fn check(bytes: usize) -> Result<(), Self> {
        match bytes > PEM_LIMIT_BYTES {
            true => Err(Self { bytes }),
            false => Ok(()),
        }
    }
}

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
    let mut named_roots: Vec<_> = named.filter(|certificate| !EkRoots::is_self_issued(certificate)).collect();
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
    named_roots.retain(|root| !unusable.contains(&Fingerprint::of(root).to_string()));
    let (files, certificates) = found.into_iter().map(|found| (found.path, found.certificate)).unzip();
    let read = EkRootsFolder {
        roots: Arc::new(roots),
        certificates,
        named_roots,
        refused,
        broken,
        files,
        unusable,
    };
    match EkRootsTooLarge::check(read.pem().len()) {
        Ok(()) => Ok(read),
        Err(error) => Err(EkRootsFolderError::TooLarge {
            folder: folder.to_owned(),
            error,
        }),
    }
}

/// Returns the certificates as PEM, without those whose SHA-256 is that of an unusable one.
pub(super) fn pem_of_usable<'c>(
    certificates: impl IntoIterator<Item = &'c CertificateDer<'static>>,
    is_unusable: impl Fn(&str) -> bool,
) -> String {
    let usable = certificates
        .into_iter()
        .filter(|certificate| !is_unusable(&Fingerprint::of(certificate).to_string()));
    usable.map(|certificate| pem(certificate)).collect()
}

/// Reads [`EkRootsFolder::pem`], and accepts no other form of it.
///
/// # Errors
/// The problem, as text.
pub fn read_pem(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_slice_iter(text).map(|found| found.map(CertificateDer::into_owned));
    let certificates: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    match pem_of_usable(&certificates, |_| false).as_bytes() == text {
        true => Ok(certificates),
        false => Err("it holds other text than certificates in PEM".to_owned()),
    }
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
    fn reads_the_usable_certificates_back_from_their_pem() {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let ca = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let root = ca("Root").self_signed(&key).unwrap();
        let issued = |name: &str, by: &str| ca(name).signed_by(&key, &Issuer::from_params(&ca(by), &key)).unwrap();
        for (file, content) in [
            ("a.der", issued("Intermediate", "Root").der().as_ref()),
            ("b.der", root.der().as_ref()),
            ("c.root.der", issued("Published", "Hidden").der().as_ref()),
            ("orphan.der", issued("Orphan", "Missing").der().as_ref()),
            ("garbage.root.der", b"no certificate"),
            ("cut.der", &root.der()[..100]),
        ] {
            fs::write(folder.path().join(file), content).unwrap();
        }
        let read = load(folder.path()).unwrap();
        assert_eq!((read.certificates.len(), read.refused.len(), read.named_roots.len()), (6, 3, 1));
        let pem = read.pem();
        let back = read_pem(pem.as_bytes()).unwrap();
        assert_eq!(
            back,
            [&read.certificates[0], &read.certificates[1], &read.certificates[2]].map(Clone::clone)
        );
        let (roots, problems) = sorted(back, &read.named_roots);
        assert_eq!((roots.makers(), problems.len()), (read.roots.makers(), 0));
        assert_eq!(read_pem(b"").unwrap(), []);
        let key = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
        for altered in [
            &pem[..pem.len() - 1],
            &pem[1..],
            &format!("{pem}\n"),
            &format!("x\n{pem}"),
            &format!("{pem}{key}"),
            &pem.replace('\n', "\r\n"),
            &pem.replacen('\n', "\n\n", 1),
            "x",
        ] {
            assert!(read_pem(altered.as_bytes()).is_err(), "{altered}");
        }
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
