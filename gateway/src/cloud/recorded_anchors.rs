//! The configured certificates of clouds, kept for the attestation log.

use attest_log::{BlobError, Blobs, CloudBasis};

use super::{Clouds, Role};

/// Keeps every configured certificate as a blob, and returns their names, which records refer to.
///
/// # Errors
/// [`BlobError`].
pub fn keep_certificates(clouds: &Clouds, blobs: &Blobs) -> Result<CloudBasis, BlobError> {
    let mut basis = CloudBasis {
        vtpm_roots: Some(Vec::new()),
        azure_clouds: clouds.azure_trust().trust.clouds().to_vec(),
        ..CloudBasis::default()
    };
    for (role, certificate) in clouds.record_certificates() {
        let name = Blobs::name(certificate);
        blobs.put(&name, certificate)?;
        match role {
            Role::GcpVtpmRoot => basis.vtpm_roots.get_or_insert_default().push(name),
            Role::AwsRegion(region) => basis.region_certificates.entry(region.clone()).or_default().push(name),
            Role::AwsNitroRoot => basis.nitro_roots.push(name),
            Role::AzureRoot | Role::AzureIntermediate => basis.azure_certificates.push(name),
            Role::AzureVtpmRoot => basis.azure_vtpm_roots.push(name),
        }
    }
    Ok(basis)
}
