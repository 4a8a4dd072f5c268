#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use attest_ignition::machine_config::appended::{ENCAPSULATED, REPEATING};
use attest_ignition::machine_config::second_stage::OBJECT_LIMIT_BYTES;
use attest_ignition::{Config, data_url};
use attest_log::Earns;
use serde_json::Value;

use super::folder::FileReader;
use super::versions::Conversion;
use super::*;

mod attestation;
mod second_stage;

const CONFIG: &str = r#"{"ignition":{"version":"3.1.0"}}"#;

/// Loads a folder with one pool, changed by `change`.
fn load_with(change: impl FnOnce(&Path)) -> Result<Pool, String> {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("worker");
    for set in ["full", "pre-approved"] {
        fs::create_dir_all(pool.join(set)).unwrap();
        fs::write(pool.join(set).join("config.ign"), CONFIG).unwrap();
    }
    fs::write(pool.join("pool.toml"), SAMPLE).unwrap();
    change(&pool);
    let folders = folders(folder.path()).map_err(|error| error.to_string())?;
    let (name, pool) = folders.pools.first_key_value().unwrap();
    Pool::from_folder(name, FileReader::default().pool(pool).map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

fn load_text(text: &str) -> Result<Pool, String> {
    load_with(|pool| fs::write(pool.join("pool.toml"), text).unwrap())
}

/// Loads a pool with these manifests and no other configs.
fn load_manifests(manifests: &[(&str, &str)]) -> Result<Pool, String> {
    load_with(|pool| {
        fs::remove_dir_all(pool.join("full")).unwrap();
        fs::remove_dir_all(pool.join("pre-approved")).unwrap();
        fs::create_dir(pool.join("machine-configs")).unwrap();
        for (name, text) in manifests {
            fs::write(pool.join("machine-configs").join(name), text).unwrap();
        }
    })
}

fn machine_config(name: &str, role: &str, rest: &str) -> String {
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: {name}\n  labels:\n    \
         machineconfiguration.openshift.io/role: {role}\nspec:\n{rest}\n---\n"
    )
}

fn file(path: &str) -> String {
    format!(
        "  config:\n    ignition: {{version: 3.2.0}}\n    storage:\n      files:\n      - path: {path}\n        contents: {{source: \"data:,x\"}}\n"
    )
}

fn needed(path: &str) -> String {
    format!("  neededBeforeNodeApproved: true\n{}", file(path))
}

fn paths(pool: &Pool, set: ConfigSet, version: SpecVersion) -> Vec<String> {
    let config: Value = serde_json::from_slice(&pool.for_administrator(set).get(version).unwrap().bytes).unwrap();
    assert_eq!(config["ignition"]["version"], version.as_str());
    let files = config["storage"]["files"].as_array().cloned().unwrap_or_default();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn sample_pool_loads() {
    let pool = load_with(|_| ()).unwrap();
    assert_eq!(
        pool.grants,
        Grants {
            attested: Earns::Full,
            token: Earns::Refuse,
            kubelet: Earns::Refuse,
            nothing: Earns::PreApproved
        }
    );
    assert!(pool.policy.selection().unwrap().pcrs().iter().copied().eq((0..8).chain([13])));
    assert_eq!(pool.endorsement, Endorsement::Allowlist);
    assert_eq!(
        (pool.warnings(false, true).len(), pool.warnings(true, true).len()),
        (3, 3),
        "{:?}",
        pool.warnings(true, true)
    );
}

/// In an attacker's own machine, a TPM has any PCR values: `pool.toml` cannot change who can have such a TPM.
#[test]
fn attack_32_warns_if_endorsement_trusts_any_tpm_of_manufacturer() {
    let allowlist = "endorsement = \"allowlist\"";
    let checked = [(
        "\"0-7\" = \"not checked\"",
        format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "ab".repeat(32)),
    )];
    let loaded = |word: &str, edits: &[(&str, String)]| {
        load_with(|pool| {
            let file = pool.join("pool.toml");
            let mut text = fs::read_to_string(&file).unwrap().replace(allowlist, word);
            for (from, to) in edits {
                assert!(text.contains(from), "{text}");
                text = text.replace(from, to);
            }
            fs::write(&file, text).unwrap();
        })
    };
    let says = |word: &str, edits: &[(&str, String)], part: &str| {
        let warnings = loaded(word, edits).unwrap().warnings(true, true);
        warnings.iter().filter(|warning| warning.contains(part)).count()
    };
    let (word, bought) = ("endorsement = \"any-tpm-of-a-trusted-maker\"", "any TPM of a manufacturer");
    assert_eq!(says(word, &[], bought), 1);
    assert_eq!(says(word, &checked, bought), 1, "naming a PCR does not end the warning");
    assert_eq!(says(allowlist, &checked, bought), 0);
    assert!(
        !loaded(word, &[])
            .unwrap()
            .warnings(false, true)
            .iter()
            .any(|warning| warning.contains(bought)),
        "no maker, no TPM"
    );
    // Who says nothing takes no maker's word, and hears so.
    assert_eq!(loaded("", &[]).unwrap().endorsement, Endorsement::Allowlist);
    assert_eq!(says("", &[], "does not set tpm.endorsement"), 1);
    assert_eq!(says(allowlist, &[], "does not set tpm.endorsement"), 0);
    // The word of earlier releases is no word any more.
    let told = loaded("endorsement = \"any\"", &[]).unwrap_err();
    for word in ["\"allowlist\"", "\"gcp-instance\"", "\"any-tpm-of-a-trusted-maker\""] {
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn merges_plain_configs_by_name_over_pre_approved() {
    let config = |files: &str| format!(r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{files}]}}}}"#);
    let pool = load_with(|pool| {
        fs::write(
            pool.join("pre-approved/config.ign"),
            config(r#"{"path":"/p","mode":384},{"path":"/a"}"#),
        )
        .unwrap();
        fs::write(pool.join("full/b.ign"), config(r#"{"path":"/p","mode":420},{"path":"/b"}"#)).unwrap();
        fs::write(pool.join("full/a.ign"), config(r#"{"path":"/p","mode":256},{"path":"/c"}"#)).unwrap();
        // Editors' files are nobody's.
        fs::write(pool.join("full/.a.ign.swp"), "x").unwrap();
        fs::write(pool.join("full/a.ign~"), "x").unwrap();
    })
    .unwrap();
    assert_eq!(paths(&pool, ConfigSet::PreApproved, SpecVersion::V3_4), ["/p", "/a"]);
    assert_eq!(paths(&pool, ConfigSet::Full, SpecVersion::V3_4), ["/p", "/a", "/c", "/b"]);
    let full: Value = serde_json::from_slice(&pool.full.get(SpecVersion::V3_4).unwrap().bytes).unwrap();
    assert_eq!(full["storage"]["files"][0]["mode"], 420);
}

#[test]
fn config_is_rendered_once_per_version() {
    let pool = load_with(|_| ()).unwrap();
    let first = pool.full.get(SpecVersion::V3_4).unwrap().bytes.clone();
    let again = pool.full.get(SpecVersion::V3_4).unwrap().bytes.clone();
    assert_eq!(first.as_ptr(), again.as_ptr());
}

#[test]
fn configuration_snapshot_holds_digests_of_newest_version() {
    let check = |pool: &Pool| {
        let standing = pool.configuration_snapshot();
        for (set, name) in [(ConfigSet::PreApproved, "pre_approved"), (ConfigSet::Full, "full")] {
            let versions = pool.for_administrator(set);
            let served = versions.get(SpecVersion::NEWEST).unwrap();
            assert_eq!(standing[name], served.sha256, "{name}");
            let complete = versions.complete().unwrap().express(SpecVersion::NEWEST).unwrap();
            assert_eq!(served.bytes, complete, "{name}");
        }
    };
    check(&load_with(|_| ()).unwrap());
    // An argument that reads as the file whose contents are filled in.
    let quoted = format!(
        r#"{{"contents":{{"source":"data:,"}},"mode":420,"overwrite":true,"path":"{}"}}"#,
        REPEATING[0]
    );
    let arguments = format!(
        "  kernelArguments: [a, b]\n  config:\n    ignition: {{version: 3.4.0}}\n    kernelArguments: {{shouldExist: [c, '{quoted}']}}\n"
    );
    let text = [
        machine_config("00-worker", "worker", &needed("/worker")),
        machine_config("90-worker", "worker", &arguments),
        machine_config("99-worker", "worker", &file("/secret")),
    ]
    .concat();
    let pool = load_manifests(&[("all.yaml", &text)]).unwrap();
    check(&pool);
    // With a plain config over it, which its MachineConfig does not have.
    let plain = r#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/plain","contents":{"source":"data:,x"}}]}}"#;
    let with_plain = load_with(|pool| {
        fs::remove_dir_all(pool.join("full")).unwrap();
        fs::write(pool.join("pre-approved/config.ign"), plain).unwrap();
        fs::create_dir(pool.join("machine-configs")).unwrap();
        fs::write(pool.join("machine-configs/all.yaml"), &text).unwrap();
    });
    let with_plain = with_plain.unwrap();
    check(&with_plain);
    for set in [ConfigSet::PreApproved, ConfigSet::Full] {
        let contents = |pool: &Pool| {
            let config: Value = serde_json::from_slice(&pool.for_administrator(set).get(SpecVersion::V3_5).unwrap().bytes).unwrap();
            let files = config["storage"]["files"].as_array().unwrap();
            assert_eq!(files.iter().any(|file| file["path"] == "/plain"), std::ptr::eq(pool, &with_plain));
            let content = files.iter().find(|file| file["path"] == REPEATING[0]).unwrap();
            data_url::decode(content["contents"]["source"].as_str().unwrap()).unwrap()
        };
        // What the MachineConfig says is the same, whatever is merged over it.
        let said = contents(&pool);
        assert_eq!(contents(&with_plain), said);
        let said: Value = serde_json::from_slice(&said).unwrap();
        assert_eq!(said["spec"]["config"]["storage"]["files"][0]["path"], "/worker");
        assert_eq!(said["spec"]["config"]["ignition"]["version"], "3.5.0");
    }
}

#[test]
fn downgraded_upstream_config_keeps_its_kernel_arguments() {
    let machine_config = data_url::encode(br#"{"spec":{"kernelArguments":["old"],"config":{"ignition":{"version":"3.5.0"}}}}"#);
    let given = format!(
        r#"{{"ignition":{{"version":"3.5.0"}},"kernelArguments":{{"shouldExist":["new"]}},"storage":{{"files":[{{"path":"{ENCAPSULATED}","contents":{{"source":"{machine_config}"}}}}]}}}}"#
    );
    let given = bytes::Bytes::from(given);
    let kind = Conversion::Given(BTreeMap::from([(SpecVersion::V3_5, given.clone())]));
    let versions = versions::unshared(Config::parse(&given).unwrap(), kind);
    assert_eq!(versions.get(SpecVersion::V3_5).unwrap().bytes, given);
    let check = |version: SpecVersion, arguments: &[&str], own: &[&str]| {
        let config: Value = serde_json::from_slice(&versions.get(version).unwrap().bytes).unwrap();
        let source = config["storage"]["files"][0]["contents"]["source"].as_str().unwrap();
        let encapsulated: Value = serde_json::from_slice(&data_url::decode(source).unwrap()).unwrap();
        assert_eq!(encapsulated["spec"]["kernelArguments"], serde_json::json!(arguments), "{version}");
        let expected = if version > SpecVersion::V3_5 { SpecVersion::V3_5 } else { version };
        assert_eq!(encapsulated["spec"]["config"]["ignition"]["version"], expected.as_str());
        let ignitions = config["kernelArguments"]["shouldExist"].as_array().cloned().unwrap_or_default();
        assert_eq!(ignitions, own, "{version}");
    };
    check(SpecVersion::V2_2, &["old", "new"], &[]);
    check(SpecVersion::V3_2, &["old", "new"], &[]);
    check(SpecVersion::V3_4, &["old"], &["new"]);
    // A daemon of that server's age may not know a newer version.
    check(SpecVersion::V3_6, &["old"], &["new"]);
}

#[test]
fn pool_serves_role_configs_and_appended_files() {
    let text = [
        machine_config("00-worker", "worker", &needed("/worker")),
        machine_config("50-master", "master", &file("/master")),
        machine_config("99-worker", "worker", &file("/secret")),
    ]
    .concat();
    let pool = load_manifests(&[("all.yaml", &text)]).unwrap();
    let [content, encapsulated] = REPEATING;
    assert_eq!(
        paths(&pool, ConfigSet::PreApproved, SpecVersion::V3_5),
        ["/worker", content, encapsulated]
    );
    let annotations = "/etc/machine-config-daemon/node-annotations.json";
    assert_eq!(
        paths(&pool, ConfigSet::Full, SpecVersion::V3_5),
        ["/worker", "/secret", annotations, content, encapsulated]
    );
    // What is added to the pre-approved config says nothing of the rest.
    let pre_approved = String::from_utf8(pool.pre_approved.get(SpecVersion::V3_5).unwrap().bytes.to_vec()).unwrap();
    assert!(!pre_approved.contains("secret"), "{pre_approved}");
}

#[test]
fn secrets_under_appended_file_names_are_found() {
    let [content, _] = REPEATING;
    let secret = format!("data:,{}%20PRIVATE%20KEY-----", "-----BEGIN");
    let config = format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"{content}","contents":{{"source":"{secret}"}}}}]}}}}"#
    );
    let error = load_with(|pool| fs::write(pool.join("pre-approved/config.ign"), config).unwrap()).unwrap_err();
    assert!(error.contains(&format!("private-key {content}")), "{error}");
}

#[test]
fn rejects_a_pool_without_configs() {
    let unmarked = machine_config("00-worker", "worker", &file("/a"));
    assert!(
        load_manifests(&[("a.yaml", &unmarked)])
            .unwrap_err()
            .contains("neededBeforeNodeApproved")
    );
    assert!(load_manifests(&[]).unwrap_err().contains("nothing to serve"));
    let master = machine_config("00-master", "master", &needed("/a"));
    assert!(load_manifests(&[("a.yaml", &master)]).unwrap_err().contains("nothing to serve"));
    // A pool that gives its pre-approved config to nobody needs none.
    let pool = load_with(|pool| {
        fs::remove_dir_all(pool.join("pre-approved")).unwrap();
        let text = SAMPLE.replace("nothing = \"pre-approved\"", "nothing = \"refuse\"");
        fs::write(pool.join("pool.toml"), text).unwrap();
    });
    pool.unwrap();
}

#[test]
fn pool_errors_name_the_problem() {
    let pcrs = |pcrs: &str| load_text(&format!("[grants]\n[tpm]\n[tpm.pcrs]\n{pcrs}")).unwrap_err();
    let others = "\"1-7\" = \"not checked\"\n";
    assert!(pcrs("").contains("PCR 0 is not named"));
    assert!(pcrs("\"0-6\" = \"not checked\"").contains("PCR 7 is not named"));
    assert!(pcrs("\"0-16\" = \"not checked\"").contains("PCR 16 can be reset"));
    assert!(pcrs("\"0-7\" = \"not checked\"\n7 = \"not checked\"").contains("PCR 7 is named twice"));
    assert!(pcrs("\"7-0\" = \"not checked\"").contains("nor a range"));
    assert!(pcrs(&format!("{others}0 = []")).contains("accepts no value"));
    assert!(pcrs(&format!("{others}0 = \"unchecked\"")).contains("not checked"));
    assert!(pcrs(&format!("{others}0 = [\"abcd\"]")).contains("expected"));
    assert!(pcrs(&format!("{others}0 = [\"{}\"]", "ab".repeat(48))).contains("48 bytes"));
    assert!(pcrs(&format!("\"0-7\" = [\"{}\"]", "ab".repeat(32))).contains("cannot share"));
    let toml = |before: &str| load_text(&format!("{before}\n[tpm.pcrs]\n\"0-7\" = \"not checked\""));
    assert!(toml("[grants]\nnothing = \"all\"").unwrap_err().contains("line 2"));
    assert!(toml("[grants]\n[tpm]\nbank = \"sha1\"").unwrap_err().contains("sha1"));
    assert!(toml("[grants]\n[tpm]\nendorsement = \"none\"").unwrap_err().contains("line 3"));
    assert!(
        toml("[grants]\n[source]\nmachine_config = \"a\"")
            .unwrap_err()
            .contains("machine_config")
    );
    assert!(
        toml("[grants]\n[pre_approved]\nacknowledge = []")
            .unwrap_err()
            .contains("acknowledge")
    );
    assert!(load_text("[grant]\n").unwrap_err().contains("grant"));
    assert!(toml("[grants]").is_ok());
}

#[test]
fn bad_files_are_named() {
    let bad = |change: &dyn Fn(&Path), expected: &str| {
        let error = load_with(change).unwrap_err();
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    };
    bad(
        &|pool| fs::remove_dir_all(pool.join("full")).unwrap(),
        "nothing to serve as its full config",
    );
    bad(&|pool| fs::write(pool.join("full/b.json"), CONFIG).unwrap(), "full/b.json");
    bad(
        &|pool| fs::write(pool.join("pre-approved/config.ign"), "").unwrap(),
        "pre-approved/config.ign",
    );
    bad(&|pool| fs::write(pool.join("full/config.ign"), "{").unwrap(), "full/config.ign");
    bad(&|pool| fs::remove_file(pool.join("pool.toml")).unwrap(), "pool.toml");
    bad(&|pool| fs::rename(pool, pool.with_file_name("Worker")).unwrap(), "Worker");
    bad(&|pool| fs::remove_dir_all(pool).unwrap(), "no pools");
    bad(&|pool| fs::create_dir(pool.join("full/sub")).unwrap(), "full/sub");
    bad(
        &|pool| std::os::unix::fs::symlink("loop.ign", pool.join("full/loop.ign")).unwrap(),
        "full/loop.ign",
    );
    bad(
        &|pool| std::os::unix::fs::symlink(".", pool.join("full/self.ign")).unwrap(),
        "full/self.ign",
    );
    bad(
        &|pool| fs::File::create(pool.join("full/large.ign")).unwrap().set_len(50 << 20).unwrap(),
        "full/large.ign: 52428800 bytes, at most 16777216 are read",
    );
    bad(&|pool| fs::write(pool.join("pool.toml"), [0xff]).unwrap(), "not UTF-8");
}
