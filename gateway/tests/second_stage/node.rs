//! Model of a node: the files that Ignition writes from its config, and the changes by its daemons.

use std::collections::BTreeMap;
use std::io::Read;

use attest_ignition::data_url;
use flate2::read::GzDecoder;
use serde_json::Value;

pub const ANNOTATIONS: &str = "/etc/machine-config-daemon/node-annotations.json";
pub const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
pub const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
/// Folder of the systemd units.
const UNITS: &str = "/etc/systemd/system";
/// Mode that Ignition and the daemon give a file without one.
const MODE: u32 = 0o644;

/// File on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub mode: u32,
    pub contents: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
pub struct Node {
    pub disk: BTreeMap<String, File>,
    /// Annotations of the Node object, once the kubelet has made one.
    pub annotations: BTreeMap<String, String>,
    /// Booted image; empty for a node that was never pivoted.
    pub image: String,
    pub kernel_arguments: Vec<String>,
    pub fips: bool,
    pub boots: usize,
}

impl Node {
    /// Returns a node after Ignition has written this config.
    pub fn ignited(config: &Value) -> Self {
        let mut node = Self {
            boots: 1,
            ..Self::default()
        };
        node.write(config);
        // RHCOS has it on before Ignition writes anything, by the encapsulated MachineConfig of the config that was fetched.
        node.fips = node
            .json(ENCAPSULATED)
            .is_some_and(|machine_config| machine_config["spec"]["fips"] == true);
        node
    }

    /// Writes files, units and drop-ins of a config, like Ignition and the daemon.
    pub fn write(&mut self, config: &Value) {
        for (path, file) in files(config) {
            self.disk.insert(path, file);
        }
    }

    pub fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_slice(&self.disk.get(path)?.contents).ok()
    }

    pub fn annotation(&self, name: &str) -> &str {
        let name = format!("machineconfiguration.openshift.io/{name}");
        self.annotations.get(&name).map_or("", String::as_str)
    }

    pub fn annotate(&mut self, name: &str, value: &str) {
        let name = format!("machineconfiguration.openshift.io/{name}");
        self.annotations.insert(name, value.to_owned());
    }
}

/// Returns the files that a config creates on the disk.
pub fn files(config: &Value) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    for file in list(config, "/storage/files") {
        assert!(list(file, "/append").is_empty(), "appending is not modelled: {file}");
        let mode = file["mode"].as_u64().map_or(MODE, |mode| u32::try_from(mode).unwrap());
        let contents = contents(&file["contents"]);
        files.insert(file["path"].as_str().unwrap().to_owned(), File { mode, contents });
    }
    for unit in list(config, "/systemd/units") {
        let name = unit["name"].as_str().unwrap();
        let mut add = |path: String, text: &Value| {
            let contents = text.as_str().unwrap_or_default().as_bytes().to_vec();
            if !contents.is_empty() {
                files.insert(path, File { mode: MODE, contents });
            }
        };
        add(format!("{UNITS}/{name}"), &unit["contents"]);
        for dropin in list(unit, "/dropins") {
            add(
                format!("{UNITS}/{name}.d/{}", dropin["name"].as_str().unwrap()),
                &dropin["contents"],
            );
        }
    }
    files
}

fn contents(contents: &Value) -> Vec<u8> {
    let bytes = contents["source"]
        .as_str()
        .map_or_else(Vec::new, |source| data_url::decode(source).unwrap());
    if contents["compression"] != "gzip" {
        return bytes;
    }
    let mut plain = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    plain
}

pub fn list<'v>(value: &'v Value, place: &str) -> &'v [Value] {
    value.pointer(place).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
