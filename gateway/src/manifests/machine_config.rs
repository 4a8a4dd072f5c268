//! The MachineConfig that puts the table on every control-plane host, also on those that come later.

use data_encoding::BASE64;

use super::door::TABLE;
use super::{Door, table};

/// Where the table lies on the host.
const FILE: &str = "/etc/attest-gateway/door.nft";

/// For role `master`, as YAML. It is in force before the host has a network.
#[must_use]
pub fn machine_config(door: &Door) -> String {
    let table = BASE64.encode(table(door).as_bytes());
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-master-{TABLE}
  labels:
    machineconfiguration.openshift.io/role: master
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
        - path: {FILE}
          mode: 420
          overwrite: true
          contents:
            source: data:;base64,{table}
    systemd:
      units:
        - name: {TABLE}-door.service
          enabled: true
          contents: |
            [Unit]
            Description=Lead strangers to the attestation gateway, not to the Machine Config Server
            DefaultDependencies=no
            Wants=network-pre.target
            After=local-fs.target
            Before=network-pre.target shutdown.target
            Conflicts=shutdown.target
            [Service]
            Type=oneshot
            RemainAfterExit=yes
            ExecStart=/usr/sbin/nft -f {FILE}
            ExecReload=/usr/sbin/nft -f {FILE}
            [Install]
            WantedBy=sysinit.target
"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::super::{Platform, USER};
    use super::*;
    use crate::ignition::{Config, data_url};

    #[test]
    fn a_node_gets_the_table_and_the_unit_that_loads_it() {
        let door = Door::new(Platform::Gcp, &["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()], USER).unwrap();
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
        let document = include_str!("../../../docs/control-plane-hosts.md");
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(document.contains(&format!("oc delete machineconfig {name}`")));
        let name = config.list(["systemd", "units"])[0]["name"].as_str().unwrap();
        assert!(document.contains(&format!("`{name}`")));
        // A restart must not open the door.
        assert!(!unit.contains("ExecStop"), "{unit}");
    }
}
