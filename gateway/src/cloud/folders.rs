//! The folders of certificates that cloud evidence is verified against. What cannot be used is left out and named: that is always safe,
//! and one odd file must not keep a gateway from serving.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use attest::aws::identity_document::{CERTIFICATES_PER_REGION_LIMIT, REGIONS_LIMIT, RegionCertificates};
use attest::aws::nitro_tpm::NitroRoots;
use attest::azure::attested_document::{AzureTrust, INTERMEDIATES_LIMIT, ROOTS_LIMIT};
use attest::azure::vtpm::AkRoots;
use attest::pkcs7::SigningCertificate;
use attest::tpm::vtpm::VtpmRoots;
use attest::{EkRoots, EkRootsError};
use attest_certificates::cloud_roots::{azure_trust_of, azure_vtpm_roots_of, vtpm_roots_of};
use attest_certificates::folder::{self, CertificateFolder, CertificateFolderError, FolderCertificate};
use rustls_pki_types::CertificateDer;

use super::{AzureTrustInUse, CloudSettingsError};
use crate::settings::AzureSettings;

/// Most roots of NitroTPM documents that are accepted. AWS has one for each partition.
const NITRO_ROOTS_LIMIT: usize = 16;

/// Contents of a folder: the trust made of it, its certificates, and a reason for each one that was left out.
#[derive(Debug)]
pub(super) struct Loaded<T> {
    pub trust: T,
    pub certificates: Vec<CertificateDer<'static>>,
    pub refused: Vec<String>,
}

/// Loads Google's CAs for vTPMs; one that issued itself is a root.
pub(super) fn vtpm_roots(folder: &Path) -> Result<Loaded<Arc<VtpmRoots>>, CloudSettingsError> {
    cas_of_tpms(folder, vtpm_roots_of)
}

/// Loads Azure's CAs for the AKs of vTPMs; one that issued itself is a root.
pub(super) fn azure_vtpm_roots(folder: &Path) -> Result<Loaded<Arc<AkRoots>>, CloudSettingsError> {
    cas_of_tpms(folder, azure_vtpm_roots_of)
}

/// Function that makes trust of CAs, and returns an error for each CA that cannot be used.
type LoadAnchors<T> = fn(Vec<CertificateDer<'static>>) -> (T, Vec<EkRootsError>);

fn cas_of_tpms<T>(folder: &Path, load: LoadAnchors<T>) -> Result<Loaded<Arc<T>>, CloudSettingsError> {
    let CertificateFolder { found, mut refused } = folder::read(folder)?;
    let (trust, problems) = load(found.iter().map(|found| found.certificate.clone()).collect());
    refused.extend(problems.iter().map(|problem| {
        let file = folder::file_of(&found, &problem.sha256).unwrap_or(folder);
        format!("{}: {problem}", file.display())
    }));
    let certificates = found.into_iter().map(|found| found.certificate).collect();
    Ok(Loaded {
        trust: Arc::new(trust),
        certificates,
        refused,
    })
}

/// The certificates of AWS's regions, and which region each is for.
pub(super) struct Regions {
    pub trust: Arc<RegionCertificates>,
    pub certificates: Vec<(String, CertificateDer<'static>)>,
    pub refused: Vec<String>,
}

/// Loads the certificates of AWS's regions: `<region>.pem` (or another ending of certificates) and `<region>/` with such files, or both.
pub(super) fn region_certificates(folder: &Path) -> Result<Regions, CloudSettingsError> {
    let mut regions: BTreeMap<String, Vec<CertificateDer<'static>>> = BTreeMap::new();
    let mut refused = Vec::new();
    for path in folder::entries(folder)? {
        let mut read = CertificateFolder::default();
        let name = if path.is_dir() {
            read = folder::read(&path)?;
            path.file_name()
        } else if folder::is_certificate_file(&path) {
            read.add(path.clone())?;
            path.file_stem()
        } else {
            continue;
        };
        refused.append(&mut read.refused);
        let name = name.and_then(|name| name.to_str()).unwrap_or_default();
        let certificates = regions.entry(name.to_owned()).or_default();
        for FolderCertificate { path, certificate } in read.found {
            match region_problem(name, &certificate) {
                None if certificates.contains(&certificate) => {}
                None if certificates.len() < CERTIFICATES_PER_REGION_LIMIT => certificates.push(certificate),
                None => refused.push(format!(
                    "{}: ignored, because a region may have at most {CERTIFICATES_PER_REGION_LIMIT} certificates",
                    path.display()
                )),
                Some(problem) => refused.push(format!("{}: {problem}", path.display())),
            }
        }
    }
    regions.retain(|_, certificates| !certificates.is_empty());
    if let Some(first) = regions.keys().nth(REGIONS_LIMIT).cloned() {
        let beyond: Vec<String> = regions.split_off(&first).into_keys().collect();
        let beyond = beyond.join(", ");
        refused.push(format!(
            "{}: at most {REGIONS_LIMIT} regions are read; ignored: {beyond}",
            folder.display()
        ));
    }
    let certificates = regions
        .iter()
        .flat_map(|(region, certificates)| certificates.iter().map(|certificate| (region.clone(), certificate.clone())))
        .collect();
    Ok(Regions {
        trust: Arc::new(RegionCertificates::new(regions)?),
        certificates,
        refused,
    })
}

/// Returns the reason for which a certificate cannot be used for a region.
fn region_problem(region: &str, certificate: &CertificateDer<'static>) -> Option<String> {
    if let Err(problem) = SigningCertificate::parse(certificate) {
        return Some(format!(
            "{problem}; take the certificate that AWS publishes under RSA-2048 for this region"
        ));
    }
    let alone = BTreeMap::from([(region.to_owned(), vec![certificate.clone()])]);
    RegionCertificates::new(alone).err().map(|error| error.to_string())
}

/// Loads the roots of NitroTPM documents.
pub(super) fn nitro_roots(folder: &Path) -> Result<Loaded<Arc<NitroRoots>>, CloudSettingsError> {
    let CertificateFolder { found, mut refused } = folder::read(folder)?;
    let certificates = usable(found, NITRO_ROOTS_LIMIT, &mut refused, |certificate| {
        NitroRoots::new(std::slice::from_ref(certificate))
            .err()
            .map(|error| error.to_string())
    });
    Ok(Loaded {
        trust: Arc::new(NitroRoots::new(&certificates)?),
        certificates,
        refused,
    })
}

/// Azure's roots, and the CAs in between.
pub(super) struct Azure {
    pub in_use: AzureTrustInUse,
    pub roots: Vec<CertificateDer<'static>>,
    pub intermediates: Vec<CertificateDer<'static>>,
    pub refused: Vec<String>,
}

/// Loads Azure's roots and intermediate CAs. The roots must have issued themselves, and the others must not. So records can tell them
/// apart, and a file in the wrong folder adds no trust.
pub(super) fn azure_trust(settings: &AzureSettings) -> Result<Azure, CloudSettingsError> {
    let mut refused = Vec::new();
    let mut read = |folder: &Path, limit: usize, root: bool| {
        let CertificateFolder { found, refused: odd } = folder::read(folder)?;
        refused.extend(odd);
        Ok::<_, CertificateFolderError>(usable(found, limit, &mut refused, |certificate| azure_problem(certificate, root)))
    };
    let roots = read(&settings.roots, ROOTS_LIMIT, true)?;
    let intermediates = read(&settings.intermediates, INTERMEDIATES_LIMIT, false)?;
    let trust = Arc::new(azure_trust_of(&settings.clouds, roots.iter().chain(&intermediates).cloned())?);
    let certificates = roots.iter().chain(&intermediates).cloned().collect();
    Ok(Azure {
        in_use: AzureTrustInUse { trust, certificates },
        roots,
        intermediates,
        refused,
    })
}

/// Returns the reason for which a certificate cannot be a root of Azure's, or an intermediate CA.
fn azure_problem(certificate: &CertificateDer<'static>, root: bool) -> Option<String> {
    match (root, EkRoots::is_self_issued(certificate)) {
        (true, false) => {
            return Some(
                "the certificate is not self-issued, so it is not a root: move it to the folder of azure.intermediates".to_owned(),
            );
        }
        (false, true) => {
            return Some(
                "the certificate is self-issued, so it is a root: if you trust it, move it to the folder of azure.roots".to_owned(),
            );
        }
        _ => {}
    }
    let trust = if root {
        AzureTrust::new(Vec::new(), std::slice::from_ref(certificate), Vec::new())
    } else {
        AzureTrust::new(Vec::new(), &[], vec![certificate.clone()])
    };
    trust.err().map(|error| error.to_string())
}

/// Returns the certificates without a problem; the others are added to `refused`.
fn usable(
    found: Vec<FolderCertificate>,
    limit: usize,
    refused: &mut Vec<String>,
    problem: impl Fn(&CertificateDer<'static>) -> Option<String>,
) -> Vec<CertificateDer<'static>> {
    let mut usable = Vec::new();
    for FolderCertificate { path, certificate } in found {
        match problem(&certificate) {
            None if usable.contains(&certificate) => {}
            None if usable.len() < limit => usable.push(certificate),
            None => refused.push(format!(
                "{}: ignored, because at most {limit} certificates are read",
                path.display()
            )),
            Some(problem) => refused.push(format!("{}: {problem}", path.display())),
        }
    }
    usable
}
