//! Files that a Machine Config Server adds to a rendered config. They tell the node's daemons about the config itself.

use serde_json::{Value, json};

use super::render::Rendered;
use super::{ControllerConfig, WithConfig};
use crate::{Config, Inexpressible, SpecVersion, data_url};

/// The kubelet's bootstrap credential.
pub const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
/// The whole MachineConfig, to look at.
pub const CONTENT: &str = "/etc/mcs-machine-config-content.json";
/// The MachineConfig without its Ignition config, with the settings that the first boot applies in addition.
pub const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
/// Path of the node's annotations, which name its config.
pub const NODE_ANNOTATIONS: &str = "/etc/machine-config-daemon/node-annotations.json";
/// CA certificates that a server replaces by the cluster's current ones.
pub const REPLACED: [&str; 2] = [KUBELET_CA, CLOUD_CA];
const KUBELET_CA: &str = "/etc/kubernetes/kubelet-ca.crt";
const CLOUD_CA: &str = "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem";
/// Mode of the files that are added.
const MODE: u32 = 0o644;
/// The newest spec version that the operator reads.
const OPERATOR_NEWEST: SpecVersion = SpecVersion::V3_5;
/// The spec versions for an object that any release of the operator reads, the best first. Each release also reads the older ones, and no
/// release reads 3.0. Those of 2026 read up to 3.5.
pub(super) const OF_ANY_RELEASE: [SpecVersion; 5] = [
    SpecVersion::V3_1,
    SpecVersion::V3_2,
    SpecVersion::V3_3,
    SpecVersion::V3_4,
    SpecVersion::V3_5,
];
/// Ignition knows kernel arguments since this version.
pub const KERNEL_ARGUMENTS_SINCE: SpecVersion = SpecVersion::V3_3;

/// Path of Ignition's kernel arguments within a config.
pub const KERNEL_ARGUMENTS: [&str; 2] = ["kernelArguments", "shouldExist"];
/// Files that repeat what else is in the config.
pub const REPEATING: [&str; 2] = [CONTENT, ENCAPSULATED];

/// Inputs for the files that are added to a config.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// The MachineConfig that the config is from.
    pub machine_config: Rendered,
    /// The current CAs of the cluster.
    pub controller: ControllerConfig,
    /// The kubelet's bootstrap kubeconfig.
    pub kubeconfig: Option<BootstrapKubeconfig>,
    /// Set if the annotations say that the node has this config. For a pre-approved config only if the cluster has it as a MachineConfig,
    /// so that the daemon can take over the node.
    pub annotations: bool,
    /// Set if the MachineConfig is for any release of the operator. It is then in the oldest spec version that can express it, not in the
    /// newest known one.
    pub for_any_release: bool,
}

/// The kubelet's bootstrap kubeconfig: a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapKubeconfig(pub Vec<u8>);

impl std::fmt::Debug for BootstrapKubeconfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kubeconfig(…)")
    }
}

impl Appended {
    /// Returns the config with everything added, for a node that requests this spec version. `own` is the MachineConfig's, if that differs.
    ///
    /// # Errors
    /// [`Inexpressible`]: kernel arguments that should not exist, before spec 3.3.
    pub fn append(&self, config: Config, own: Option<&Config>, version: SpecVersion) -> Result<Config, Inexpressible> {
        let content = self.content(&config, own, version, 0)?;
        self.append_with(config, version, &content)
    }

    /// Returns the same in the newest version, without the contents of [`CONTENT`], which only repeats the rest. For callers that inspect
    /// the rest.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn outline(&self, config: Config) -> Result<Config, Inexpressible> {
        self.append_with(config, SpecVersion::NEWEST, b"")
    }

    /// Returns the contents of [`CONTENT`], with the Ignition config in a version that the operator reads, if that can express it.
    /// `expected` is the approximate size of that config in bytes, if known, to allocate once.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn content(&self, config: &Config, own: Option<&Config>, version: SpecVersion, expected: usize) -> Result<Vec<u8>, Inexpressible> {
        let object = self.machine_config(config, version)?.object(Value::Null);
        let own = own.unwrap_or(config);
        let versions: &[SpecVersion] = if self.for_any_release {
            &OF_ANY_RELEASE
        } else {
            &[OPERATOR_NEWEST]
        };
        // No schema looks at it here: one does when the config itself is served.
        let mut said = versions.iter().map(|version| own.in_version(*version));
        let config = said.find_map(Result::ok).or_else(|| own.in_version(SpecVersion::NEWEST).ok());
        let whole = WithConfig { object: &object, config };
        // A quarter more: it is indented.
        let mut content = Vec::with_capacity(expected + expected / 4);
        // Into memory: nothing to fail.
        let written = serde_json::to_writer_pretty(&mut content, &whole);
        Ok(written.map_or_else(|_| Vec::new(), |()| content))
    }

    /// Returns the MachineConfig without its config, and with the settings that the config's version cannot express.
    fn machine_config(&self, config: &Config, version: SpecVersion) -> Result<Rendered, Inexpressible> {
        let mut machine_config = self.machine_config.without_config();
        if version < KERNEL_ARGUMENTS_SINCE {
            // Older Ignition does not know them; machine-config-daemon does, by the encapsulated MachineConfig.
            machine_config.spec.kernel_arguments.extend(kernel_arguments(config, version)?);
        }
        Ok(machine_config)
    }

    fn append_with(&self, mut config: Config, version: SpecVersion, content: &[u8]) -> Result<Config, Inexpressible> {
        let machine_config = self.machine_config(&config, version)?;
        if version < KERNEL_ARGUMENTS_SINCE {
            config.take("kernelArguments");
        }
        if let Some(bundle) = &self.controller.kubelet_ca {
            replace_or_add(&mut config, KUBELET_CA, bundle);
        }
        if let Some(bundle) = &self.controller.cloud_ca {
            replace_or_add(&mut config, CLOUD_CA, bundle);
        }
        if self.annotations {
            let name = &machine_config.name;
            let mut annotations = json!({
                "machineconfiguration.openshift.io/currentConfig": name,
                "machineconfiguration.openshift.io/desiredConfig": name,
                "machineconfiguration.openshift.io/firstPivotConfig": name,
                "machineconfiguration.openshift.io/state": "Done",
            });
            if let (Some(image), Some(annotations)) = (&machine_config.pre_built_image, annotations.as_object_mut()) {
                for name in ["currentImage", "desiredImage"] {
                    annotations.insert(format!("machineconfiguration.openshift.io/{name}"), image.as_str().into());
                }
            }
            add(&mut config, NODE_ANNOTATIONS, annotations.to_string().as_bytes());
        }
        if let Some(BootstrapKubeconfig(kubeconfig)) = &self.kubeconfig {
            add(&mut config, KUBECONFIG, kubeconfig);
        }
        add(&mut config, CONTENT, content);
        let encapsulated = machine_config.object(json!({"ignition": {"version": version}}));
        add(&mut config, ENCAPSULATED, encapsulated.to_string().as_bytes());
        Ok(config)
    }
}

/// Adapts another server's config for a node that asks for an older spec version: its kernel arguments move into the accompanying
/// MachineConfig.
///
/// # Errors
/// [`Inexpressible`]: kernel arguments before spec 3.3, and no MachineConfig to take them, or such that should not exist.
pub fn made_older(mut config: Config, version: SpecVersion) -> Result<Config, Inexpressible> {
    let mut moved = Vec::new();
    if version < KERNEL_ARGUMENTS_SINCE {
        moved = kernel_arguments(&config, version)?;
        config.take("kernelArguments");
    }
    let at = |file: &Value| file.get("path").and_then(Value::as_str) == Some(ENCAPSULATED);
    let found = config.list(["storage", "files"]).iter().position(at);
    let encapsulated = found
        .and_then(|place| config.list(["storage", "files"]).get(place)?.pointer("/contents/source")?.as_str())
        .and_then(data_url::decode)
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .and_then(|machine_config| with_kernel_arguments(machine_config, &moved, version));
    match encapsulated {
        Some(encapsulated) => {
            let files = config.list_mut(["storage", "files"]);
            let source = files.and_then(|files| files.get_mut(found?)?.pointer_mut("/contents/source"));
            source
                .into_iter()
                .for_each(|source| *source = data_url::encode(encapsulated.to_string().as_bytes()).into());
            Ok(config)
        }
        None if moved.is_empty() => Ok(config),
        None => Err(Inexpressible {
            version,
            place: KERNEL_ARGUMENTS.join("."),
            problem: format!("it needs spec 3.3.0, or a file {ENCAPSULATED} in the config to carry it"),
        }),
    }
}

/// Returns an encapsulated MachineConfig with more kernel arguments, for a daemon that knows this spec version; `None` if the value is not
/// a MachineConfig.
fn with_kernel_arguments(mut machine_config: Value, arguments: &[String], version: SpecVersion) -> Option<Value> {
    let spec = machine_config.get_mut("spec")?.as_object_mut()?;
    spec.insert("config".to_owned(), json!({"ignition": {"version": version}}));
    if !arguments.is_empty() {
        let mut all = spec.get("kernelArguments").and_then(Value::as_array).cloned().unwrap_or_default();
        all.extend(arguments.iter().map(|argument| Value::from(argument.as_str())));
        spec.insert("kernelArguments".to_owned(), all.into());
    }
    Some(machine_config)
}

/// Returns the config's kernel arguments, for the MachineConfig.
fn kernel_arguments(config: &Config, version: SpecVersion) -> Result<Vec<String>, Inexpressible> {
    if !config.list(["kernelArguments", "shouldNotExist"]).is_empty() {
        return Err(Inexpressible {
            version,
            place: "kernelArguments.shouldNotExist".to_owned(),
            problem: "it needs spec 3.3.0, and a MachineConfig has no field for it".to_owned(),
        });
    }
    let wanted = config.list(KERNEL_ARGUMENTS);
    Ok(wanted.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Fills the contents of [`CONTENT`] into a config made by [`Appended::outline`].
pub fn fill(outline: &mut Config, content: &[u8]) {
    replace_or_add(outline, CONTENT, content);
}

/// Returns the offset of these contents in the JSON of an outline.
pub fn gap(outline: &Config, said: &[u8]) -> Option<usize> {
    let named = |file: &&Value| file.get("path").and_then(Value::as_str) == Some(CONTENT);
    let file = outline.list(["storage", "files"]).iter().find(named)?;
    let file = serde_json::to_vec(file).ok()?;
    // Quotes within a text are escaped, so it is there as a file only, and of files that path has one.
    let start = memchr::memmem::find(said, &file)?;
    let source = format!("\"{}", data_url::ESCAPED);
    let within = memchr::memmem::find(&file, format!("{source}\"").as_bytes())?;
    Some(start + within + source.len())
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

/// Adds a file; replaces an existing one at this path.
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
    use crate::machine_config::MachineConfigContent;

    fn config(value: Value) -> Config {
        let mut value = value;
        value["ignition"]["version"] = "3.4.0".into();
        Config::from_value(value).unwrap()
    }

    fn appended(controller: ControllerConfig) -> Appended {
        Appended {
            machine_config: Rendered {
                name: "rendered-worker-1".to_owned(),
                spec: MachineConfigContent::default(),
                pre_built_image: None,
            },
            controller,
            kubeconfig: Some(BootstrapKubeconfig(b"credential".to_vec())),
            annotations: true,
            for_any_release: false,
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
    fn controller_cas_replace_files_of_the_config() {
        let controller = ControllerConfig {
            kubelet_ca: Some(b"new".to_vec()),
            cloud_ca: Some(b"cloud".to_vec()),
            ..ControllerConfig::default()
        };
        let stale = json!({"path": KUBELET_CA, "mode": 384, "contents": {"source": "data:,stale", "compression": "gzip"}});
        let given = config(json!({"storage": {"files": [stale, {"path": "/a"}]}}));
        let made = appended(controller).append(given, None, SpecVersion::NEWEST).unwrap();
        assert_eq!(
            file(&made, KUBELET_CA),
            [&json!({"path": KUBELET_CA, "mode": 384, "contents": {"source": "data:,new"}})]
        );
        assert_eq!(file(&made, CLOUD_CA)[0]["contents"]["source"], "data:,cloud");
        assert_eq!(file(&made, CLOUD_CA)[0]["mode"], 0o644);
        assert_eq!(file(&made, "/a").len(), 1);
    }

    #[test]
    fn appended_file_replaces_the_one_of_its_path() {
        let given = config(json!({"storage": {"files": [{"path": KUBECONFIG, "contents": {"source": "data:,old"}}]}}));
        let made = appended(ControllerConfig::default())
            .append(given, None, SpecVersion::NEWEST)
            .unwrap();
        assert_eq!(file(&made, KUBECONFIG).len(), 1);
        assert_eq!(file(&made, KUBECONFIG)[0]["contents"]["source"], "data:,credential");
        let without = Appended {
            kubeconfig: None,
            annotations: false,
            ..appended(ControllerConfig::default())
        };
        let made = without.append(Config::empty(), None, SpecVersion::NEWEST).unwrap();
        assert_eq!(made.list(["storage", "files"]).len(), REPEATING.len());
    }

    #[test]
    fn image_mode_annotations_name_the_node_image() {
        let annotations = |image: Option<&str>| {
            let mut appended = appended(ControllerConfig::default());
            appended.machine_config.pre_built_image = image.map(str::to_owned);
            let made = appended.append(Config::empty(), None, SpecVersion::NEWEST).unwrap();
            let source = file(&made, NODE_ANNOTATIONS)[0]["contents"]["source"].as_str().map(str::to_owned);
            serde_json::from_slice::<Value>(&data_url::decode(&source.unwrap()).unwrap()).unwrap()
        };
        let plain = json!({
            "machineconfiguration.openshift.io/currentConfig": "rendered-worker-1",
            "machineconfiguration.openshift.io/desiredConfig": "rendered-worker-1",
            "machineconfiguration.openshift.io/firstPivotConfig": "rendered-worker-1",
            "machineconfiguration.openshift.io/state": "Done",
        });
        assert_eq!(annotations(None), plain);
        let mut layered = plain;
        layered["machineconfiguration.openshift.io/currentImage"] = "quay.io/a@sha256:1".into();
        layered["machineconfiguration.openshift.io/desiredImage"] = "quay.io/a@sha256:1".into();
        assert_eq!(annotations(Some("quay.io/a@sha256:1")), layered);
    }

    /// Returns another server's config with a MachineConfig that has the argument `old`, and Ignition's `arguments`.
    fn given(arguments: Value) -> Config {
        let machine_config =
            json!({"kind": "MachineConfig", "spec": {"kernelArguments": ["old"], "config": {"ignition": {"version": "3.5.0"}}}});
        let source = data_url::encode(machine_config.to_string().as_bytes());
        config(json!({
            "kernelArguments": arguments,
            "storage": {"files": [{"path": "/a"}, {"path": ENCAPSULATED, "contents": {"source": source}}]},
        }))
    }

    fn encapsulated(config: &Config) -> Value {
        let source = file(config, ENCAPSULATED)[0]["contents"]["source"].as_str();
        serde_json::from_slice(&data_url::decode(source.unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn downgrade_moves_kernel_arguments_into_the_machine_config() {
        let older = |version| made_older(given(json!({"shouldExist": ["a=1", "b"]})), version).unwrap();
        for version in [SpecVersion::V2_2, SpecVersion::V3_1, SpecVersion::V3_2] {
            let made = older(version);
            let spec = &encapsulated(&made)["spec"];
            assert_eq!(spec["kernelArguments"], json!(["old", "a=1", "b"]), "{version}");
            assert_eq!(spec["config"], json!({"ignition": {"version": version}}));
            assert!(made.list(KERNEL_ARGUMENTS).is_empty());
        }
        // From 3.3 on they are Ignition's own.
        let made = older(SpecVersion::V3_3);
        assert_eq!(encapsulated(&made)["spec"]["kernelArguments"], json!(["old"]));
        assert_eq!(encapsulated(&made)["spec"]["config"]["ignition"]["version"], "3.3.0");
        assert_eq!(made.list(KERNEL_ARGUMENTS), [json!("a=1"), json!("b")]);
    }

    #[test]
    fn downgrade_rejects_kernel_arguments_it_would_lose() {
        let place = |config| made_older(config, SpecVersion::V3_2).map(|_| ()).map_err(|error| error.place);
        let wanted = json!({"shouldExist": ["a"]});
        assert_eq!(
            place(given(json!({"shouldNotExist": ["a"]}))),
            Err("kernelArguments.shouldNotExist".to_owned())
        );
        let nowhere = Err("kernelArguments.shouldExist".to_owned());
        assert_eq!(place(config(json!({"kernelArguments": wanted}))), nowhere);
        for source in ["data:,", "data:,%7B%7D", "data:,%7B%22spec%22%3A1%7D", "https://example.com/a"] {
            let files = json!([{"path": ENCAPSULATED, "contents": {"source": source}}]);
            let with = config(json!({"kernelArguments": wanted, "storage": {"files": files.clone()}}));
            assert_eq!(place(with), nowhere, "{source}");
            assert_eq!(place(config(json!({"storage": {"files": files}}))), Ok(()), "{source}");
        }
        assert_eq!(made_older(Config::empty(), SpecVersion::V3_2).unwrap(), Config::empty());
    }

    #[test]
    fn should_not_exist_requires_spec_3_3() {
        let given = || config(json!({"kernelArguments": {"shouldNotExist": ["a"]}}));
        let append = |version| {
            appended(ControllerConfig::default())
                .append(given(), None, version)
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
        assert!(!format!("{:?}", BootstrapKubeconfig(b"hunter2".to_vec())).contains("hunter2"));
    }
}
