//! First boots that fail, in VMs with systemd and dracut's initrd: each failure comes home to the gateway before the emergency shell, without
//! the secrets of the boot.
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{DebianRelease, POOL, TestFolder, TestGateway};

/// Maximum duration of a boot: emulated on two busy cores it takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);
/// Content of a file in the config, and the password hash of a user.
const SECRETS: [&str; 2] = ["the-secret-of-a-file", "$6$SALTSALT$SECRETHASHSECRETHASH"];

/// Adds to the pool's full config: storage, and secrets.
fn add_to_config(gateway: &TestGateway, storage: &Value, ignition: &Value) {
    let path = gateway.folder().join(format!("pools/{POOL}/full/config.ign"));
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let secret = json!({"path": "/etc/secret", "mode": 0o600, "contents": {"source": format!("data:,{}%0A", SECRETS[0])}});
    config["storage"]["files"].as_array_mut().unwrap().push(secret);
    config["passwd"]["users"] = json!([{"name": "core", "passwordHash": SECRETS[1]}]);
    for (name, values) in storage.as_object().unwrap() {
        let known = config["storage"][name].as_array().cloned().unwrap_or_default();
        config["storage"][name] = json!([known.as_slice(), values.as_array().unwrap()].concat());
    }
    for (name, value) in ignition.as_object().unwrap() {
        config["ignition"][name] = value.clone();
    }
    fs::write(&path, config.to_string()).unwrap();
}

/// Boots a VM whose boot fails, and returns its console.
fn boot(site: &mut Site, scenario: Scenario, release: DebianRelease) -> Vec<String> {
    let folder = site.vm_folder("failing").unwrap();
    let tpm = site.tpm(scenario, &folder).unwrap().unwrap();
    let (vm, _disk) = site.whole_vm(release, &folder).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let mut vm = vm.pointer(&pointer).tpm(&tpm).start(&folder).unwrap();
    vm.wait_off(BOOT_LIMIT).unwrap();
    vm.console().lines()
}

/// Returns the reports in the gateway's log.
fn reports(site: &mut Site) -> Vec<Value> {
    let log = fs::read_to_string(site.gateway().attestation_log()).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["decision"] == "report").collect()
}

/// Verifies that the report is on the console, that its journal says why the boot failed, and that no secret left the node.
#[track_caller]
fn came_home(site: &mut Site, console: &[String], report: &Value, words: &[&str]) {
    let id = report["id"].as_str().unwrap();
    let said = console
        .iter()
        .any(|line| line.contains(&format!("attest-node: reported as {id} to https://")));
    let last = console.len().saturating_sub(60);
    assert!(said, "{:#?}", &console[last..]);
    let shown = site.gateway().command(&["reports", "show", id]).unwrap();
    for word in words {
        assert!(shown.contains(word), "{word:?} is not in {shown}");
    }
    let shown: Value = serde_json::from_str(&site.gateway().command(&["reports", "show", id, "--output", "json"]).unwrap()).unwrap();
    let text = shown.to_string();
    for secret in SECRETS
        .iter()
        .copied()
        .chain([SECRETS[0].trim_start_matches("the-"), "Bearer ticket"])
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    site.gateway().audit(&[]).unwrap();
}

/// A stage of Ignition's fails on a machine that attested.
#[track_caller]
fn check(release: DebianRelease, stage: &str, (storage, ignition): (Value, Value), words: &[&str]) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    add_to_config(site.gateway(), &storage, &ignition);
    site.gateway().start(None).unwrap();
    let console = boot(&mut site, Scenario::EndorsedTpm, release);
    let reports = reports(&mut site);
    let last = console.len().saturating_sub(80);
    let [report] = reports.as_slice() else {
        panic!("{reports:#?}{:#?}", &console[last..])
    };
    let records = site.gateway().records().unwrap();
    let attested = records.iter().find(|record| record.verdict() == "trusted").unwrap();
    assert_eq!(
        (&report["report"]["stage"], &report["report"]["verified"]),
        (&json!(stage), &json!(true)),
        "{report:#}"
    );
    assert_eq!(
        (report["identity"].as_str(), report["report"]["attestation"].as_str()),
        (attested.identity(), attested.text("/id"))
    );
    assert_eq!(report["report"]["unit"], format!("ignition-{stage}.service"));
    came_home(&mut site, &console, report, words);
}

#[test]
fn a_failure_in_disks_comes_home() {
    // The root is there already, and may not be replaced.
    let filesystem = json!({"filesystems": [{"device": "/dev/vda", "format": "xfs", "wipeFilesystem": false, "path": "/var/lib/x"}]});
    check(
        DebianRelease::Bookworm,
        "disks",
        (filesystem, json!({})),
        &["ignition-disks.service", "/dev/vda"],
    );
}

#[test]
fn a_failure_in_files_comes_home() {
    let file = json!({"files": [{"path": "/etc/debian_version", "contents": {"source": "data:,x"}}]});
    check(
        DebianRelease::Trixie,
        "files",
        (file, json!({})),
        &["ignition-files.service", "/etc/debian_version"],
    );
}

#[test]
fn a_failure_in_fetch_comes_home() {
    let merge = json!({"config": {"merge": [{"source": "data:,no-config"}]}});
    check(DebianRelease::Trixie, "fetch", (json!({}), merge), &["ignition-fetch.service"]);
}

/// A gateway that takes no reports: the console says so, and the boot ends as it does without them.
#[test]
fn the_console_says_that_reports_are_off() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    add_to_config(
        site.gateway(),
        &json!({}),
        &json!({"config": {"merge": [{"source": "data:,no-config"}]}}),
    );
    site.gateway().set("reports", "\"off\"").unwrap();
    site.gateway().start(None).unwrap();
    let console = boot(&mut site, Scenario::EndorsedTpm, DebianRelease::Bookworm);
    let said =
        |line: &&String| line.contains("attest-node: not reported: the gateway at https://10.0.2.2:") && line.contains("[reports-off]");
    assert_eq!(console.iter().filter(said).count(), 1, "{console:#?}");
    assert!(reports(&mut site).is_empty());
}

/// The machine is refused, and so is its Ignition: both failures come home, and prove nothing.
#[test]
fn a_failed_attestation_comes_home() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway()
        .edit_pool("nothing = \"pre-approved\"", "nothing = \"refuse\"")
        .unwrap();
    site.gateway().start(None).unwrap();
    let console = boot(&mut site, Scenario::UnendorsedTpm, DebianRelease::Trixie);
    let reports = reports(&mut site);
    let last = console.len().saturating_sub(80);
    assert_eq!(reports.len(), 2, "{reports:#?}{:#?}", &console[last..]);
    let of = |stage: &str| reports.iter().find(|report| report["report"]["stage"] == stage).unwrap();
    let (attestation, fetch) = (of("attest"), of("fetch"));
    let records = site.gateway().records().unwrap();
    let refused = records.iter().find(|record| record.decision() == "challenge").unwrap();
    assert_eq!(attestation["report"]["attestation"].as_str(), refused.text("/id"));
    for (report, stage) in [(attestation, "attest"), (fetch, "fetch")] {
        assert_eq!(
            (&report["report"]["stage"], &report["report"]["verified"]),
            (&json!(stage), &json!(false)),
            "{report:#}"
        );
        assert_eq!(report.get("identity"), None);
    }
    assert_eq!(attestation["report"]["boot"], fetch["report"]["boot"]);
    came_home(&mut site, &console, attestation, &["not attested: ", "ek-not-endorsed"]);
    came_home(&mut site, &console, fetch, &["ignition-fetch.service", "GET result: Forbidden"]);
}
