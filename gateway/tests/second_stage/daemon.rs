//! Model of machine-config-daemon's decisions to accept and update a node. It has the daemon's checks in their order, written from the
//! source that each function names (openshift/machine-config-operator, commit 7ff337a). Its actions on systemd, rpm-ostree, drains and
//! reports are left out.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::node::{ANNOTATIONS, ENCAPSULATED, KUBECONFIG, Node, files, list};

const BACKUP: &str = "/etc/machine-config-daemon/node-annotation.json.bak";
const FIRST_BOOT: &str = "/etc/systemd/system/machine-config-daemon-firstboot.service";
const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";
/// Files that the daemon does not compare (pkg/daemon/on_disk_validation.go, `getFilesToIgnore`); the paths are those of
/// pkg/daemon/daemon.go.
const NOT_COMPARED: [&str; 3] = [
    "/etc/kubernetes/kubelet-ca.crt",
    "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem",
    "/etc/mco/internal-registry-pull-secret.json",
];
/// Newest Ignition config that this release of the daemon reads (pkg/controller/common/helpers.go, `IgnParseWrapper`).
const NEWEST_SPEC: &str = "3.5.0";

/// Objects of the cluster that the daemon and the operator's controllers read.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    pub machine_configs: BTreeMap<String, Value>,
    /// Value of `spec.configuration.name` of the node's pool.
    pub pool_configuration: String,
}

impl Cluster {
    pub fn put(&mut self, machine_config: &Value) {
        let name = machine_config["metadata"]["name"].as_str().unwrap().to_owned();
        self.machine_configs.insert(name, machine_config.clone());
    }

    fn get(&self, name: &str) -> Result<&Value, String> {
        let found = self.machine_configs.get(name);
        found.ok_or_else(|| format!("machineconfig {name:?} not found"))
    }
}

/// Models `RunFirstbootCompleteMachineconfig` of pkg/daemon/daemon.go. A unit of the config's own runs it if the file is there, before the
/// kubelet.
pub fn first_boot(node: &mut Node) -> Result<(), String> {
    if !node.disk.contains_key(FIRST_BOOT) {
        return Ok(());
    }
    let Some(machine_config) = node.json(ENCAPSULATED) else {
        return Ok(());
    };
    let spec = &machine_config["spec"];
    // `checkFIPS`, pkg/daemon/update.go.
    if spec["fips"].as_bool().unwrap_or_default() != node.fips {
        return Err("detected change to FIPS flag".to_owned());
    }
    let wanted = texts(&spec["kernelArguments"]);
    let image = spec["osImageURL"].as_str().unwrap_or_default();
    let as_it_is = image == node.image && wanted.iter().all(|argument| node.kernel_arguments.contains(argument));
    let file = node.disk.remove(ENCAPSULATED).unwrap();
    if as_it_is {
        return Ok(());
    }
    // `updateKubeConfigPermission`, pkg/daemon/update.go: part of every update.
    kubeconfig_permission(node)?;
    image.clone_into(&mut node.image);
    node.kernel_arguments.extend(wanted);
    node.disk.insert(format!("{ENCAPSULATED}.bak"), file);
    store_current(node, &machine_config);
    node.boots += 1;
    Ok(())
}

/// Models `syncNode` of pkg/daemon/daemon.go while it boots: `checkStateOnFirstRun`. An error makes the node degraded, and is retried.
pub fn first_run(node: &mut Node, cluster: &Cluster) -> Result<(), String> {
    // `upgradeHackFor44AndBelow`.
    if let Some(file) = node.disk.remove(ENCAPSULATED) {
        node.disk.insert(format!("{ENCAPSULATED}.bak"), file);
    }
    load_annotations(node)?;
    // `getStateAndConfigs`.
    let bootstrapping = node.disk.contains_key(ANNOTATIONS);
    let current = cluster.get(node.annotation("currentConfig"));
    if bootstrapping && current.is_err() {
        let on_disk = node.json(CURRENT_CONFIG);
        return Err(format!(
            "{current:?}, and on the disk there is {:?}",
            on_disk.map(|config| config["metadata"]["name"].clone())
        ));
    }
    let mut current = current?.clone();
    cluster.get(node.annotation("desiredConfig"))?;
    if bootstrapping {
        let image = current["spec"]["osImageURL"].as_str().unwrap_or_default();
        if node.image != image {
            // `updateLayeredOS`, and a reboot: kernel arguments are not changed here.
            image.clone_into(&mut node.image);
            node.boots += 1;
            return first_run(node, cluster);
        }
        let file = node.disk.remove(ANNOTATIONS).unwrap();
        node.disk.insert(BACKUP.to_owned(), file);
    } else if let Some(on_disk) = node.json(CURRENT_CONFIG) {
        // What is on the disk is believed.
        current = on_disk;
    }
    compare(node, &current)?;
    // `updateConfigAndState`.
    if bootstrapping {
        store_current(node, &current);
    }
    let name = current["metadata"]["name"].as_str().unwrap();
    if name == node.annotation("desiredConfig") {
        // `SetDone`, pkg/daemon/writer.go.
        node.annotate("currentConfig", name);
        node.annotate("state", "Done");
        return Ok(());
    }
    let desired = cluster.get(node.annotation("desiredConfig"))?;
    update(node, &current, desired, cluster)
}

/// Models `loadNodeAnnotations` of pkg/daemon/node.go.
fn load_annotations(node: &mut Node) -> Result<(), String> {
    if !node.annotation("currentConfig").is_empty() {
        return Ok(());
    }
    if let Some(initial) = node.json(ANNOTATIONS) {
        let initial: BTreeMap<String, String> = serde_json::from_value(initial).map_err(|error| error.to_string())?;
        node.annotations.extend(initial);
        return Ok(());
    }
    let on_disk = node
        .json(CURRENT_CONFIG)
        .ok_or_else(|| format!("open {CURRENT_CONFIG}: no such file or directory"))?;
    node.annotate("currentConfig", on_disk["metadata"]["name"].as_str().unwrap());
    Ok(())
}

/// Models `updateCandidateNode` of pkg/controller/node/node_controller.go, once the node is ready, and `maxUnavailable` permits it.
pub fn node_controller(node: &mut Node, cluster: &Cluster) {
    node.annotate("desiredConfig", &cluster.pool_configuration.clone());
}

/// Models `syncNode` of pkg/daemon/daemon.go for a booted node: `prepUpdateFromCluster`, `runPreflightConfigDriftCheck`, `triggerUpdate`.
pub fn sync(node: &mut Node, cluster: &Cluster) -> Result<(), String> {
    let desired = cluster.get(node.annotation("desiredConfig"))?;
    cluster.get(node.annotation("currentConfig"))?;
    let on_disk = node.json(CURRENT_CONFIG).ok_or("no current config on the disk")?;
    if desired["metadata"]["name"] == on_disk["metadata"]["name"] {
        return Ok(());
    }
    compare(node, &on_disk)?;
    update(node, &on_disk, desired, cluster)
}

/// Models `update` of pkg/daemon/update.go, and the steps after its reboot.
fn update(node: &mut Node, old: &Value, new: &Value, cluster: &Cluster) -> Result<(), String> {
    reconcilable(old, new)?;
    if new["spec"]["fips"].as_bool().unwrap_or_default() != node.fips {
        return Err("detected change to FIPS flag".to_owned());
    }
    let (old_config, new_config) = (&old["spec"]["config"], &new["spec"]["config"]);
    // `updateFiles` and `deleteStaleData`.
    node.write(new_config);
    let kept = files(new_config);
    for path in files(old_config).keys().filter(|path| !kept.contains_key(*path)) {
        if !NOT_COMPARED.contains(&path.as_str()) {
            node.disk.remove(path);
        }
    }
    kubeconfig_permission(node)?;
    // `applyOSChanges`.
    let arguments = |config: &Value| texts(&config["spec"]["kernelArguments"]);
    node.kernel_arguments.retain(|argument| !arguments(old).contains(argument));
    node.kernel_arguments.extend(arguments(new));
    new["spec"]["osImageURL"].as_str().unwrap_or_default().clone_into(&mut node.image);
    store_current(node, new);
    node.boots += 1;
    first_run(node, cluster)
}

/// Models `isConfigReconcilable` of pkg/controller/common/reconcile.go.
fn reconcilable(old: &Value, new: &Value) -> Result<(), String> {
    let (old_config, new_config) = (parsed(old)?, parsed(new)?);
    let same = |place: &str| list(old_config, place) == list(new_config, place);
    if !same("/passwd/groups") {
        return Err("ignition Passwd Groups section contains changes".to_owned());
    }
    if !same("/passwd/users") {
        // `validatePasswdChanges`, `verifyUserFields`.
        let users = list(new_config, "/passwd/users");
        if users.iter().any(|user| user["name"] != "core") {
            return Err("ignition passwd user section contains unsupported changes: non-core user".to_owned());
        }
        if let Some(user) = users.last() {
            let mut rest = user.as_object().unwrap().clone();
            let keys = rest.remove("sshAuthorizedKeys").unwrap_or_else(|| json!([]));
            let hash = rest.remove("passwordHash");
            rest.remove("name");
            if (hash.is_none() && keys == json!([])) || !rest.is_empty() {
                return Err("SSH keys and password hash are not reconcilable".to_owned());
            }
        }
    }
    for (place, what) in [
        ("/kernelArguments/shouldExist", "kargs"),
        ("/kernelArguments/shouldNotExist", "kargs"),
        ("/storage/disks", "disks"),
        ("/storage/filesystems", "filesystems"),
        ("/storage/raid", "raid"),
        ("/storage/directories", "directories"),
    ] {
        if !same(place) {
            return Err(format!("ignition {what} section contains changes"));
        }
    }
    if !same("/storage/links") && !list(new_config, "/storage/links").is_empty() {
        return Err("ignition links section contains changes".to_owned());
    }
    if list(new_config, "/storage/files")
        .iter()
        .any(|file| !list(file, "/append").is_empty())
    {
        return Err("ignition file includes append".to_owned());
    }
    let fips = |config: &Value| config["spec"]["fips"].as_bool().unwrap_or_default();
    if fips(old) != fips(new) {
        return Err("detected change to FIPS flag; refusing to modify FIPS on a running cluster".to_owned());
    }
    Ok(())
}

/// Models `validateOnDiskStateImpl` of pkg/daemon/daemon.go, and `checkV3Files`, `checkV3Units` of pkg/daemon/on_disk_validation.go.
fn compare(node: &Node, machine_config: &Value) -> Result<(), String> {
    let spec = &machine_config["spec"];
    let image = spec["osImageURL"].as_str().unwrap_or_default();
    if node.image != image {
        return Err(format!("expected target osImageURL {image:?}, have {:?}", node.image));
    }
    for argument in texts(&spec["kernelArguments"]) {
        if !node.kernel_arguments.contains(&argument) {
            return Err(format!("missing expected kernel arguments: {argument}"));
        }
    }
    for (path, file) in files(parsed(machine_config)?) {
        if NOT_COMPARED.contains(&path.as_str()) {
            continue;
        }
        let found = node.disk.get(&path).ok_or_else(|| format!("could not stat file {path:?}"))?;
        if found.mode != file.mode {
            return Err(format!("mode mismatch for file: {path:?}"));
        }
        if found.contents != file.contents {
            return Err(format!("content mismatch for file {path:?}"));
        }
    }
    Ok(())
}

/// Models `IgnParseWrapper` of pkg/controller/common/helpers.go.
fn parsed(machine_config: &Value) -> Result<&Value, String> {
    let config = &machine_config["spec"]["config"];
    let version = config["ignition"]["version"].as_str().unwrap_or_default();
    if !("3.0.0"..=NEWEST_SPEC).contains(&version) {
        return Err(format!("parsing Ignition config failed: unknown version {version}"));
    }
    Ok(config)
}

/// Models `updateKubeConfigPermission` of pkg/daemon/update.go.
fn kubeconfig_permission(node: &mut Node) -> Result<(), String> {
    let file = node.disk.get_mut(KUBECONFIG);
    file.ok_or_else(|| format!("cannot stat {KUBECONFIG}"))?.mode = 0o600;
    Ok(())
}

/// Models `storeCurrentConfigOnDisk` of pkg/daemon/daemon.go.
fn store_current(node: &mut Node, machine_config: &Value) {
    let contents = machine_config.to_string().into_bytes();
    node.disk
        .insert(CURRENT_CONFIG.to_owned(), super::node::File { mode: 0o644, contents });
}

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}
