//! `kubectl` applies all manifests, and then the API has them.

use std::fs;

use cloud_fixtures::kubernetes::KubernetesApi;
use serde_json::Value;

use super::*;

/// Returns whether `found` contains everything in `wanted`.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| wanted.is_null() || found.get(key).is_some_and(|found| has(found, wanted))),
        _ => found == wanted,
    }
}

#[test]
fn kubectl_applies_all_manifests_idempotently() {
    let api = KubernetesApi::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("config"), api.kubeconfig(api.admin())).unwrap();
    let text = all(&[
        "configs",
        "inventory",
        "tokens",
        "client-ca",
        "pointers",
        "approval",
        "second-stage",
        "store",
        "attested-nodes",
    ]);
    fs::write(path("all.yaml"), &text).unwrap();
    let apply = || {
        let mut command = kubectl();
        command.env("HOME", folder.path()).arg("--kubeconfig").arg(path("config"));
        command_output(command.args(["apply", "--validate=false", "-f"]).arg(path("all.yaml")))
    };
    let (first, wanted) = (apply(), objects(&text));
    assert_eq!(
        first.lines().filter(|line| line.ends_with(" created")).count(),
        wanted.len(),
        "{first}"
    );
    for object in &wanted {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let plural = plural.replace("policys", "policies").replace("constraintss", "constraints");
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let found = api.get(&plural, &text("namespace"), &text("name"));
        assert!(found.is_some_and(|found| has(&found, object)), "{}", name(object));
    }
    let second = apply();
    assert_eq!(
        second.lines().filter(|line| line.ends_with(" unchanged")).count(),
        wanted.len(),
        "{second}"
    );
}

#[test]
fn renders_a_single_part_with_its_required_options() {
    let kinds = |text: &str| -> Vec<String> {
        objects(text)
            .iter()
            .map(|object| object["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    let gateway = printed(&["--only", "gateway", "--image", IMAGE]);
    assert_eq!(
        kinds(&gateway),
        [
            "Namespace",
            "NetworkPolicy",
            "ServiceAccount",
            "SecurityContextConstraints",
            "Role",
            "RoleBinding",
            "DaemonSet"
        ]
    );
    let settings = printed(&["--only", "settings", "--host", "api-int.example.com"]);
    assert_eq!(kinds(&settings), ["ConfigMap", "ConfigMap"]);
    let door = printed(&["--only", "machine-config"]);
    assert_eq!(kinds(&door), ["MachineConfig"]);
    // All of it is these three, one after the other.
    assert_eq!(
        printed(&["--image", IMAGE, "--host", "api-int.example.com"]),
        [gateway, settings, door].join("---\n")
    );
    let refused = |options: &[&str], expected: &str| {
        let output = manifests(options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{options:?}");
        assert!(said.contains(expected), "{options:?}: {said}");
    };
    refused(&[], "--image");
    refused(&["--image", IMAGE], "--host");
    refused(&["--only", "gateway"], "--image");
    refused(&["--only", "settings"], "--host");
    // A controller in a pod of its own reaches no store of one host.
    refused(&["--only", "settings", "--host", "a.b", "--with", "approval"], "--with store");
    let of_masters = [
        "--only", "settings", "--host", "a.b", "--with", "store", "--with", "approval", "--pool", "master",
    ];
    refused(&of_masters, "--pool names none");
    refused(&["--only", "gateway", "--image", "attest-gateway:0.1.0"], "registry");
    refused(&["--only", "settings", "--host", "192.0.2.5"], "DNS name");
    refused(&["--only", "settings", "--host", "a.b", "--pool", "a/b"], "pool");
    refused(
        &["--only", "settings", "--host", "a.b", "--etcd", "etcd:2379\"]\n"],
        "store.endpoints",
    );
    refused(&["--only", "gateway", "--image", IMAGE, "--namespace", "a\nb"], "namespace");
    refused(&["--only", "gateway", "--image", IMAGE, "--with", "everything"], "everything");
    let output = program()
        .args(["manifests", "render", "--platform", "gcp", "--image", IMAGE, "--host", "a.b"])
        .output()
        .unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
}

/// Returns the commands of a section of `docs/how-to/install-openshift.md`, without validation, because this API serves no schemas.
fn commands(section: &str) -> String {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/install-openshift.md")).unwrap();
    let (_, section) = document.split_once(&format!("\n## {section}\n")).unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.replace("| kubectl apply", "| kubectl apply --validate=false")
}

#[test]
fn documented_commands_copy_the_mcs_certificate_repeatedly() {
    let api = KubernetesApi::start();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    fs::write(&config, api.kubeconfig(api.admin())).unwrap();
    let commands = commands("Copy the MCS certificate");
    let run = || {
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", &commands])
            .env("KUBECONFIG", &config)
            .env("HOME", folder.path());
        shell.output().unwrap()
    };
    // Where there is nothing, nothing is made.
    assert!(!run().status.success());
    assert!(api.get("secrets", "attest-gateway", "machine-config-server-tls").is_none());
    let metadata = |name: &str| serde_json::json!({"name": name, "namespace": "openshift-machine-config-operator", "labels": {"a": "b"}});
    for value in ["one", "other"] {
        let base64 = data_encoding::BASE64.encode(value.as_bytes());
        let data = serde_json::json!({"tls.crt": base64, "tls.key": base64});
        let metadata = [metadata("machine-config-server-tls"), metadata("machine-config-server-ca")];
        api.put(
            serde_json::json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata[0], "data": data}),
        );
        let pem = format!("-----BEGIN {value}-----\n\"\\\n# more\n-----END\n");
        api.put(serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata[1], "data": {"ca-bundle.crt": pem}}));
        let output = run();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let copy = api.get("secrets", "attest-gateway", "machine-config-server-tls").unwrap();
        assert_eq!((&copy["data"], &copy["type"]), (&data, &"kubernetes.io/tls".into()));
        let copy = api.get("configmaps", "attest-gateway", "machine-config-server-ca").unwrap();
        assert_eq!(copy["data"], serde_json::json!({"ca-bundle.crt": pem}));
    }
}
