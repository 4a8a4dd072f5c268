//! Second stage: a node boots with the pre-approved config from the real gateway. A model of machine-config-daemon's own checks accepts it,
//! and updates it to its pool's config.

mod daemon;
mod node;

use std::fs;
use std::process::Command;

use attest_ignition::data_url;
use cloud_fixtures::kubernetes::KubernetesApi;
use serde_json::{Value, json};

use crate::support::{Answer, Gateway, POOL, accept};
use daemon::{Cluster, first_boot, first_run, node_controller, sync};
use node::{ANNOTATIONS, ENCAPSULATED, KUBECONFIG, Node};

/// Objects of a cluster: those of the operator, those of an administrator, and the result that the operator renders. `{…}` is replaced.
const OBJECTS: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: ControllerConfig
metadata: {name: machine-config-controller}
spec:
  baseOSContainerImage: quay.io/os@sha256:1
  kubeAPIServerServingCAData: Y2E=
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 01-worker-kubelet
  labels: {machineconfiguration.openshift.io/role: worker}
  annotations: {machineconfiguration.openshift.io/generated-by-controller-version: "1"}
spec:
  kernelArguments: [early=1]
  config:
    ignition: {version: 3.5.0}
    storage:
      {early}
      files:
      - {path: /etc/kubernetes/kubelet.conf, mode: 0600, contents: {source: "data:,kubelet"}}
      - {path: /etc/early, contents: {source: "data:;base64,H4sIAAAAAAAAA0tNLMqpBABLzo6jBQAAAA==", compression: gzip}}
    systemd:
      units:
      - {name: machine-config-daemon-firstboot.service, enabled: true, contents: "[Unit]\n"}
      - {name: kubelet.service, enabled: true, contents: "[Service]\n", dropins: [{name: 10-a.conf, contents: "[Service]\nA=1\n"}]}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-late
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  fips: true
  kernelArguments: [late=1]
  config:
    ignition: {version: 3.2.0}
    storage:
      {late}
      files:
      - {path: /etc/late, mode: 0600, contents: {source: "data:,late"}}
      - {path: /etc/kubernetes/kubelet.conf, mode: 0644, contents: {source: "data:,changed"}}
    passwd:
      users: [{name: core, sshAuthorizedKeys: [a]}]
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
  configuration: {name: rendered-worker-1}
status: {configuration: {name: rendered-worker-1}, updatedMachineCount: 1}
"#;
/// Rendered result, the object `RENDERED` of [`OBJECTS`].
const RENDERED: &str = r#"{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "rendered-worker-1"}, "spec": {
    "fips": true, "kernelArguments": ["early=1", "late=1"], "osImageURL": "quay.io/os@sha256:1", "kernelType": "default", "extensions": [],
    "baseOSExtensionsContainerImage": "", "config": {
        "ignition": {"version": "3.5.0"},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]},
        "storage": {"files": [
            {"path": "/etc/kubernetes/kubelet.conf", "mode": 420, "overwrite": true, "contents": {"source": "data:,changed"}},
            {"path": "/etc/early", "overwrite": true, "contents": {"source": "data:;base64,H4sIAAAAAAAAA0tNLMqpBABLzo6jBQAAAA==", "compression": "gzip"}},
            {"path": "/etc/late", "mode": 384, "overwrite": true, "contents": {"source": "data:,late"}}]},
        "systemd": {"units": [{"name": "machine-config-daemon-firstboot.service", "enabled": true, "contents": "[Unit]\n"}, {"name": "kubelet.service", "enabled": true, "contents": "[Service]\n",
            "dropins": [{"name": "10-a.conf", "contents": "[Service]\nA=1\n"}]}]}}}}"#;

/// Creates a gateway with that cluster's objects, some of whose storage is changed, and the rendered result of the cluster.
fn gateway(early: &str, late: &str, rendered: &[(&str, Value)]) -> (Gateway, Cluster) {
    let gateway = Gateway::init();
    let mut of_cluster: Value = serde_json::from_str(RENDERED).unwrap();
    for (place, value) in rendered {
        let (parent, field) = place.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() {
            Some(&mut of_cluster)
        } else {
            of_cluster.pointer_mut(parent)
        };
        parent.unwrap()[field] = value.clone();
    }
    let objects = OBJECTS.replace("      {early}\n", early).replace("      {late}\n", late);
    let files = [("all.yaml", objects.as_str()), ("rendered.json", &of_cluster.to_string())];
    gateway.machine_configs(POOL, &files);
    fs::write(gateway.path("pools/worker/kubeconfig"), "bootstrap").unwrap();
    gateway.edit_pool(POOL, "# kubeconfig = ", "kubeconfig = ");
    gateway.edit_pool(POOL, "machine_config_daemon = false", "machine_config_daemon = true");
    let mut cluster = Cluster {
        pool_configuration: "rendered-worker-1".to_owned(),
        ..Cluster::default()
    };
    cluster.put(&of_cluster);
    (gateway, cluster)
}

/// Returns the objects that the administrator applies to the cluster.
fn objects(gateway: &Gateway) -> Vec<Value> {
    let printed = gateway.command(&["second-stage", "render"]);
    serde_json::Deserializer::from_str(&printed)
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

/// Returns the config for an unauthenticated client.
async fn served(gateway: &Gateway, version: &str) -> Value {
    let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(version));
    let answer = Answer::send(request).await;
    assert!(answer.status.is_success(), "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

/// Returns the object that attest-controller makes of a gateway's config.
async fn by_controller(gateway: &Gateway) -> Value {
    let settings = attest_controller::settings::SecondStageSettings {
        url: gateway.url("").parse().unwrap(),
        address: None,
    };
    let source = attest_controller::second_stage::GatewayEndpoints::new(settings, gateway.path("tls/mcs-ca.crt"));
    let [object] = source.objects(POOL, POOL).await.unwrap().try_into().unwrap();
    object.value
}

#[tokio::test(flavor = "multi_thread")]
async fn ca_switch_does_not_wait_for_the_controller() {
    let (mut gateway, _) = gateway("", "", &[]);
    gateway.command(&["ca", "introduce"]);
    gateway.run();
    by_controller(&gateway).await;
    gateway.terminate();
    assert!(gateway.wait().success());
    let said = gateway.command(&["ca", "status"]);
    let next = format!(
        "next: `attest-gateway --config {} ca switch`, safe",
        gateway.path("gateway.toml").display()
    );
    assert!(said.contains("127.0.0.1") && said.contains(&next), "{said}");
    gateway.command(&["ca", "switch"]);
}

fn warnings(gateway: &Gateway) -> Vec<String> {
    let report = String::from_utf8(gateway.try_command(&["check"]).stdout).unwrap();
    let of_daemon = |line: &&str| line.contains("machine-config-daemon");
    report.lines().filter(of_daemon).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_config_daemon_updates_a_pre_approved_node() {
    let (mut gateway, mut cluster) = gateway("", "", &[]);
    assert_eq!(warnings(&gateway), Vec::<String>::new());
    gateway.run();
    let [object] = objects(&gateway).try_into().unwrap();
    assert_eq!(by_controller(&gateway).await, object);
    cluster.put(&object);
    let name = object["metadata"]["name"].as_str().unwrap();
    // As old as Ignition of OpenShift 4.6, and as new as it gets.
    for version in ["3.1.0", "3.2.0", "3.4.0", "3.5.0", "3.6.0"] {
        let mut node = Node::ignited(&served(&gateway, version).await);
        // The annotations name exactly that object, and the object has what the disk has, byte for byte.
        let annotations = node.json(ANNOTATIONS).unwrap();
        for key in ["currentConfig", "desiredConfig", "firstPivotConfig"] {
            assert_eq!(annotations[format!("machineconfiguration.openshift.io/{key}")], name);
        }
        assert_eq!(annotations["machineconfiguration.openshift.io/state"], "Done");
        assert_eq!(annotations.as_object().unwrap().len(), 4);
        let of_object = node::files(&object["spec"]["config"]);
        assert_eq!(of_object.len(), 5);
        for (path, file) in &of_object {
            assert_eq!(node.disk.get(path), Some(file), "{path}");
        }
        let mut content = node.json("/etc/mcs-machine-config-content.json").unwrap();
        for of_cluster in ["labels", "annotations"] {
            content["metadata"][of_cluster] = object["metadata"][of_cluster].clone();
        }
        assert_eq!(content, object, "{version}");
        assert_eq!(node.json(ENCAPSULATED).unwrap()["metadata"]["name"], name);

        first_boot(&mut node).unwrap();
        assert_eq!((node.image.as_str(), node.fips), ("quay.io/os@sha256:1", true));
        first_run(&mut node, &cluster).unwrap();
        assert_eq!((node.annotation("state"), node.annotation("currentConfig")), ("Done", name));
        assert!(!node.disk.contains_key("/etc/late"));
        node_controller(&mut node, &cluster);
        sync(&mut node, &cluster).unwrap();
        assert_eq!(
            (node.annotation("state"), node.annotation("currentConfig")),
            ("Done", "rendered-worker-1")
        );
        for (path, file) in node::files(&cluster.machine_configs["rendered-worker-1"]["spec"]["config"]) {
            assert_eq!(node.disk.get(&path), Some(&file), "{path}");
        }
        assert_eq!(node.kernel_arguments, ["early=1", "late=1"]);
        // The image was pivoted to once: Ignition's boot, the first boot's, the move's.
        assert_eq!(node.boots, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_waits_for_the_complete_machine_config() {
    let (mut gateway, cluster) = gateway("", "", &[]);
    gateway.run();
    let [object] = objects(&gateway).try_into().unwrap();
    let mut node = Node::ignited(&served(&gateway, "3.4.0").await);
    first_boot(&mut node).unwrap();
    // Not there: degraded, and tried again.
    let refused = |cluster: &Cluster, part: &str| {
        let mut node = node.clone();
        let error = first_run(&mut node, cluster).unwrap_err();
        assert!(error.contains(part), "{error}");
        node
    };
    let degraded = refused(&cluster, "not found");
    let with = |object: &Value| {
        let mut cluster = cluster.clone();
        cluster.put(object);
        cluster
    };
    let whole = with(&object);
    let mut later = degraded;
    first_run(&mut later, &whole).unwrap();
    assert_eq!(later.annotation("state"), "Done");
    // One that somebody has changed is another's.
    let altered = |place: &str, value: Value| {
        let mut object = object.clone();
        *object.pointer_mut(place).unwrap() = value;
        with(&object)
    };
    refused(
        &altered("/spec/config/storage/files/0/contents/source", json!("data:,x")),
        "content mismatch",
    );
    refused(&altered("/spec/config/storage/files/0/mode", json!(420)), "mode mismatch");
    refused(&altered("/spec/config/storage/files/0/path", json!("/etc/x")), "could not stat");
    refused(&altered("/spec/kernelArguments", json!(["x"])), "missing expected kernel arguments");
    refused(&altered("/spec/config/ignition/version", json!("3.6.0")), "unknown version");
    refused(&altered("/metadata/name", json!("rendered-worker-x")), "not found");
    // Another image is pivoted to.
    let mut pivoted = node.clone();
    first_run(&mut pivoted, &altered("/spec/osImageURL", json!("quay.io/other"))).unwrap();
    assert_eq!((pivoted.image.as_str(), pivoted.boots), ("quay.io/other", node.boots + 1));
    // It is needed until the node has moved, and not after that.
    let mut taken = node.clone();
    first_run(&mut taken, &whole).unwrap();
    node_controller(&mut taken, &whole);
    assert!(sync(&mut taken.clone(), &cluster).unwrap_err().contains("not found"));
    sync(&mut taken, &whole).unwrap();
    sync(&mut taken, &cluster).unwrap();
    first_run(&mut taken, &cluster).unwrap();
}

#[test]
fn kubectl_applies_the_rendered_second_stage() {
    let (gateway, _) = gateway("", "", &[]);
    gateway.machine_configs(
        "infra",
        &[(
            "all.yaml",
            &OBJECTS.replace("      {early}\n", "").replace("      {late}\n", "").replace(
                "  configuration: {name: rendered-worker-1}\nstatus: {configuration: {name: rendered-worker-1}, updatedMachineCount: 1}\n",
                "",
            ),
        )],
    );
    gateway.edit_pool("infra", "machine_config_daemon = false", "machine_config_daemon = true");
    let printed = objects(&gateway);
    assert_eq!(printed.len(), 2);
    let api = KubernetesApi::start();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config"), api.kubeconfig(api.admin())).unwrap();
    fs::write(folder.path().join("objects"), gateway.command(&["second-stage", "render"])).unwrap();
    // Twice: what is there already is there as it was.
    for _ in 0..2 {
        let mut kubectl = Command::new("kubectl");
        kubectl.env("HOME", folder.path()).current_dir(folder.path());
        kubectl.args([
            "--kubeconfig",
            "config",
            "apply",
            "--server-side",
            "--validate=false",
            "-f",
            "objects",
        ]);
        let output = kubectl
            .output()
            .unwrap_or_else(|error| panic!("kubectl (.ci/debian-packages): {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for object in &printed {
            let made = api.get("machineconfigs", "", object["metadata"]["name"].as_str().unwrap()).unwrap();
            assert_eq!(
                (&made["spec"], &made["metadata"]["labels"]),
                (&object["spec"], &object["metadata"]["labels"])
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_stage_is_off_without_machine_config_daemon() {
    let (mut gateway, cluster) = gateway("", "", &[]);
    gateway.edit_pool(POOL, "machine_config_daemon = true", "machine_config_daemon = false");
    gateway.run();
    let config = served(&gateway, "3.4.0").await;
    let mut node = Node::ignited(&config);
    assert!(!node.disk.contains_key(ANNOTATIONS));
    node.disk.remove(ENCAPSULATED);
    let error = first_run(&mut node, &cluster).unwrap_err();
    assert!(error.contains("no such file"), "{error}");
    for arguments in [&["second-stage", "render"][..], &["second-stage", "render", "--pool", POOL]] {
        let refused = gateway.try_command(arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains("machine_config_daemon"), "{said}");
    }
}

/// Runs both stages with a pool whose two configs, or only the full one, have this part of storage.
async fn with_storage(part: &str, value: Value, both: bool) -> (Vec<String>, Result<(), String>) {
    let line = format!("      {}: {value}\n", part.rsplit('/').next().unwrap());
    let rendered = [(format!("/spec/config{part}"), value)];
    let rendered: Vec<(&str, Value)> = rendered.iter().map(|(place, value)| (place.as_str(), value.clone())).collect();
    let (early, late) = if both { (line.as_str(), "") } else { ("", line.as_str()) };
    let (mut gateway, mut cluster) = gateway(early, late, &rendered);
    let warnings = warnings(&gateway);
    gateway.run();
    cluster.put(&objects(&gateway)[0]);
    let mut node = Node::ignited(&served(&gateway, "3.4.0").await);
    first_boot(&mut node).unwrap();
    first_run(&mut node, &cluster).unwrap();
    node_controller(&mut node, &cluster);
    (warnings, sync(&mut node, &cluster))
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_storage_that_the_daemon_refuses() {
    for (part, value) in [
        ("/storage/directories", json!([{"path": "/etc/a"}])),
        ("/storage/links", json!([{"path": "/etc/a", "target": "/b"}])),
        ("/storage/disks", json!([{"device": "/dev/sdb", "wipeTable": true}])),
        (
            "/storage/filesystems",
            json!([{"device": "/dev/sdb", "format": "xfs", "path": "/var/b"}]),
        ),
        (
            "/storage/raid",
            json!([{"name": "a", "level": "raid1", "devices": ["/dev/sda", "/dev/sdb"]}]),
        ),
    ] {
        let (warned, moved) = with_storage(part, value.clone(), false).await;
        let section = part.trim_start_matches('/').replace('/', ".");
        assert!(warned.len() == 1 && warned[0].contains(&section), "{part}: {warned:?}");
        assert!(moved.unwrap_err().contains("section contains changes"), "{part}");
        let (warned, moved) = with_storage(part, value, true).await;
        assert_eq!((warned, moved), (vec![], Ok(())), "{part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_a_missing_kubeconfig() {
    let (mut gateway, _) = gateway("", "", &[]);
    gateway.edit_pool(POOL, "kubeconfig = ", "# kubeconfig = ");
    let warned = warnings(&gateway);
    assert!(warned.len() == 1 && warned[0].contains(KUBECONFIG), "{warned:?}");
    gateway.run();
    let mut node = Node::ignited(&served(&gateway, "3.4.0").await);
    assert!(first_boot(&mut node).unwrap_err().contains("cannot stat"));
}

/// Starts a substitute for that cluster's Machine Config Server: a gateway that gives the full config to every client, with such a server's
/// additions.
fn machine_config_server() -> (Gateway, Cluster) {
    let (mut upstream, cluster) = gateway("", "", &[]);
    upstream.edit_pool(POOL, "machine_config_daemon = true", "machine_config_daemon = false");
    upstream.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"full\"");
    upstream.run();
    (upstream, cluster)
}

/// Starts a gateway in front of that server, which gives these files and units to unauthenticated clients.
fn in_front_of(upstream: &Gateway, files: &[&str], units: &[&str]) -> Gateway {
    let gateway = Gateway::init();
    for folder in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.path("pools/worker").join(folder)).unwrap();
    }
    fs::copy(upstream.path("tls/mcs-ca.crt"), gateway.path("pools/worker/upstream-ca.crt")).unwrap();
    let source = format!(
        "[upstream]\nurl = \"{}\"\nca = \"upstream-ca.crt\"\nkeys_sha256 = []\n\n[upstream.include]\nfiles = {files:?}\nunits = {units:?}\n\n[tpm]",
        upstream.url("")
    );
    gateway.edit_pool(POOL, "[tpm]", &source);
    gateway.edit_pool(POOL, "machine_config_daemon = false", "machine_config_daemon = true");
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn second_stage_works_with_an_upstream_pool() {
    let (upstream, mut cluster) = machine_config_server();
    let included = ["/etc/early", "/etc/kubernetes/kubelet.conf", KUBECONFIG, ENCAPSULATED];
    let units = ["kubelet.service", "machine-config-daemon-firstboot.service"];
    let mut gateway = in_front_of(&upstream, &included, &units);
    assert_eq!(warnings(&gateway), Vec::<String>::new());
    gateway.run();
    let [object] = objects(&gateway).try_into().unwrap();
    let text = object.to_string();
    for secret in ["bootstrap", "late\"", "/etc/late", "rendered-worker-1"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    assert_eq!(by_controller(&gateway).await, object);
    cluster.put(&object);
    for version in ["3.2.0", "3.5.0"] {
        let config = served(&gateway, version).await;
        assert!(!config.to_string().contains("rendered-worker-1"));
        let mut node = Node::ignited(&config);
        assert_eq!(node.disk[KUBECONFIG].contents, b"bootstrap");
        first_boot(&mut node).unwrap();
        first_run(&mut node, &cluster).unwrap();
        assert_eq!(node.annotation("currentConfig"), object["metadata"]["name"].as_str().unwrap());
        node_controller(&mut node, &cluster);
        sync(&mut node, &cluster).unwrap();
        assert_eq!(
            (node.annotation("state"), node.annotation("currentConfig")),
            ("Done", "rendered-worker-1")
        );
        assert_eq!(node.disk["/etc/late"].contents, b"late");
    }
    // What the object is made of has to be let through by name.
    let without = in_front_of(&upstream, &included[..3], &units);
    let report = String::from_utf8(without.try_command(&["check"]).stdout).unwrap();
    assert!(report.contains(&format!("does not list {ENCAPSULATED}")), "{report}");
    // And nothing of the other server's own annotations comes along.
    let mut listed = in_front_of(&upstream, &[&included[..], &[ANNOTATIONS]].concat(), &units);
    listed.run();
    let annotations = file(&served(&listed, "3.4.0").await, ANNOTATIONS);
    assert!(!annotations.contains("rendered-worker-1\""), "{annotations}");
    // Without the unit that sets them, the daemon misses the kernel arguments.
    let mut unset = in_front_of(&upstream, &included, &units[..1]);
    let warned = warnings(&unset);
    assert!(warned.len() == 1 && warned[0].contains(units[1]), "{warned:?}");
    unset.run();
    let mut node = Node::ignited(&served(&unset, "3.4.0").await);
    cluster.put(&objects(&unset)[0]);
    first_boot(&mut node).unwrap();
    let error = first_run(&mut node, &cluster).unwrap_err();
    assert!(error.contains("missing expected kernel arguments"), "{error}");
}

/// Returns a file's contents as text.
fn file(config: &Value, path: &str) -> String {
    let files: Vec<&Value> = node::list(config, "/storage/files")
        .iter()
        .filter(|file| file["path"] == path)
        .collect();
    assert_eq!(files.len(), 1, "{path}");
    String::from_utf8(data_url::decode(files[0]["contents"]["source"].as_str().unwrap()).unwrap()).unwrap()
}
