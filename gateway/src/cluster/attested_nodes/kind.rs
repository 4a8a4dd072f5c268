//! The kind AttestedNode, as `gateway/dist/kubernetes/parts/attested-nodes/roles.yaml` defines it for the API.
//!
//! Its group ends in `internal`, which ICANN has reserved for private use (its Board, 29 July 2024), so that it cannot be registered.

pub(super) const GROUP: &str = "attest-gateway.internal";
pub const VERSION: &str = "v1alpha1";
pub(super) const KIND: &str = "AttestedNode";
pub(super) const PLURAL: &str = "attestednodes";

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::machine_status::columns::COLUMNS;
    use crate::machine_status::status::{CONDITIONS_LIMIT, MESSAGE_LIMIT_CHARACTERS, NODE_LABEL, POOL_LABEL};

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
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let columns: Vec<_> = columns.iter().filter(|column| column["name"] != "Age").collect();
        assert_eq!(columns.len(), COLUMNS.len());
        for (column, known) in columns.into_iter().zip(COLUMNS) {
            let path = format!(".status.{}", known.path);
            let is_wide = column["priority"] == 1;
            assert_eq!(
                (&column["name"], &column["jsonPath"], is_wide),
                (&known.name.into(), &path.into(), known.is_wide)
            );
        }
        for label in [NODE_LABEL, POOL_LABEL] {
            assert!(label.starts_with(&format!("{GROUP}/")));
        }
    }
}
