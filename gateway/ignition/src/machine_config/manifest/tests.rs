#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use serde_json::json;

use super::*;

const HEAD: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: a\n  labels: {machineconfiguration.openshift.io/role: worker}\n";

fn read(text: &str) -> Result<Manifests, String> {
    read_as("a.yaml", text)
}

fn read_as(name: &str, text: &str) -> Result<Manifests, String> {
    let mut manifests = Manifests::default();
    manifests.read(Path::new(name), text).map_err(|error| error.to_string())?;
    Ok(manifests)
}

/// Reads a MachineConfig with this spec.
fn spec(spec: &str) -> Result<MachineConfig, String> {
    Ok(read(&format!("{HEAD}{spec}"))?.machine_configs.remove(0))
}

#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    let error = read(text).unwrap_err();
    for expected in expected {
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
}

#[test]
fn reads_all_machine_config_fields() {
    let config = spec(
        "spec:\n  kernelArguments: [a=1, b]\n  extensions: [usbguard]\n  fips: true\n  kernelType: realtime\n  osImageURL: image-a\n  \
         baseOSExtensionsContainerImage: image-b\n  config:\n    ignition: {version: 3.2.0}\n    storage:\n      files:\n      - path: /a\n        mode: 0644\n",
    )
    .unwrap();
    assert_eq!((config.name.as_str(), config.role()), ("a", Some("worker")));
    assert_eq!(config.spec.kernel_arguments, ["a=1", "b"]);
    assert_eq!(config.spec.kernel_type, KernelType::Realtime);
    assert!(config.spec.fips && !config.needed_before_node_approved);
    assert_eq!(
        config.spec.config.unwrap().list(["storage", "files"]),
        [json!({"path": "/a", "mode": 420})]
    );
    assert_eq!(config.origin.to_string(), "a.yaml:1");
    assert_eq!(spec("").unwrap().spec, MachineConfigContent::default());
    assert_eq!(spec("spec: {config: {}}").unwrap().spec, MachineConfigContent::default());
    assert_eq!(
        spec("spec: {config: null, kernelArguments: null, kernelType: \"\"}").unwrap().spec,
        MachineConfigContent::default()
    );
}

#[test]
fn needed_before_approval_by_field_annotation_or_generator() {
    let check = |metadata: &str, field: &str, expected: bool| {
        let text = format!("{}  annotations: {{{metadata}}}\nspec: {{{field}}}", HEAD);
        assert_eq!(
            read(&text).unwrap().machine_configs[0].needed_before_node_approved,
            expected,
            "{text}"
        );
    };
    let (yes, no) = ("neededBeforeNodeApproved: true", "neededBeforeNodeApproved: false");
    let annotation = |value: &str| format!("{NEEDED_ANNOTATION}: \"{value}\"");
    let generated = format!("{GENERATED_ANNOTATION}: abc");
    check("", "", false);
    check("", yes, true);
    check(&annotation("true"), "", true);
    check(&annotation("true"), no, false);
    check(&annotation("false"), yes, true);
    check(&generated, "", true);
    check(&generated, no, false);
    check(&format!("{generated}, {}", annotation("false")), "", false);
    check(&format!("{GENERATED_ANNOTATION}: \"\""), "", false);
    refused(
        &format!("{HEAD}  annotations: {{{NEEDED_ANNOTATION}: \"yes\"}}\n"),
        &["a.yaml:6", "\"true\" or \"false\""],
    );
}

#[test]
fn reads_multiple_documents_lists_and_json() {
    let two = format!("{HEAD}---\n# nothing\n---\n{}", HEAD.replace("name: a", "name: b"));
    let found = read(&two).unwrap().machine_configs;
    assert_eq!(
        found
            .iter()
            .map(|config| (config.name.as_str(), config.origin.line))
            .collect::<Vec<_>>(),
        [("a", 1), ("b", 9)]
    );
    let object = json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": {"name": "a", "labels": {ROLE_LABEL: "worker"}}});
    let mut other = object.clone();
    other["metadata"]["name"] = "b".into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [object, other]});
    for text in [list.to_string(), format!("{object}\n{other}")] {
        assert_eq!(read_as("a.json", &text).unwrap().machine_configs.len(), 2, "{text}");
    }
    assert_eq!(read(&list.to_string()).unwrap().machine_configs.len(), 2);
    assert!(read("").unwrap().machine_configs.is_empty());
    assert!(read_as("a.json", "\n{\n\"a\" 1}").unwrap_err().starts_with("a.json:3: not JSON"));
}

/// The parser's budget applies to each document.
#[test]
fn number_of_yaml_documents_is_not_limited() {
    let text: String = (0..1100)
        .map(|number| format!("---\n{}", HEAD.replace("name: a", &format!("name: a{number}"))))
        .collect();
    let found = read(&text).unwrap().machine_configs;
    assert_eq!((found.len(), found[1099].origin.line), (1100, 6 * 1099 + 2));
    let broken = format!("{text}---\na: [");
    refused(&broken, &["a.yaml:6602"]);
}

#[test]
fn deep_nesting_is_refused_without_stack_overflow() {
    for depth in [20, 55, 110, 1900, 100_000] {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        let config = format!("{{ignition: {{version: 3.4.0}}, storage: {{files: [{{path: /a, x: {open}{close}}}]}}}}");
        let text = format!("{HEAD}spec: {{config: {config}}}\n");
        assert!(read(&text).is_err(), "{depth}");
        let json = json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": {"name": "a", "labels": {ROLE_LABEL: "worker"}},
            "spec": {"config": {"ignition": {"version": "3.4.0"}, "x": "DEEP"}}});
        let json = json.to_string().replace("\"DEEP\"", &format!("{open}{close}"));
        assert!(read_as("a.json", &json).is_err(), "{depth}");
    }
}

#[test]
fn reads_pools_and_controller_configs() {
    let pool = |rest: &str| format!("apiVersion: {API_VERSION}\nkind: MachineConfigPool\nmetadata: {{name: infra}}\n{rest}");
    let selector = "machineConfigSelector: {matchLabels: {a: b}}";
    let rendered = |rest: &str| read(&pool(rest)).unwrap().pools.remove(0).rendered;
    assert_eq!(rendered(&format!("spec: {{{selector}}}")), None);
    let both = |updated: u32| {
        rendered(&format!(
            "spec: {{{selector}, configuration: {{name: rendered-new}}}}\nstatus: {{configuration: {{name: rendered-old}}, updatedMachineCount: {updated}}}"
        ))
    };
    assert_eq!(
        (both(0).unwrap(), both(1).unwrap()),
        ("rendered-old".to_owned(), "rendered-new".to_owned())
    );
    refused(&pool("spec: {}"), &["a.yaml:4", "machineConfigSelector"]);
    refused(&pool("spec: {machineConfigSelector: {matchLabel: {}}}"), &["matchLabel"]);
    let controller = |ca: &str| {
        read(&format!(
            "apiVersion: {API_VERSION}\nkind: ControllerConfig\nmetadata: {{name: c}}\nspec: {{osImageURL: x, kubeAPIServerServingCAData: {ca}}}"
        ))
    };
    assert_eq!(controller("YQ==").unwrap().controller.unwrap().kubelet_ca.unwrap(), b"a");
    assert!(controller("'?'").unwrap_err().contains("not base64"));
}

#[test]
fn errors_name_file_and_line() {
    let config = |config: &str| format!("{HEAD}spec:\n  config:\n    ignition: {{version: 3.2.0}}\n{config}");
    refused("a: [", &["a.yaml:1", "not YAML"]);
    refused("- a\n", &["a.yaml:1"]);
    refused("kind: MachineConfig\n", &["a.yaml:1", "MachineConfig"]);
    refused("apiVersion: v1\nkind: Secret\n", &["a.yaml:1", "v1 Secret"]);
    refused(&HEAD.replace("/v1\n", "/v2\n"), &["v2"]);
    refused(&HEAD.replace("  name: a\n", ""), &["a.yaml:4", "name"]);
    refused(&HEAD.replace("name: a", "name: A b"), &["a.yaml:4", "metadata.name"]);
    refused(&HEAD.replace("role: worker", "rolle: worker"), &["a.yaml:5", ROLE_LABEL]);
    refused(&format!("{HEAD}spec:\n  kernelArgs: [a]\n"), &["a.yaml:7", "kernelArgs"]);
    refused(&format!("{HEAD}spec:\n  fips: maybe\n"), &["a.yaml:7", "spec.fips"]);
    refused(&format!("{HEAD}spec:\n  kernelType: turbo\n"), &["a.yaml:7", "spec.kernelType"]);
    refused(
        &format!("{HEAD}spec:\n  kernelArguments: [1]\n"),
        &["a.yaml:7", "spec.kernelArguments"],
    );
    refused(
        &format!("{HEAD}spec:\n  config:\n    ignition: {{version: 9.9.9}}\n"),
        &["a.yaml:8", "9.9.9"],
    );
    refused(&format!("{HEAD}spec:\n  config: 1\n"), &["a.yaml:7"]);
    refused(
        &config("    storage:\n      files:\n      - path: /a\n      - path: 1\n"),
        &["a.yaml:12", "storage.files.1.path"],
    );
    refused(
        &config("    storage:\n      files:\n      - path: /a\n        mod: 1\n"),
        &["a.yaml:12", "storage.files.0.mod"],
    );
    refused(&config("    storage: {}\n    storage: {}\n"), &["a.yaml:10", "storage"]);
    refused(&format!("{HEAD}---\n{HEAD}"), &["a.yaml:7", "a is already in a.yaml:1"]);
}

#[test]
fn file_modes_follow_the_operator_in_every_version() {
    let with_mode = |version: &str, mode: &str| {
        format!(
            "{HEAD}spec:\n  config:\n    ignition: {{version: {version}}}\n    storage:\n      files:\n      - filesystem: root\n        path: /a\n        mode: {mode}\n"
        )
    };
    for version in ["2.2.0", "3.0.0", "3.2.0", "3.5.0", "3.6.0"] {
        let with_mode = |mode| match version {
            "2.2.0" => with_mode(version, mode),
            _ => with_mode(version, mode).replace("filesystem: root\n        ", ""),
        };
        read(&with_mode("0777")).unwrap();
        // The operator refuses them, so a cluster could not have rendered this. Ignition before 3.6 would drop the bits in silence.
        for mode in ["01000", "04755", "07777"] {
            refused(
                &with_mode(mode),
                &["a.yaml:1", "spec.config.storage.files.0.mode", &format!("0o{}", &mode[1..])],
            );
        }
    }
}

#[test]
fn image_mode_is_read_only_from_the_annotation() {
    let annotated = |image: &str| {
        let text = format!("{HEAD}  annotations: {{{PRE_BUILT_IMAGE_ANNOTATION}: \"{image}\"}}\n");
        read(&text).unwrap().machine_configs.remove(0).pre_built_image
    };
    assert_eq!(annotated("quay.io/a@sha256:1"), Some("quay.io/a@sha256:1".to_owned()));
    assert_eq!(annotated(""), None);
    for kind in ["MachineOSConfig", "MachineOSBuild", "MachineOSConfigList"] {
        let text = HEAD.replace("kind: MachineConfig", &format!("kind: {kind}"));
        refused(&text, &["a.yaml:1", kind, "[upstream]", PRE_BUILT_IMAGE_ANNOTATION]);
    }
}

#[test]
fn rejects_yaml_alias_bombs() {
    let levels = (1..12).map(|level| format!("  a{level}: &a{level} [{}]\n", format!("*a{}, ", level - 1).repeat(10)));
    let bomb = format!(
        "{HEAD}spec:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n{}",
        levels.collect::<String>()
    );
    refused(&bomb, &["a.yaml"]);
    refused(&format!("{HEAD}---\n{bomb}"), &["a.yaml"]);
}

#[test]
fn no_error_shows_a_value() {
    for text in [
        format!(
            "{HEAD}spec:\n  config:\n    ignition: {{version: 3.2.0}}\n    storage:\n      files:\n      - path: /a\n        mode: \"hunter2\"\n"
        ),
        format!("{HEAD}spec:\n  fips: hunter2\n"),
        format!("{HEAD}spec:\n  config: hunter2\n"),
        format!("{HEAD}spec: \"hunter2\n"),
        format!("{HEAD}spec: !hunter2 x\n"),
        "hunter2".to_owned(),
    ] {
        let error = read(&text).map(|_| ()).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::default() })]

    #[test]
    fn arbitrary_manifests_never_panic(text in "\\PC{0,200}", tail in "[ \\-:{}\\[\\]&*!|>'\"%@`,?#a-z0-9\n]{0,120}") {
        for name in ["a.yaml", "a.json"] {
            drop(read_as(name, &text));
            drop(read_as(name, &tail));
            drop(read_as(name, &format!("{HEAD}spec:\n  config: {tail}\n")));
        }
    }
}
