//! What a Machine Config Server adds to a rendered config: files that tell the node's daemons about the config itself.

use serde_json::{Value, json};

use super::ControllerConfig;
use super::render::Rendered;
use crate::ignition::{Config, Inexpressible, SpecVersion, data_url};

/// The kubelet's bootstrap credential.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
/// The whole MachineConfig, to look at.
pub const CONTENT: &str = "/etc/mcs-machine-config-content.json";
/// The MachineConfig without its Ignition config: what the first boot applies besides.
pub const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
/// Which config the node has.
pub const NODE_ANNOTATIONS: &str = "/etc/machine-config-daemon/node-annotations.json";
const KUBELET_CA: &str = "/etc/kubernetes/kubelet-ca.crt";
const CLOUD_CA: &str = "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem";
/// Mode of the files that are added.
const MODE: u32 = 0o644;
/// The newest spec version that the operator reads.
const OPERATOR_NEWEST: SpecVersion = SpecVersion::V3_5;
/// Ignition knows kernel arguments since this version.
const KERNEL_ARGUMENTS_SINCE: SpecVersion = SpecVersion::V3_3;

/// Files that repeat what else is in the config.
pub const REPEATING: [&str; 2] = [CONTENT, ENCAPSULATED];

/// What there is to add.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// The MachineConfig that the config is from.
    pub machine_config: Rendered,
    /// The cluster's CAs.
    pub controller: ControllerConfig,
    /// The kubelet's bootstrap kubeconfig.
    pub kubeconfig: Option<Kubeconfig>,
    /// Whether to say that the node has this config. Not for a pre-approved one: the node is not done with it.
    pub annotations: bool,
}

/// The kubelet's bootstrap kubeconfig: a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Kubeconfig(pub Vec<u8>);

impl std::fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kubeconfig(…)")
    }
}

impl Appended {
    /// The config with everything added, for a node that asks for this spec version.
    ///
    /// # Errors
    /// [`Inexpressible`]: kernel arguments that should not exist, before spec 3.3.
    pub fn append(&self, mut config: Config, version: SpecVersion) -> Result<Config, Inexpressible> {
        let mut machine_config = self.machine_config.clone();
        if version < KERNEL_ARGUMENTS_SINCE {
            // Older Ignition does not know them; machine-config-daemon does, by the encapsulated MachineConfig.
            machine_config
                .spec
                .kernel_arguments
                .extend(move_kernel_arguments(&mut config, version)?);
        }
        if let Some(bundle) = &self.controller.kubelet_ca {
            replace_or_add(&mut config, KUBELET_CA, bundle);
        }
        if let Some(bundle) = &self.controller.cloud_ca {
            replace_or_add(&mut config, CLOUD_CA, bundle);
        }
        if self.annotations {
            let name = &machine_config.name;
            let annotations = json!({
                "machineconfiguration.openshift.io/currentConfig": name,
                "machineconfiguration.openshift.io/desiredConfig": name,
                "machineconfiguration.openshift.io/firstPivotConfig": name,
                "machineconfiguration.openshift.io/state": "Done",
            });
            add(&mut config, NODE_ANNOTATIONS, annotations.to_string().as_bytes());
        }
        if let Some(Kubeconfig(kubeconfig)) = &self.kubeconfig {
            add(&mut config, KUBECONFIG, kubeconfig);
        }
        let content = machine_config.object(content(&machine_config));
        add(&mut config, CONTENT, format!("{content:#}").as_bytes());
        let encapsulated = machine_config.object(json!({"ignition": {"version": version}}));
        add(&mut config, ENCAPSULATED, encapsulated.to_string().as_bytes());
        Ok(config)
    }
}

/// The Ignition config in a version that the operator reads, if that can say it.
fn content(machine_config: &Rendered) -> Value {
    let config = machine_config.config();
    let bytes = config.express(OPERATOR_NEWEST).or_else(|_| config.express(SpecVersion::NEWEST));
    bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Takes the config's kernel arguments, for the MachineConfig.
fn move_kernel_arguments(config: &mut Config, version: SpecVersion) -> Result<Vec<String>, Inexpressible> {
    if !config.list(["kernelArguments", "shouldNotExist"]).is_empty() {
        return Err(Inexpressible {
            version,
            place: "kernelArguments.shouldNotExist".to_owned(),
            problem: "it is known since 3.3.0, and a MachineConfig has no place for it".to_owned(),
        });
    }
    let wanted = config.list(["kernelArguments", "shouldExist"]);
    let moved = wanted.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    config.take("kernelArguments");
    Ok(moved)
}

fn replace_or_add(config: &mut Config, path: &str, contents: &[u8]) {
    let at = |file: &Value| file.get("path").and_then(Value::as_str) == Some(path);
    if !config.list(["storage", "files"]).iter().any(at) {
        return add(config, path, contents);
    }
    for file in config.list_mut(["storage", "files"]).into_iter().flatten() {
        if at(file)
            && let Some(file) = file.as_object_mut()
        {
            file.insert("contents".to_owned(), json!({"source": data_url::encode(contents)}));
        }
    }
}

/// Adds a file; one that is there already at this path gives way.
fn add(config: &mut Config, path: &str, contents: &[u8]) {
    let Some(files) = config.list_mut(["storage", "files"]) else {
        return;
    };
    files.retain(|file| file.get("path").and_then(Value::as_str) != Some(path));
    files.push(json!({
        "path": path,
        "overwrite": true,
        "mode": MODE,
        "contents": {"source": data_url::encode(contents)},
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_config::Spec;

    fn config(value: Value) -> Config {
        let mut value = value;
        value["ignition"]["version"] = "3.4.0".into();
        Config::from_value(value).unwrap()
    }

    fn appended(controller: ControllerConfig) -> Appended {
        Appended {
            machine_config: Rendered {
                name: "rendered-worker-1".to_owned(),
                spec: Spec::default(),
            },
            controller,
            kubeconfig: Some(Kubeconfig(b"credential".to_vec())),
            annotations: true,
        }
    }

    fn file<'c>(config: &'c Config, path: &str) -> Vec<&'c Value> {
        config
            .list(["storage", "files"])
            .iter()
            .filter(|file| file["path"] == path)
            .collect()
    }

    #[test]
    fn cas_take_the_place_of_the_files_that_are_there() {
        let controller = ControllerConfig {
            kubelet_ca: Some(b"new".to_vec()),
            cloud_ca: Some(b"cloud".to_vec()),
            ..ControllerConfig::default()
        };
        let stale = json!({"path": KUBELET_CA, "mode": 384, "contents": {"source": "data:,stale", "compression": "gzip"}});
        let given = config(json!({"storage": {"files": [stale, {"path": "/a"}]}}));
        let made = appended(controller).append(given, SpecVersion::NEWEST).unwrap();
        assert_eq!(
            file(&made, KUBELET_CA),
            [&json!({"path": KUBELET_CA, "mode": 384, "contents": {"source": "data:,new"}})]
        );
        assert_eq!(file(&made, CLOUD_CA)[0]["contents"]["source"], "data:,cloud");
        assert_eq!(file(&made, CLOUD_CA)[0]["mode"], 0o644);
        assert_eq!(file(&made, "/a").len(), 1);
    }

    #[test]
    fn a_file_that_is_there_gives_way_and_none_is_there_twice() {
        let given = config(json!({"storage": {"files": [{"path": KUBECONFIG, "contents": {"source": "data:,old"}}]}}));
        let made = appended(ControllerConfig::default()).append(given, SpecVersion::NEWEST).unwrap();
        assert_eq!(file(&made, KUBECONFIG).len(), 1);
        assert_eq!(file(&made, KUBECONFIG)[0]["contents"]["source"], "data:,credential");
        let without = Appended {
            kubeconfig: None,
            annotations: false,
            ..appended(ControllerConfig::default())
        };
        let made = without.append(Config::empty(), SpecVersion::NEWEST).unwrap();
        assert_eq!(made.list(["storage", "files"]).len(), REPEATING.len());
    }

    #[test]
    fn arguments_that_should_not_exist_have_no_place_before_3_3() {
        let given = || config(json!({"kernelArguments": {"shouldNotExist": ["a"]}}));
        let append = |version| {
            appended(ControllerConfig::default())
                .append(given(), version)
                .map(|_| ())
                .map_err(|error| error.place)
        };
        assert_eq!(append(SpecVersion::V3_3), Ok(()));
        assert_eq!(append(SpecVersion::V3_2), Err("kernelArguments.shouldNotExist".to_owned()));
        assert_eq!(append(SpecVersion::V2_2), Err("kernelArguments.shouldNotExist".to_owned()));
    }

    #[test]
    fn no_debug_output_shows_the_credential() {
        assert!(!format!("{:?}", appended(ControllerConfig::default())).contains("credential\""));
        assert!(!format!("{:?}", Kubeconfig(b"hunter2".to_vec())).contains("hunter2"));
    }
}
