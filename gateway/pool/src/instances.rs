//! Identities of cloud instances, by a document and by their own TPM.

/// Prefixes of an instance's identity: by a document that names its account, and by its own TPM alone. A NitroTPM document names no
/// account, and a vTPM of Azure no subscription.
const BY_ITS_OWN_TPM: [(&str, &str); 2] = [("aws:", "aws-nitrotpm:"), ("azure:", "azure-vtpm:")];

/// Returns the identity that an instance has by its own TPM alone.
#[must_use]
pub fn by_its_own_tpm(identity: &str) -> Option<String> {
    BY_ITS_OWN_TPM.iter().find_map(|(cloud, own)| {
        let (_, instance) = identity.strip_prefix(cloud)?.split_once('/')?;
        Some(format!("{own}{instance}"))
    })
}

/// Returns whether this is an instance's identity by its own TPM alone.
#[must_use]
pub fn is_by_its_own_tpm(identity: &str) -> bool {
    BY_ITS_OWN_TPM.iter().any(|(_, own)| identity.starts_with(own))
}
