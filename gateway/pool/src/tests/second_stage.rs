//! Tests of `[second_stage]`: its effect on a pool, its errors and warnings.

use attest_ignition::machine_config::appended::NODE_ANNOTATIONS;

use super::*;

fn switched_on(text: &str) -> String {
    text.replace("machine_config_daemon = false", "machine_config_daemon = true")
}

/// Loads a pool of these manifests with the setting, and with other edits of its `pool.toml`.
fn load(manifests: &str, edits: &[(&str, &str)]) -> Result<Pool, String> {
    load_with(|pool| {
        fs::remove_dir_all(pool.join("full")).unwrap();
        fs::remove_dir_all(pool.join("pre-approved")).unwrap();
        fs::create_dir(pool.join("machine-configs")).unwrap();
        fs::write(pool.join("machine-configs/all.yaml"), manifests).unwrap();
        let mut text = switched_on(SAMPLE);
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        fs::write(pool.join("pool.toml"), text).unwrap();
    })
}

fn early_and_late() -> String {
    [
        machine_config("00-worker", "worker", &needed("/early")),
        machine_config(
            "99-worker",
            "worker",
            &format!("  fips: true\n  osImageURL: quay.io/os\n{}", file("/late")),
        ),
    ]
    .concat()
}

#[test]
fn second_stage_is_off_by_default() {
    let pool = load(
        &early_and_late(),
        &[("machine_config_daemon = true", "machine_config_daemon = false")],
    )
    .unwrap();
    assert_eq!(pool.second_stage().unwrap(), None);
    let without = paths(&pool, ConfigSet::PreApproved, SpecVersion::V3_5);
    assert!(!without.contains(&NODE_ANNOTATIONS.to_owned()));
    let pool = load(&early_and_late(), &[]).unwrap();
    let with = paths(&pool, ConfigSet::PreApproved, SpecVersion::V3_5);
    assert_eq!(
        with.iter().filter(|path| *path != NODE_ANNOTATIONS).collect::<Vec<_>>(),
        without.iter().collect::<Vec<_>>()
    );
    assert!(with.contains(&NODE_ANNOTATIONS.to_owned()));
}

#[test]
fn machine_config_has_os_image_and_fips_mode() {
    let object = load(&early_and_late(), &[]).unwrap().second_stage().unwrap().unwrap();
    assert_eq!(object.value["metadata"]["name"], object.name);
    let spec = &object.value["spec"];
    assert_eq!((&spec["osImageURL"], &spec["fips"]), (&"quay.io/os".into(), &true.into()));
    assert_eq!(spec["config"]["storage"]["files"].as_array().unwrap().len(), 1);
    // Once the operator has rendered, its words count: the image of a stream is in no MachineConfig.
    let rendered = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: rendered-worker-1}\n\
                    spec:\n  osImageURL: quay.io/stream\n  config:\n    ignition: {version: 3.2.0}\n    storage:\n      files:\n      - path: /early\n        contents: {source: \"data:,x\"}\n---\n";
    let pool = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: worker}\n\
                spec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}\nstatus: {configuration: {name: rendered-worker-1}}\n";
    let manifests = [&early_and_late(), rendered, pool].concat();
    let spec = load(&manifests, &[]).unwrap().second_stage().unwrap().unwrap().value["spec"].clone();
    assert_eq!((&spec["osImageURL"], &spec["fips"]), (&"quay.io/stream".into(), &false.into()));
}

#[test]
fn refuses_second_stage_without_machine_configs() {
    let refused = |loaded: Result<Pool, String>, part: &str| {
        let error = loaded.unwrap_err();
        assert!(
            error.contains("second_stage.machine_config_daemon") && error.contains(part),
            "{error}"
        );
    };
    refused(load_text(&switched_on(SAMPLE)), "no MachineConfigs");
    for folder in ["full", "pre-approved"] {
        let with_plain = load_with(|pool| {
            let other = if folder == "full" { "pre-approved" } else { "full" };
            fs::remove_dir_all(pool.join(other)).unwrap();
            fs::create_dir(pool.join("machine-configs")).unwrap();
            fs::write(pool.join("machine-configs/all.yaml"), early_and_late()).unwrap();
            fs::write(pool.join("pool.toml"), switched_on(SAMPLE)).unwrap();
        });
        refused(with_plain, "machine-config-daemon would remove");
    }
    let large = file("/large").replace("data:,x", &format!("data:,{}", "x".repeat(OBJECT_LIMIT_BYTES)));
    let large = machine_config("00-worker", "worker", &format!("  neededBeforeNodeApproved: true\n{large}"));
    refused(load(&large, &[]), "the cluster's API takes 1572864");
    assert!(load(&large, &[("machine_config_daemon = true", "machine_config_daemon = false")]).is_ok());
}

#[test]
fn finds_secrets_in_pre_approved_kernel_arguments() {
    let secret = "  neededBeforeNodeApproved: true\n  kernelArguments: [\"rd.password=hunter2hunter2\"]\n";
    let manifests = [early_and_late(), machine_config("50-worker", "worker", secret)].concat();
    let error = load(&manifests, &[]).unwrap_err();
    assert!(error.contains("password /etc/ignition-machine-config-encapsulated.json"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn warns_if_machine_config_daemon_cannot_take_over() {
    let warnings = |edits: &[(&str, &str)]| -> Vec<String> {
        let warnings = load(&early_and_late(), edits).unwrap().warnings(true, true);
        warnings
            .into_iter()
            .filter(|warning| warning.contains("machine-config-daemon") || warning.contains("machine_config_daemon"))
            .collect()
    };
    let [kubeconfig] = warnings(&[]).try_into().unwrap();
    assert!(kubeconfig.contains("/etc/kubernetes/kubeconfig"), "{kubeconfig}");
    // Nobody has the pre-approved config.
    let nobody = [("nothing = \"pre-approved\"", "nothing = \"refuse\"")];
    let [nothing] = warnings(&nobody).try_into().unwrap();
    assert!(nothing.contains("has no effect"), "{nothing}");
    assert_eq!(load(&early_and_late(), &nobody).unwrap().second_stage().unwrap(), None);
    // Two ways to the full config.
    let kubelet = [
        ("kubelet = \"refuse\"", "kubelet = \"full\""),
        ("names = []", "names = [\"worker-*\"]"),
    ];
    let two = warnings(&kubelet);
    assert!(two.iter().any(|warning| warning.contains("config apply")), "{two:?}");
}
