//! Tests with `kubectl` as the client.

use std::process::{Command, Output};

use cloud_fixtures::kubernetes::KubernetesApi;
use serde_json::json;

use super::custom::definition;
use super::pool;

#[test]
fn kubectl_shows_the_columns_of_a_definition() {
    let api = KubernetesApi::start();
    api.put(definition());
    let metadata = json!({"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"});
    let node = json!({"apiVersion": "attest-gateway.internal/v1alpha1", "kind": "AttestedNode", "metadata": metadata, "spec": {"name": "abc"}, "status": {"at": "2020-01-01T00:00:00Z", "count": 7}});
    api.put(node);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config"), api.kubeconfig(api.admin())).unwrap();
    let rows = |arguments: &[&str]| -> Vec<Vec<String>> {
        let output = kubectl(folder.path(), arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    let narrow = rows(&["get", "an"]);
    assert_eq!(narrow[0], ["NAME", "OF", "AT"]);
    assert_eq!(narrow[1][..2], ["a", "abc"]);
    assert!(narrow[1][2].contains('y'), "{narrow:?}");
    let wide = rows(&["get", "attestednode", "a", "-o", "wide"]);
    assert_eq!((&*wide[0][3], &*wide[1][3]), ("COUNT", "7"));
}

fn kubectl(folder: &std::path::Path, arguments: &[&str]) -> Output {
    let config = folder.join("config");
    let mut command = Command::new("kubectl");
    command.env("HOME", folder).arg("--kubeconfig").arg(config).args(arguments);
    let output = command.output();
    output.unwrap_or_else(|error| panic!("kubectl (.ci/debian-packages): {error}"))
}

#[test]
fn kubectl_works_against_the_simulated_api() {
    let api = KubernetesApi::start();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        file.display().to_string()
    };
    write("config", &api.kubeconfig(api.admin()));
    let done = |arguments: &[&str]| {
        let output = kubectl(folder.path(), arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    };
    let file = write("pool.json", &pool("worker", false).to_string());
    assert!(done(&["create", "--validate=false", "-f", &file]).contains("created"));
    assert!(done(&["apply", "--validate=false", "-f", &file]).contains("configured"));
    assert!(done(&["get", "machineconfigpools"]).contains("worker"));
    done(&[
        "patch",
        "machineconfigpool",
        "worker",
        "--type=merge",
        "-p",
        "{\"spec\":{\"paused\":true}}",
    ]);
    assert_eq!(
        done(&["get", "machineconfigpool", "worker", "-o", "jsonpath={.spec.paused}"]),
        "true"
    );
    done(&["label", "machineconfigpool", "worker", "a=b"]);
    assert!(done(&["get", "machineconfigpools", "-l", "a=b", "-o", "name"]).contains("worker"));
    done(&["delete", "machineconfigpool", "worker"]);
    assert!(api.get("machineconfigpools", "", "worker").is_none());
    // What it may not do it is told.
    write("config", &api.kubeconfig(&api.token("gateway", "nobody")));
    let output = kubectl(folder.path(), &["get", "secrets", "-n", "kube-system"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("cannot list resource \"secrets\""),
        "{said}"
    );
}
