//! Names of the cluster's objects for machines.

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

/// Prefix of a TPM's identity, and of its object's name.
const TPM: (&str, &str) = ("tpm:", "tpm-");
/// Digits of a digest.
const DIGEST_DIGITS: usize = 64;
/// Prefixes of other identities, and of their objects' names before a hyphen.
const CLOUDS: [&str; 5] = ["gcp", "aws", "aws-nitrotpm", "azure", "azure-vtpm"];
/// Longest identity that has an object: the schema's.
const IDENTITY_LIMIT_BYTES: usize = 320;

/// Returns the name of a machine's object. It is derived from the identity, so that no machine has another's: a TPM's digest, or the
/// SHA-256 of a cloud instance's identity. `None` if the text is not a machine's identity.
#[must_use]
pub fn object_name(identity: &str) -> Option<String> {
    let is_digest = |text: &str| text.len() == DIGEST_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if let Some(ek) = identity.strip_prefix(TPM.0) {
        return is_digest(ek).then(|| format!("{}{ek}", TPM.1));
    }
    let (cloud, rest) = identity.split_once(':')?;
    let is_one = CLOUDS.contains(&cloud) && !rest.is_empty() && identity.len() <= IDENTITY_LIMIT_BYTES;
    is_one.then(|| format!("{cloud}-{}", HEXLOWER.encode(digest(&SHA256, identity.as_bytes()).as_ref())))
}

/// Returns the identity of the TPM whose object has this name, whether there is such a machine or not.
#[must_use]
pub fn identity_of_tpm(name: &str) -> Option<String> {
    let identity = format!("{}{}", TPM.0, name.strip_prefix(TPM.1)?);
    (object_name(&identity).as_deref() == Some(name)).then_some(identity)
}
