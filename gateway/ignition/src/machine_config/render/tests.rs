#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::machine_config::{GENERATED_ANNOTATION, PRE_BUILT_IMAGE_ANNOTATION, ROLE_LABEL};

fn object(name: &str, role: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {ROLE_LABEL: role}},
        "spec": spec,
    })
}

/// Returns a MachineConfig that the operator generated itself.
fn generated(name: &str, role: &str, spec: Value) -> Value {
    let mut object = object(name, role, spec);
    object["metadata"]["annotations"] = json!({GENERATED_ANNOTATION: "abc"});
    object
}

fn files(files: Value) -> Value {
    json!({"config": {"ignition": {"version": "3.2.0"}, "storage": {"files": files}}})
}

fn manifests(objects: &[Value]) -> Manifests {
    let mut manifests = Manifests::default();
    for (number, object) in objects.iter().enumerate() {
        manifests.read(Path::new(&format!("{number}.json")), &object.to_string()).unwrap();
    }
    manifests
}

fn rendered(objects: &[Value], pool: &str) -> RenderedPool {
    render_pool(&manifests(objects), pool).unwrap().unwrap()
}

fn full(objects: &[Value], pool: &str) -> MachineConfigContent {
    rendered(objects, pool).full.spec
}

fn contents(spec: &MachineConfigContent, path: &str) -> Value {
    let config = spec.config.clone().unwrap();
    let file = config
        .list(["storage", "files"])
        .iter()
        .find(|file| file["path"] == path)
        .unwrap()
        .clone();
    file["contents"].clone()
}

#[test]
fn pool_configs_override_worker_configs_in_name_order() {
    let file = |text: &str| files(json!([{"path": "/a", "contents": {"source": format!("data:,{text}")}}]));
    let objects = [
        object("99-worker", "worker", file("worker-99")),
        object("10-infra", "infra", file("infra-10")),
        object("50-infra", "infra", file("infra-50")),
        object("00-worker", "worker", file("worker-00")),
    ];
    assert_eq!(contents(&full(&objects, "infra"), "/a")["source"], "data:,infra-50");
    assert_eq!(contents(&full(&objects, "worker"), "/a")["source"], "data:,worker-99");
    assert!(render_pool(&manifests(&objects), "master").unwrap().is_none());
}

#[test]
fn pool_object_selects_configs_and_names_rendered_one() {
    let pool = |name: &str, rendered: Value| {
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": name},
            "spec": {"machineConfigSelector": {"matchLabels": {ROLE_LABEL: "gpu"}}, "configuration": rendered},
        })
    };
    let own = object("50-gpu", "gpu", json!({"kernelArguments": ["gpu"]}));
    let worker = object("50-worker", "worker", json!({"kernelArguments": ["worker"]}));
    let selected = full(&[pool("gpu", json!({})), own.clone(), worker.clone()], "gpu");
    assert_eq!(selected.kernel_arguments, ["gpu"]);
    let mut operators = object("rendered-gpu-1", "", json!({"kernelArguments": ["rendered"]}));
    operators["metadata"]["labels"] = json!({});
    let named = pool("gpu", json!({"name": "rendered-gpu-1"}));
    let rendered = rendered(&[named.clone(), own.clone(), operators], "gpu");
    assert_eq!(rendered.full.name, "rendered-gpu-1");
    assert_eq!(rendered.full.spec.kernel_arguments, ["rendered"]);
    let error = render_pool(&manifests(&[named, own]), "gpu").unwrap_err().to_string();
    assert!(error.contains("rendered-gpu-1") && error.contains("0.json:1"), "{error}");
}

#[test]
fn merges_kernel_arguments_and_extensions_and_overrides_others() {
    let spec = full(
        &[
            object(
                "1",
                "worker",
                json!({"kernelArguments": ["a", "b"], "extensions": ["usbguard"], "kernelType": "realtime"}),
            ),
            object(
                "2",
                "worker",
                json!({"kernelArguments": ["a"], "extensions": ["usbguard", "ipsec"], "fips": true, "kernelType": "64k-pages"}),
            ),
            object("3", "worker", json!({"kernelType": "default", "fips": false})),
        ],
        "worker",
    );
    assert_eq!(spec.kernel_arguments, ["a", "b", "a"]);
    assert_eq!(spec.extensions, ["usbguard", "ipsec"]);
    assert_eq!((spec.fips, spec.kernel_type), (true, KernelType::Pages64k));
    let devel = object("1", "worker", json!({"extensions": ["kernel-devel"]}));
    let realtime = object("2", "worker", json!({"kernelType": "realtime"}));
    assert!(render_pool(&manifests(std::slice::from_ref(&devel)), "worker").is_ok());
    assert!(
        render_pool(&manifests(&[devel, realtime]), "worker")
            .unwrap_err()
            .to_string()
            .contains("kernel-devel")
    );
}

#[test]
fn rejects_an_extension_unknown_to_the_operator() {
    let with = |extensions: Value| object("50-a", "worker", json!({"extensions": extensions}));
    let error = |objects: &[Value]| {
        render_pool(&manifests(objects), "worker")
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    for known in EXTENSIONS {
        assert_eq!(error(&[with(json!([known]))]), Ok(()));
    }
    let unknown = error(&[with(json!(["usbguard", "usb-guard"]))]).unwrap_err();
    for part in ["0.json:1", "50-a", "\"usb-guard\"", "usbguard", "source.extensions"] {
        assert!(unknown.contains(part), "{part} is not in {unknown}");
    }
    // Of another pool, it is that pool's matter.
    let master = object("50-b", "master", json!({"extensions": ["usb-guard"]}));
    assert_eq!(error(&[with(json!([])), master]), Ok(()));
    // A newer operator may have it.
    let mut newer = manifests(&[with(json!(["usb-guard"]))]);
    newer.extensions.insert("usb-guard".to_owned());
    assert_eq!(render_pool(&newer, "worker").unwrap().unwrap().full.spec.extensions, ["usb-guard"]);
    // And has, where it has rendered it.
    let mut operators = object("rendered-worker-1", "", json!({"extensions": ["usb-guard"]}));
    operators["metadata"]["labels"] = json!({});
    let pool = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": "worker"},
        "spec": {"machineConfigSelector": {"matchLabels": {ROLE_LABEL: "worker"}}, "configuration": {"name": "rendered-worker-1"}},
    });
    assert_eq!(error(&[pool, operators]), Ok(()));
}

#[test]
fn image_mode_follows_the_served_machine_config() {
    let with = |name: &str, role: &str, image: &str| {
        let mut object = object(name, role, json!({}));
        object["metadata"]["annotations"] = json!({PRE_BUILT_IMAGE_ANNOTATION: image});
        object
    };
    let image = |objects: &[Value]| rendered(objects, "worker").full.pre_built_image;
    assert_eq!(image(&[object("1", "worker", json!({}))]), None);
    let components = [
        with("10", "worker", "a"),
        with("20", "worker", "b"),
        object("30", "worker", json!({})),
    ];
    assert_eq!(image(&components).as_deref(), Some("b"));
    let pool = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": "worker"},
        "spec": {"machineConfigSelector": {"matchLabels": {ROLE_LABEL: "worker"}}, "configuration": {"name": "rendered-worker-1"}},
    });
    let operators = |image| with("rendered-worker-1", "", image);
    assert_eq!(
        image(&[pool.clone(), with("10", "worker", "a"), operators("c")]).as_deref(),
        Some("c")
    );
    assert_eq!(image(&[pool, with("10", "worker", "a"), operators("")]), None);
}

#[test]
fn os_image_defaults_to_the_controller_config() {
    let controller = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig", "metadata": {"name": "c"}, "spec": {"osImageURL": "base"},
    });
    let image = |url: &str| json!({"osImageURL": url});
    let check = |objects: &[Value], expected: &str| assert_eq!(full(objects, "worker").os_image_url, expected, "{objects:?}");
    let (operators, own) = (generated("0", "worker", image("generated")), object("1", "worker", image("own")));
    check(std::slice::from_ref(&operators), "generated");
    check(&[operators.clone(), controller.clone()], "base");
    check(&[operators.clone(), controller.clone(), own.clone()], "own");
    check(
        &[
            own,
            object("2", "worker", image("last")),
            generated("3", "worker", image("generated")),
        ],
        "last",
    );
}

#[test]
fn later_file_contents_replace_earlier_with_compression() {
    let spec = full(
        &[
            object(
                "1",
                "worker",
                files(json!([
                    {"path": "/a", "mode": 384, "contents": {"source": "data:,gz", "compression": "gzip", "verification": {"hash": format!("sha256-{}", "0".repeat(64))}}},
                    {"path": "/b", "overwrite": false, "contents": {"source": "data:,b"}},
                    {"path": "/c", "mode": 256},
                ])),
            ),
            object("2", "worker", files(json!([{"path": "/a", "contents": {"source": "data:,plain"}}]))),
        ],
        "worker",
    );
    let config = spec.config.unwrap();
    assert_eq!(
        config.list(["storage", "files"]),
        [
            json!({"path": "/a", "mode": 384, "overwrite": true, "contents": {"source": "data:,plain"}}),
            json!({"path": "/b", "overwrite": false, "contents": {"source": "data:,b"}}),
            json!({"path": "/c", "mode": 256}),
        ]
    );
}

#[test]
fn rendered_name_depends_only_on_content() {
    let name = |objects: &[Value]| rendered(objects, "worker").full.name;
    let (a, b) = (
        object("1", "worker", json!({"fips": true})),
        object("2", "worker", json!({"kernelArguments": ["x"]})),
    );
    assert_eq!(name(&[a.clone(), b.clone()]), name(&[b.clone(), a.clone()]));
    assert_ne!(name(std::slice::from_ref(&a)), name(&[b]));
    let name = name(&[a]);
    assert!(
        name.starts_with("rendered-worker-") && name.len() == "rendered-worker-".len() + 32,
        "{name}"
    );
}

/// Returns MachineConfigs with some of a few files, units, users and arguments.
fn any_machine_config(number: usize) -> impl Strategy<Value = Value> {
    let some = || proptest::collection::btree_set(0..6_u8, 0..4);
    (some(), some(), some(), some(), any::<Option<bool>>(), any::<bool>(), any::<bool>()).prop_map(
        move |(files, links, units, arguments, needed, made, own)| {
            let links: Vec<Value> = links
                .difference(&files)
                .map(|n| json!({"path": format!("/{n}"), "target": "/t"}))
                .collect();
            let files: Vec<Value> = files
                .iter()
                .map(|n| json!({"path": format!("/{n}"), "contents": {"source": format!("data:,{number}")}}))
                .collect();
            let units: Vec<Value> = units
                .iter()
                .map(|n| json!({"name": format!("{n}.service"), "enabled": true}))
                .collect();
            let arguments: Vec<String> = arguments.iter().map(|n| format!("a{n}")).collect();
            let mut spec = json!({"config": {
                "ignition": {"version": "3.3.0"},
                "storage": {"files": files, "links": links},
                "systemd": {"units": units},
                "kernelArguments": if number.is_multiple_of(2) { json!({"shouldExist": arguments}) } else { json!({"shouldNotExist": arguments}) },
            }});
            if let Some(needed) = needed {
                spec["neededBeforeNodeApproved"] = needed.into();
            }
            let role = if own { "infra" } else { "worker" };
            let name = format!("{number:02}");
            if made {
                generated(&name, role, spec)
            } else {
                object(&name, role, spec)
            }
        },
    )
}

fn any_machine_configs() -> impl Strategy<Value = Vec<Value>> {
    (1..7_usize).prop_flat_map(|count| (0..count).map(any_machine_config).collect::<Vec<_>>())
}

/// Returns every path, unit and argument of a config; a path may be a file or a link.
fn keys(config: &Config) -> BTreeSet<String> {
    let name = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let all = |place, key: &'static str| {
        config
            .list(place)
            .iter()
            .filter_map(move |entry| name(entry, key))
            .collect::<Vec<_>>()
    };
    let arguments = |list| {
        config
            .list(["kernelArguments", list])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
    };
    [
        all(["storage", "files"], "path"),
        all(["storage", "links"], "path"),
        all(["systemd", "units"], "name"),
    ]
    .into_iter()
    .flatten()
    .chain(arguments("shouldExist"))
    .chain(arguments("shouldNotExist"))
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_pre_approved_config_is_a_subset_of_the_full_one(objects in any_machine_configs(), pool in prop_oneof![Just("worker"), Just("infra")]) {
        let manifests = manifests(&objects);
        let Some(rendered) = render_pool(&manifests, pool).unwrap() else { return Ok(()) };
        let (some, all) = (rendered.pre_approved.config(), rendered.full.config());
        prop_assert!(keys(&some).is_subset(&keys(&all)));
        let mine = |config: &&MachineConfig| Selector::for_pool(pool).selects(&config.labels);
        let (needed, other): (Vec<_>, Vec<_>) = manifests.machine_configs.iter().filter(mine).partition(|config| config.needed_before_node_approved);
        // Strictly: what only others say is not in it.
        let of = |configs: &[&MachineConfig]| -> BTreeSet<String> {
            configs.iter().filter_map(|config| config.spec.config.as_ref()).flat_map(keys).collect()
        };
        prop_assert_eq!(keys(&some), of(&needed));
        prop_assert_eq!(keys(&all), &of(&needed) | &of(&other));
        // And what it has is the full one's, unless another MachineConfig speaks of it too.
        let contested = of(&other);
        for file in some.list(["storage", "files"]) {
            if !contested.contains(file["path"].as_str().unwrap()) {
                prop_assert!(all.list(["storage", "files"]).contains(file));
            }
        }
    }
}
