//! Trust anchors and own keys of a gateway, each as a digest or as a public key.

use attest_log::Blobs;
use serde_json::{Value, json};

use super::{Things, sha256};
use crate::api::{EkRootsInUse, Gateway};
use crate::cloud::Role;

const ANCHOR: &str = "anchor";
const KEY: &str = "key";

/// Name of a thing: its kind and id.
type Name = (String, String);

/// Returns the name of the key that signs the log's checkpoints.
pub(super) fn log_key() -> Name {
    (KEY.to_owned(), "log.key".to_owned())
}

fn digest(sha256: &str) -> Value {
    json!({ "sha256": sha256 })
}

/// Returns the CAs of TPM manufacturers: they are read again when they change.
pub(super) fn ek_roots(in_use: &EkRootsInUse) -> Things {
    let roots = in_use.certificates().iter().map(|sha256| anchor("ek_roots", sha256));
    // A file that gets the name of a root makes a change of trust, though the certificate stays.
    let named = in_use.named_roots().iter().map(|sha256| anchor("ek_roots named root", sha256));
    roots.chain(named).collect()
}

fn anchor(role: &str, sha256: &str) -> (Name, Value) {
    ((ANCHOR.to_owned(), format!("{role} {sha256}")), digest(sha256))
}

/// Returns the anchors and keys that are read only at the start.
pub(super) fn startup_items(gateway: &Gateway) -> Things {
    let clouds = gateway.endorsers.clouds().record_certificates().iter();
    let clouds = clouds.map(|(role, certificate)| anchor(&setting(role), &Blobs::name(certificate)));
    let mut things: Things = clouds.collect();
    things.insert(log_key(), json!({ "public": gateway.journal.key().to_string() }));
    things
}

/// Returns Google's keys, if they come from a file: it is read again when it changes.
pub(super) fn google_keys(gateway: &Gateway) -> Option<(Name, Value)> {
    let keys = gateway.endorsers.clouds().google_keys_of_file()?;
    Some(((ANCHOR.to_owned(), "gcp.jwks".to_owned()), digest(&sha256(&keys.jwks))))
}

/// Returns the name of the setting that a certificate is configured with.
fn setting(role: &Role) -> String {
    match role {
        Role::GcpVtpmRoot => "gcp.vtpm_roots".to_owned(),
        Role::AwsRegion(region) => format!("aws.region_certificates {region}"),
        Role::AwsNitroRoot => "aws.nitro_roots".to_owned(),
        Role::AzureRoot => "azure.roots".to_owned(),
        Role::AzureIntermediate => "azure.intermediates".to_owned(),
        Role::AzureVtpmRoot => "azure.vtpm_roots".to_owned(),
    }
}
