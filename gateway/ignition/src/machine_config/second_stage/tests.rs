#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use serde_json::json;

use super::*;
use crate::SpecVersion;
use crate::machine_config::GENERATED_ANNOTATION;

fn config(mut value: Value) -> Config {
    value["ignition"] = json!({"version": "3.5.0"});
    Config::from_value(value).unwrap()
}

fn rendered(files: &[&str]) -> Rendered {
    let files: Vec<Value> = files.iter().map(|path| json!({"path": path})).collect();
    Rendered {
        name: "rendered-worker-of-the-gateway".to_owned(),
        spec: MachineConfigContent {
            config: Some(config(json!({"storage": {"files": files}}))),
            kernel_arguments: vec!["early=1".to_owned()],
            os_image_url: "quay.io/early".to_owned(),
            ..MachineConfigContent::default()
        },
        pre_built_image: Some("quay.io/built".to_owned()),
    }
}

fn full() -> MachineConfigContent {
    MachineConfigContent {
        kernel_arguments: vec!["late=1".to_owned()],
        fips: true,
        os_image_url: "quay.io/os@sha256:1".to_owned(),
        base_os_extensions_container_image: "quay.io/extensions@sha256:1".to_owned(),
        ..MachineConfigContent::default()
    }
}

#[test]
fn object_takes_image_and_fips_from_full_config() {
    let made = taken_over(rendered(&["/a"]), "worker", &full());
    assert_eq!(made.spec.os_image_url, "quay.io/os@sha256:1");
    assert_eq!(made.spec.base_os_extensions_container_image, "quay.io/extensions@sha256:1");
    assert!(made.spec.fips);
    assert_eq!(made.spec.kernel_arguments, ["early=1"]);
    assert_eq!(made.spec.config, rendered(&["/a"]).spec.config);
    // The daemon would look for it in place of the MachineConfig's image, which the node does not run then.
    assert_eq!(made.pre_built_image, None);
}

#[test]
fn object_name_is_a_hash_of_its_content() {
    let name = |rendered: Rendered, pool: &str, full: &MachineConfigContent| taken_over(rendered, pool, full).name;
    let first = name(rendered(&["/a"]), "worker", &full());
    let hash = first.strip_prefix("rendered-worker-pre-approved-").unwrap();
    assert!(hash.len() == 32 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
    assert_eq!(name(rendered(&["/a"]), "worker", &full()), first);
    assert_ne!(name(rendered(&["/b"]), "worker", &full()), first);
    assert_ne!(name(rendered(&["/a"]), "infra", &full()), first);
    for change in [
        |spec: &mut MachineConfigContent| spec.fips = false,
        |spec: &mut MachineConfigContent| spec.os_image_url.push('2'),
        |spec: &mut MachineConfigContent| spec.base_os_extensions_container_image.push('2'),
    ] {
        let mut full = full();
        change(&mut full);
        assert_ne!(name(rendered(&["/a"]), "worker", &full), first);
    }
    // What comes of the full config's own is not in it.
    let other = MachineConfigContent {
        kernel_arguments: vec![],
        ..full()
    };
    assert_eq!(name(rendered(&["/a"]), "worker", &other), first);
}

fn file(path: &str, text: &str) -> Value {
    json!({"path": path, "mode": 420, "overwrite": true, "contents": {"source": data_url::encode(text.as_bytes())}})
}

const MACHINE_CONFIG: &str = r#"{"kind": "MachineConfig", "metadata": {"name": "rendered-worker-1", "uid": "1"}, "spec": {"fips": true, "kernelType": "realtime",
    "osImageURL": "quay.io/os", "kernelArguments": ["a"], "extensions": null, "config": {"ignition": {"version": "3.5.0"}}, "newer": {"field": 1}}}"#;

/// Builds the object for files chosen from another server's config.
fn chosen(files: &[Value]) -> Result<(Config, Appended), String> {
    from_chosen_parts(config(json!({"storage": {"files": files}})), "worker").map_err(|error| error.to_string())
}

#[test]
fn upstream_config_yields_the_operators_rendered_object() {
    let of_server = [
        file("/etc/a", "a"),
        file(NODE_ANNOTATIONS, "{\"full\": 1}"),
        file(KUBECONFIG, "credential"),
        file(CONTENT, "the whole"),
        file(ENCAPSULATED, MACHINE_CONFIG),
    ];
    let (config, appended) = chosen(&of_server).unwrap();
    let paths: Vec<&str> = config.list(["storage", "files"]).iter().filter_map(path).collect();
    assert_eq!(paths, ["/etc/a"]);
    assert_eq!(appended.kubeconfig, Some(BootstrapKubeconfig(b"credential".to_vec())));
    let Rendered { name, spec, .. } = &appended.machine_config;
    assert_eq!(
        (spec.os_image_url.as_str(), spec.fips, spec.kernel_type),
        ("quay.io/os", true, KernelType::Realtime)
    );
    assert_eq!(spec.kernel_arguments, ["a"]);
    assert!(name.starts_with("rendered-worker-pre-approved-"), "{name}");
    // What is appended is in no object, and changes no name: a credential that rotates makes no new one.
    let content = appended.content(&config, None, SpecVersion::NEWEST, 0).unwrap();
    let object = SecondStageObject::parse(&content, "worker").unwrap();
    assert_eq!(object.name, *name);
    let text = object.value.to_string();
    for other in ["credential", "the whole", "rendered-worker-1", "encapsulated"] {
        assert!(!text.contains(other), "{other} is in {text}");
    }
    let mut rotated = of_server.clone();
    rotated[2] = file(KUBECONFIG, "another");
    assert_eq!(chosen(&rotated).unwrap().1.machine_config.name, *name);
    let mut changed = of_server;
    changed[0] = file("/etc/a", "b");
    assert_ne!(chosen(&changed).unwrap().1.machine_config.name, *name);
}

#[test]
fn rejects_an_upstream_config_without_machine_config() {
    let refused = |files: &[Value], part: &str| {
        let error = chosen(files).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    };
    refused(&[file("/a", "a")], "does not list /etc/ignition-machine-config-encapsulated.json");
    for text in [
        "",
        "hunter2",
        "[]",
        "{}",
        r#"{"spec": 1}"#,
        r#"{"spec": {"kernelType": "hunter2"}}"#,
        r#"{"spec": {"fips": "hunter2"}}"#,
        r#"{"spec": {"kernelArguments": [1]}}"#,
    ] {
        refused(&[file(ENCAPSULATED, text)], "is not a MachineConfig that this gateway can read");
    }
    let good = file(ENCAPSULATED, MACHINE_CONFIG);
    let mut compressed = file(KUBECONFIG, "a");
    compressed["contents"]["compression"] = "gzip".into();
    refused(
        &[good.clone(), compressed],
        "/etc/kubernetes/kubeconfig is not inline in the config",
    );
    let fetched = json!({"path": ENCAPSULATED, "contents": {"source": "https://example.com/a"}});
    refused(
        &[fetched],
        "/etc/ignition-machine-config-encapsulated.json is not inline in the config",
    );
    refused(&[json!({"path": ENCAPSULATED})], "is not inline in the config");
    assert!(chosen(&[good]).is_ok());
}

#[test]
fn object_uses_the_oldest_sufficient_ignition_version() {
    let version = |part: Value| {
        let mut value = json!({"storage": {"files": [file(ENCAPSULATED, MACHINE_CONFIG)]}});
        for (key, part) in part.as_object().unwrap() {
            value[key] = part.clone();
        }
        let (config, appended) = from_chosen_parts(config(value), "worker").unwrap();
        check_readable(&config).unwrap();
        let object = SecondStageObject::parse(&appended.content(&config, None, SpecVersion::NEWEST, 0).unwrap(), "worker").unwrap();
        object.value["spec"]["config"]["ignition"]["version"].as_str().unwrap().to_owned()
    };
    assert_eq!(version(json!({})), "3.1.0");
    assert_eq!(version(json!({"kernelArguments": {"shouldExist": ["a"]}})), "3.3.0");
    let sticky = Config::from_value(json!({"ignition": {"version": "3.6.0"}, "storage": {"files": [{"path": "/a", "mode": 0o1777}]}}));
    assert!(check_readable(&sticky.unwrap()).is_err());
}

#[test]
fn object_has_no_role_label_or_generated_annotation() {
    let content = br#"{"apiVersion": "a", "kind": "b", "metadata": {"name": "rendered-a-pre-approved-1"}, "spec": {}}"#;
    let object = SecondStageObject::parse(content, "worker").unwrap();
    assert_eq!(object.name, "rendered-a-pre-approved-1");
    let metadata = &object.value["metadata"];
    let keys: Vec<&String> = metadata["labels"].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), LABELS.len());
    assert!(!object.value.to_string().contains("machineconfiguration.openshift.io/role"));
    assert!(!object.value.to_string().contains(GENERATED_ANNOTATION));
    for bad in ["", "[]", "{}", r#"{"metadata": {}}"#, r#"{"metadata": {"name": 1}}"#] {
        assert!(SecondStageObject::parse(bad.as_bytes(), "worker").is_err(), "{bad}");
    }
}

/// The admission policy lets the gateway's account write objects with these labels, and no others.
#[test]
fn admission_policy_requires_the_object_labels() {
    let policy = include_str!("../../../../dist/kubernetes/parts/second-stage/roles.yaml");
    for (label, value) in LABELS {
        let asks = format!("'{label}' in config.metadata.labels &&\n        config.metadata.labels['{label}'] == '{value}' &&\n");
        assert!(policy.contains(&asks), "{asks}");
    }
}

#[test]
fn object_name_belongs_to_exactly_one_pool() {
    let hash = "0123456789abcdef".repeat(2);
    assert!(is_name(&format!("rendered-worker-pre-approved-{hash}"), "worker"));
    assert!(is_name(&name("worker", &full()), "worker"));
    for wrong in [
        format!("rendered-worker-{hash}"),
        "rendered-worker-pre-approved-".to_owned(),
        format!("rendered-worker-pre-approved-{}", &hash[1..]),
        format!("rendered-worker-pre-approved-{hash}0"),
        format!("rendered-worker-pre-approved-{}", hash.to_uppercase()),
        format!("rendered-infra-pre-approved-{hash}"),
        format!("rendered-workerpre-approved-{hash}"),
        format!("rendered-worker-pre-approved-{}-x", &hash[2..]),
        "99-worker".to_owned(),
        String::new(),
    ] {
        assert!(!is_name(&wrong, "worker"), "{wrong}");
    }
}

#[test]
fn spec_digest_depends_only_on_the_spec() {
    let of = |spec: Value| {
        let content = json!({"metadata": {"name": "a", "annotations": {SPEC_DIGEST: "x", "b": "c"}}, "spec": spec}).to_string();
        let object = SecondStageObject::parse(content.as_bytes(), "worker").unwrap().value;
        let annotations = object["metadata"]["annotations"].as_object().unwrap().clone();
        assert_eq!(annotations.len(), 1, "{annotations:?}");
        annotations[SPEC_DIGEST].as_str().unwrap().to_owned()
    };
    assert_eq!(
        of(json!({"fips": true, "kernelType": "default"})),
        of(json!({"kernelType": "default", "fips": true}))
    );
    assert_ne!(of(json!({"fips": true})), of(json!({"fips": false})));
}
