//! Trust anchors of clouds, from certificates of folders or of records.

use attest::azure::attested_document::{AzureCloud, AzureTrust, AzureTrustError};
use attest::azure::vtpm::AkRoots;
use attest::tpm::vtpm::VtpmRoots;
use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;

/// Returns Google's CAs from certificates, also those of records. Unusable certificates are left out and reported.
pub fn vtpm_roots_of(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (VtpmRoots, Vec<EkRootsError>) {
    sorted(certificates, VtpmRoots::load)
}

/// Returns Azure's CAs for the AKs of vTPMs; unusable certificates are left out and reported.
pub fn azure_vtpm_roots_of(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (AkRoots, Vec<EkRootsError>) {
    sorted(certificates, AkRoots::load)
}

/// Takes roots and intermediates; leaves out and names what cannot be used.
type Load<T> = fn(Vec<CertificateDer<'static>>, Vec<CertificateDer<'static>>) -> (T, Vec<EkRootsError>);

fn sorted<T>(certificates: impl IntoIterator<Item = CertificateDer<'static>>, load: Load<T>) -> (T, Vec<EkRootsError>) {
    let (roots, intermediates) = certificates
        .into_iter()
        .partition(|certificate| EkRoots::is_self_issued(certificate));
    load(roots, intermediates)
}

/// Returns Azure's trust from certificates, also those of records. A self-issued one is a root, the others are intermediate CAs.
///
/// # Errors
/// [`AzureTrustError`] for the first that cannot be used.
pub fn azure_trust_of(
    clouds: &[AzureCloud],
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<AzureTrust, AzureTrustError> {
    let (roots, intermediates): (Vec<_>, Vec<_>) = certificates
        .into_iter()
        .partition(|certificate| EkRoots::is_self_issued(certificate));
    AzureTrust::new(clouds.to_vec(), &roots, intermediates)
}
