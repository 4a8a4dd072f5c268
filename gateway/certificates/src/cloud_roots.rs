//! Trust anchors of clouds, of certificates that were read: those of folders, and those of records.

use attest::azure::attested_document::{AzureCloud, AzureTrust, AzureTrustError};
use attest::azure::vtpm::AkRoots;
use attest::tpm::vtpm::VtpmRoots;
use attest::{EkRoots, EkRootsError};
use rustls_pki_types::CertificateDer;

/// Google's CAs of certificates: for records, too. What cannot be used is left out and named.
pub fn vtpm_roots_of(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> (VtpmRoots, Vec<EkRootsError>) {
    sorted(certificates, VtpmRoots::load)
}

/// Azure's CAs for the AKs of vTPMs, likewise.
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

/// Azure's trust of certificates, for records, too: one that issued itself is a root, the others are CAs in between.
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
