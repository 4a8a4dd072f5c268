//! The trust anchors of recorded evidence, read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use attest::EkRoots;
use attest::aws::identity_document::RegionCertificates;
use attest::aws::nitro_tpm::NitroRoots;
use attest::endorsements::CloudEndorsements;
use attest::gcp::GoogleKeys;
use attest::tpm::vtpm::VtpmRoots;
use attest_certificates::Fingerprint;
use attest_certificates::cloud_roots::{azure_trust_of, azure_vtpm_roots_of, vtpm_roots_of};
use attest_certificates::ek_roots;
use attest_log::{Blobs, CloudBasis};
use rustls_pki_types::CertificateDer;

use super::ReplayError;

/// Returns the keys and certificates of the clouds as they were then.
pub(super) fn endorsements(basis: &CloudBasis, blobs: &Blobs) -> Result<CloudEndorsements, ReplayError> {
    let wrong = |what: &'static str| move |problem: String| ReplayError::Anchor { what, problem };
    let google_keys = match &basis.google_keys {
        Some(name) => {
            let keys = GoogleKeys::from_jwks(&blobs.get(name)?).map_err(|error| wrong("keys of Google")(error.to_string()))?;
            Some(Arc::new(keys))
        }
        None => None,
    };
    let mut regions = BTreeMap::new();
    for (region, names) in &basis.region_certificates {
        regions.insert(region.clone(), certificates(names, blobs)?);
    }
    let region_certificates = if regions.is_empty() {
        None
    } else {
        let regions = RegionCertificates::new(regions).map_err(|error| wrong("certificates of AWS's regions")(error.to_string()))?;
        Some(Arc::new(regions))
    };
    let nitro_roots = if basis.nitro_roots.is_empty() {
        None
    } else {
        let roots = NitroRoots::new(&certificates(&basis.nitro_roots, blobs)?);
        Some(Arc::new(roots.map_err(|error| wrong("roots of NitroTPM")(error.to_string()))?))
    };
    let azure = if basis.azure_certificates.is_empty() {
        None
    } else {
        let trust = azure_trust_of(&basis.azure_clouds, certificates(&basis.azure_certificates, blobs)?);
        Some(Arc::new(trust.map_err(|error| wrong("roots of Azure")(error.to_string()))?))
    };
    let azure_vtpm = if basis.azure_vtpm_roots.is_empty() {
        None
    } else {
        // What could not be used was left out then, too.
        let (roots, _) = azure_vtpm_roots_of(certificates(&basis.azure_vtpm_roots, blobs)?);
        Some(Arc::new(roots))
    };
    Ok(CloudEndorsements {
        google_keys,
        region_certificates,
        nitro_roots,
        azure,
        azure_vtpm,
    })
}

/// Returns the CAs of TPM manufacturers as they were then: those in the blob `name`. `named_roots` has the SHA-256 of those among them that
/// are roots without being self-issued.
pub(super) fn ek_roots(name: Option<&str>, named_roots: &[String], blobs: &Blobs) -> Result<EkRoots, ReplayError> {
    let wrong = |problem: String| ReplayError::Anchor {
        what: "file of CAs of TPM manufacturers",
        problem,
    };
    let certificates = match name {
        Some(name) => ek_roots::read_pem(&blobs.get(name)?).map_err(wrong)?,
        None => Vec::new(),
    };
    let by_digest: BTreeMap<String, &CertificateDer<'static>> = certificates
        .iter()
        .map(|certificate| (Fingerprint::of(certificate).to_string(), certificate))
        .collect();
    let named = named_roots.iter().map(|digest| {
        let found = by_digest.get(digest).map(|certificate| CertificateDer::clone(certificate));
        found.ok_or_else(|| wrong(format!("it lacks the recorded root {digest}")))
    });
    let named = named.collect::<Result<Vec<_>, _>>()?;
    let (roots, _) = ek_roots::sorted(certificates, &named);
    Ok(roots)
}

/// The roots of instances' vTPMs, as they were then.
pub(super) fn vtpm_roots(basis: &CloudBasis, blobs: &Blobs) -> Result<Option<Arc<VtpmRoots>>, ReplayError> {
    let Some(names) = &basis.vtpm_roots else { return Ok(None) };
    let (roots, _) = vtpm_roots_of(certificates(names, blobs)?);
    Ok(Some(Arc::new(roots)))
}

fn certificates(names: &[String], blobs: &Blobs) -> Result<Vec<CertificateDer<'static>>, ReplayError> {
    names.iter().map(|name| Ok(CertificateDer::from(blobs.get(name)?))).collect()
}
