//! The kind AttestedNode, as `gateway/dist/kubernetes/parts/attested-nodes/roles.yaml` defines it for the API.
//!
//! Its group ends in `internal`, which ICANN has reserved for private use (its Board, 29 July 2024), so that it cannot be registered.

pub(super) const GROUP: &str = "attest-gateway.internal";
pub const VERSION: &str = "v1alpha1";
pub(super) const KIND: &str = "AttestedNode";
pub(super) const PLURAL: &str = "attestednodes";
/// The label with the node's name, by which its object is found.
pub(super) const NODE_LABEL: &str = "attest-gateway.internal/node";
/// The label with the pool of the machine's last attestation.
pub(super) const POOL_LABEL: &str = "attest-gateway.internal/pool";

/// Most conditions that an object has.
pub(super) const CONDITIONS_LIMIT: usize = 8;
/// Longest message of a condition, in characters.
pub(super) const MESSAGE_LIMIT_CHARACTERS: usize = 1024;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn crd_manifest_matches_the_codes_names_and_limits() {
        let text = include_str!("../../../dist/kubernetes/parts/attested-nodes/roles.yaml");
        let definition: Value = serde_saphyr::from_str(text.split("---\n").next().unwrap()).unwrap();
        assert_eq!(definition["kind"], "CustomResourceDefinition");
        assert_eq!(definition["metadata"]["name"], format!("{PLURAL}.{GROUP}"));
        let (spec, version) = (&definition["spec"], &definition["spec"]["versions"][0]);
        assert_eq!((&spec["group"], &version["name"]), (&GROUP.into(), &VERSION.into()));
        assert_eq!((&spec["names"]["kind"], &spec["names"]["plural"]), (&KIND.into(), &PLURAL.into()));
        let conditions = &version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"];
        assert_eq!(conditions["maxItems"], CONDITIONS_LIMIT);
        let message = &conditions["items"]["properties"]["message"];
        assert_eq!(message["maxLength"], MESSAGE_LIMIT_CHARACTERS);
        for label in [NODE_LABEL, POOL_LABEL] {
            assert!(label.starts_with(&format!("{GROUP}/")));
        }
    }
}
