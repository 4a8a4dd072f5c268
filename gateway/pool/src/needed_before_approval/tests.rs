use serde_json::json;

use super::*;

const MADE: &str = "machineconfiguration.openshift.io/generated-by-controller-version";

fn machine_config(name: &str, role: &str, annotations: &Value, files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|(path, text)| json!({"path": path, "mode": 420, "contents": {"source": format!("data:,{text}")}}))
        .collect();
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {"machineconfiguration.openshift.io/role": role}, "annotations": annotations},
        "spec": {"config": {"ignition": {"version": "3.4.0"}, "storage": {"files": files}}},
    })
}

fn needed(annotation: &str) -> Value {
    json!({NEEDED_ANNOTATION: annotation})
}

/// Returns a full config as a Machine Config Server renders it.
fn full(files: &[(&str, &str)]) -> Config {
    let files: Vec<Value> = files
        .iter()
        .map(|(path, text)| json!({"path": path, "mode": 420, "overwrite": true, "contents": {"source": format!("data:,{text}"), "verification": {}}}))
        .collect();
    Config::from_value(json!({"ignition": {"version": "3.5.0"}, "storage": {"files": files}})).unwrap()
}

fn paths(config: &Config) -> Vec<String> {
    let files = config.list(["storage", "files"]).iter();
    files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

/// Checks the paths that nodes of pool `worker` get before approval, or the error.
fn check(configs: Vec<Value>, full: &Config, expected: Result<&[&str], &str>) {
    match (Needed::new(Vec::new(), configs).for_pool("worker", full), expected) {
        (Ok(config), Ok(expected)) => assert_eq!(paths(&config), expected),
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
        (found, _) => panic!("{found:?}, and not {expected:?}"),
    }
}

#[test]
fn annotation_or_generator_marks_a_needed_config() {
    let is = |annotations: &Value| is_needed(&serde_json::from_value(annotations.clone()).unwrap());
    assert!(is(&needed("true")) && is(&json!({MADE: "7ff337a"})));
    assert!(!is(&json!({})) && !is(&json!({MADE: ""})) && !is(&json!({MADE: "7ff337a", NEEDED_ANNOTATION: "false"})));
}

#[test]
fn needed_files_come_from_the_upstream_config() {
    let all = full(&[("/etc/a", "a"), ("/etc/b", "b"), ("/etc/secret", "s")]);
    let a = || machine_config("50-a", "worker", &needed("true"), &[("/etc/a", "a")]);
    let b = || machine_config("00-b", "worker", &json!({MADE: "7ff337a"}), &[("/etc/b", "b")]);
    let other = || machine_config("99-other", "worker", &json!({}), &[("/etc/secret", "s")]);
    check(vec![a(), b(), other()], &all, Ok(&["/etc/b", "/etc/a"]));
    check(vec![other()], &all, Err("no MachineConfig of pool worker is needed"));
    check(Vec::new(), &all, Err("no MachineConfig of pool worker is needed"));
}

#[test]
fn rejects_a_needed_file_that_differs_upstream() {
    let a = || vec![machine_config("50-a", "worker", &needed("true"), &[("/etc/a", "a")])];
    check(
        a(),
        &full(&[("/etc/a", "secret")]),
        Err("file \"/etc/a\" of the full config differs"),
    );
    check(a(), &full(&[("/etc/b", "b")]), Err("file \"/etc/a\""));
    // The CAs that a server puts in the place of the MachineConfig's are the server's.
    let ca = "/etc/kubernetes/kubelet-ca.crt";
    let of_ca = vec![machine_config("50-a", "worker", &needed("true"), &[(ca, "old")])];
    let given = full(&[(ca, "new")]);
    let config = Needed::new(Vec::new(), of_ca).for_pool("worker", &given).unwrap();
    assert_eq!(config.list(["storage", "files"]), given.list(["storage", "files"]));
}

#[test]
fn invalid_machine_config_affects_only_its_pool() {
    let all = full(&[("/etc/a", "a")]);
    let a = machine_config("50-a", "worker", &needed("true"), &[("/etc/a", "a")]);
    for hostile in [
        json!({"ignition": {"version": "9.9.9"}}),
        json!({"ignition": {"version": "3.4.0"}, "storage": {"files": "many"}}),
        json!(7),
    ] {
        let object = |role: &str| {
            let mut object = machine_config("99-hostile", role, &needed("true"), &[]);
            object["spec"]["config"] = hostile.clone();
            object
        };
        check(vec![a.clone(), object("infra")], &all, Ok(&["/etc/a"]));
        check(vec![a.clone(), object("worker")], &all, Err("99-hostile"));
    }
    let maybe = machine_config("50-a", "worker", &needed("maybe"), &[("/etc/a", "a")]);
    check(vec![maybe], &all, Err("\"true\" or \"false\""));
}

#[test]
fn accepts_extensions_unknown_to_the_gateway() {
    let mut a = machine_config("50-a", "worker", &needed("true"), &[("/etc/a", "a")]);
    a["spec"]["extensions"] = json!(["of-a-later-release", "kernel-devel"]);
    a["spec"]["kernelType"] = json!("realtime");
    check(vec![a], &full(&[("/etc/a", "a")]), Ok(&["/etc/a"]));
}

#[test]
fn pool_selector_chooses_its_machine_configs() {
    let selector = |role: &str| json!({"matchLabels": {"machineconfiguration.openshift.io/role": role}});
    let pool = |role: &str| {
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": {"name": "worker"}, "spec": {"machineConfigSelector": selector(role)},
        })
    };
    let all = full(&[("/etc/a", "a"), ("/etc/i", "i")]);
    let configs = || {
        vec![
            machine_config("50-a", "worker", &needed("true"), &[("/etc/a", "a")]),
            machine_config("50-i", "infra", &needed("true"), &[("/etc/i", "i")]),
        ]
    };
    let of = |role| paths(&Needed::new(vec![pool(role)], configs()).for_pool("worker", &all).unwrap());
    assert_eq!(of("worker"), ["/etc/a"]);
    assert_eq!(of("infra"), ["/etc/i"]);
}
