//! The MachineConfig that puts the table on every control-plane host, also on those that come later.

use std::borrow::Cow;

use data_encoding::BASE64;

use super::{IngressRedirect, table};

const MACHINE_CONFIG: &str = include_str!("../../dist/kubernetes/door/machine-config.yaml");
/// The text before the table in that file. The table ends with the line.
const TABLE: &str = "            source: data:;base64,";

/// Returns the MachineConfig of role `master`, as YAML: `gateway/dist/kubernetes/door` with this table. It is in force before the host has a network.
#[must_use]
pub fn machine_config(door: &IngressRedirect) -> String {
    let table = BASE64.encode(table(door).as_bytes());
    MACHINE_CONFIG
        .split_inclusive('\n')
        .map(|line| match line.starts_with(TABLE) {
            true => Cow::Owned(format!("{TABLE}{table}\n")),
            false => Cow::Borrowed(line),
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::super::{ClusterPlatform, USER};
    use super::*;
    use attest_ignition::{Config, data_url};

    #[test]
    fn shipped_machine_config_has_the_default_nftables_table() {
        let door = IngressRedirect::new(ClusterPlatform::BareMetal, &[], USER).unwrap();
        assert_eq!(machine_config(&door), MACHINE_CONFIG, "put the table of the first into the file");
    }

    #[test]
    fn machine_config_installs_nftables_table_and_unit() {
        let door = IngressRedirect::new(
            ClusterPlatform::Gcp,
            &["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
            USER,
        )
        .unwrap();
        let object: serde_json::Value = serde_saphyr::from_str(&machine_config(&door)).unwrap();
        assert_eq!(object["metadata"]["labels"]["machineconfiguration.openshift.io/role"], "master");
        let config = Config::from_value(object["spec"]["config"].clone()).unwrap();
        let file = &config.list(["storage", "files"])[0];
        let written = data_url::decode(file["contents"]["source"].as_str().unwrap()).unwrap();
        assert_eq!(written, table(&door).into_bytes());
        let written = String::from_utf8(written).unwrap();
        for led in ["ip daddr { 192.0.2.5 } tcp", "ip6 daddr { 2001:db8::5 } tcp"] {
            assert!(written.contains(led), "{written}");
        }
        // Only the gateway's user gets past a network plugin.
        assert!(written.contains(&format!(" meta skuid {USER} notrack accept\n")), "{written}");
        let unit = config.list(["systemd", "units"])[0]["contents"].as_str().unwrap();
        assert!(unit.contains(&format!("nft -f {}", file["path"].as_str().unwrap())), "{unit}");
        let document = include_str!("../../../docs/how-to/install-openshift.md");
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(document.contains(&format!("kubectl delete machineconfig {name}\n")));
        let name = config.list(["systemd", "units"])[0]["name"].as_str().unwrap();
        assert!(document.contains(&format!("`{name}`")));
        // A restart must not open the door.
        assert!(!unit.contains("ExecStop"), "{unit}");
    }
}
