//! A pool of MachineConfigs as large as a real worker's. A VM gets exactly their rendered config, and before approval exactly the part that
//! is needed for that.

use crate::worker;
use std::collections::BTreeMap;

use serde_json::Value;
use swtpm_tests::scenario::{Scenario, Site, VmRun};
use swtpm_tests::{IGNITION_SPEC, POOL, TestFolder, WrittenFile, content_of, expected_files};

/// Size of a real worker's config as it is served, in bytes.
const SERVED_BYTES: std::ops::RangeInclusive<usize> = 700_000..=900_000;
/// Path of the whole MachineConfig on a node, and so of a second copy of its config.
const CONTENT: &str = "/etc/mcs-machine-config-content.json";
const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
const NODE_ANNOTATIONS: &str = "/etc/machine-config-daemon/node-annotations.json";

/// Starts a site whose pool is the worker's MachineConfigs. Without users: the fast image has no useradd.
fn site(folder: &std::path::Path) -> Site {
    let mut site = Site::new(folder).unwrap();
    let configs = worker::machine_configs(false);
    // Half of them as tools write them, half as `oc get -o json` does.
    let manifests: Vec<(String, String)> = configs
        .iter()
        .enumerate()
        .map(|(number, config)| match number % 2 {
            0 => (format!("{number}.yaml"), worker::yaml(config)),
            _ => (format!("{number}.json"), config.to_string()),
        })
        .collect();
    let manifests = manifests.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    site.gateway().use_machine_configs(manifests).unwrap();
    site.gateway().start(None).unwrap();
    site
}

/// Boots the VM, and verifies that it and the log have exactly the config of `set`.
fn boot(site: &Site, scenario: Scenario, shown: &str, set: &str) -> VmRun {
    let run = site.run(scenario, None).unwrap();
    site.prove_exactly(set, &run.outcome).unwrap();
    let served = run.records.last().unwrap();
    assert_eq!(
        (served.decision(), served.shown(), served.verdict(), served.grant()),
        ("config", shown, "served", Some(set))
    );
    assert_eq!(served.text("/spec_version"), Some(IGNITION_SPEC));
    run
}

/// Returns the config's text and all files in it, including those of MachineConfigs that it contains.
fn everything(config: &Value) -> Vec<String> {
    let mut texts = vec![config.to_string()];
    for path in expected_paths(config) {
        let content = content_of(config, &path).unwrap().unwrap();
        if path == CONTENT {
            let machine_config: Value = serde_json::from_slice(&content).unwrap();
            texts.extend(everything(&machine_config["spec"]["config"]));
        }
        texts.push(String::from_utf8(content).unwrap());
    }
    texts
}

fn expected_paths(config: &Value) -> Vec<String> {
    let files = config.pointer("/storage/files").unwrap().as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

fn with_marker(config: &Value) -> usize {
    everything(config).iter().filter(|text| text.contains(worker::MARKER)).count()
}

#[test]
fn an_endorsed_tpm_gets_the_complete_worker_config() {
    let folder = TestFolder::new().unwrap();
    let mut site = site(folder.path());
    let text = site
        .gateway()
        .command(&["config", "render", "--pool", POOL, "--set", "full", "--spec", IGNITION_SPEC])
        .unwrap();
    assert!(SERVED_BYTES.contains(&text.len()), "{} bytes", text.len());
    let full: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(full["ignition"]["version"], IGNITION_SPEC);
    let mut paths = expected_paths(&full);
    for added in [CONTENT, ENCAPSULATED, NODE_ANNOTATIONS] {
        assert!(paths.iter().any(|path| path == added), "{added}");
        paths.retain(|path| path != added);
    }
    assert_eq!(paths.len(), worker::FILES);
    assert_eq!(full.pointer("/systemd/units").unwrap().as_array().unwrap().len(), worker::UNITS);
    let encapsulated: Value = serde_json::from_slice(&content_of(&full, ENCAPSULATED).unwrap().unwrap()).unwrap();
    assert_eq!(encapsulated["spec"]["kernelArguments"].as_array().unwrap().len(), 3);

    let run = boot(&site, Scenario::EndorsedTpm, "ticket", "full");
    // Each sort of thing is there: what is expected is worked out from what was served.
    let files: &BTreeMap<String, WrittenFile> = &run.outcome.files;
    let link = |target: &str| WrittenFile::Link { target: target.to_owned() };
    assert_eq!(files.get("/etc/systemd/system/worker-2.service"), Some(&link("/dev/null")));
    assert_eq!(files.get("/etc/worker-link-1"), Some(&link("worker.d/1.conf")));
    for path in [
        "/etc/legacy.d/0.conf",
        "/etc/systemd/system/legacy.service",
        "/etc/systemd/system/worker-3.service.d/9-more.conf",
        "/etc/systemd/system/worker-0.service.d/1-more.conf",
        "/etc/systemd/system-preset/20-ignition.preset",
    ] {
        assert!(files.contains_key(path), "{path}");
    }
    // The same file, of the MachineConfig that comes later.
    let overwritten = content_of(&full, "/etc/worker.d/7.conf").unwrap().unwrap();
    assert!(String::from_utf8(overwritten).unwrap().contains(worker::MARKER));
}

#[test]
fn vm_without_evidence_gets_the_pre_approved_config() {
    let folder = TestFolder::new().unwrap();
    let mut site = site(folder.path());
    let (pre_approved, full) = ["pre-approved", "full"].map(|set| site.gateway().pool_config(set).unwrap()).into();
    let run = boot(&site, Scenario::Nothing, "nothing", "pre-approved");
    assert_eq!(run.records.len(), 1);

    let answer = site.gateway().get(&format!("/config/{POOL}"), None).unwrap();
    assert_eq!((answer.status, answer.json().unwrap()), (200, pre_approved.clone()));
    assert_eq!(with_marker(&pre_approved), 0);
    // The marker is to be found where it is: in the full config, and once more in the copy that it has of itself.
    assert!(with_marker(&full) > 100, "{}", with_marker(&full));
    let only_full: Vec<String> = expected_files(&full)
        .unwrap()
        .into_keys()
        .filter(|path| !run.outcome.files.contains_key(path))
        .collect();
    assert!(only_full.len() > 60, "{only_full:?}");
    for path in ["/etc/legacy.d/0.conf", "/etc/ssh/sshd_config.d/40-site.conf", NODE_ANNOTATIONS] {
        assert!(only_full.iter().any(|only| only == path), "{path}");
    }
    let encapsulated: Value = serde_json::from_slice(&content_of(&pre_approved, ENCAPSULATED).unwrap().unwrap()).unwrap();
    assert_eq!(encapsulated["spec"]["kernelArguments"], Value::Array(Vec::new()));
}
