//! Commands, as an administrator runs them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{Gateway, POOL, digest, program, tpm};
use serde_json::Value;

fn refused(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = gateway.try_command(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn init_creates_a_valid_gateway_and_overwrites_nothing() {
    let gateway = Gateway::init();
    let report = gateway.command(&["check"]);
    assert!(report.contains("worker") && report.contains("localhost"), "{report}");
    assert!(report.contains("accepts any measured boot"), "{report}");
    let key = fs::read(gateway.path("tls/mcs-ca.key")).unwrap();
    let again = program().arg("init").arg(gateway.path("")).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(fs::read(gateway.path("tls/mcs-ca.key")).unwrap(), key);
    assert_ne!(gateway.rendered(POOL, "full"), gateway.rendered(POOL, "pre-approved"));
}

#[test]
fn failed_init_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, elsewhere) = (folder.path().join("gw"), folder.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    let key = elsewhere.join("ca.key");
    let init = |more: &[&str]| {
        let output = program()
            .arg("init")
            .arg(&dir)
            .args(["--host", "localhost", "--ca-key-out"])
            .arg(&key)
            .args(more)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let names = |folder: &std::path::Path| -> Vec<_> { fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    // The certificate cannot be written once the CA's key is: a folder is in its place.
    let obstacle = dir.join("tls/.mcs.crt.part");
    fs::create_dir_all(&obstacle).unwrap();
    let (made, said) = init(&[]);
    assert!(!made && said.contains("mcs.crt"), "{said}");
    assert!(names(&elsewhere).is_empty(), "{:?}", names(&elsewhere));
    assert_eq!((names(&dir).len(), names(&dir.join("tls")).len()), (1, 1));
    fs::remove_dir_all(&dir).unwrap();
    // Nor is anything left if nothing was there.
    let other = fs::read(program().get_program()).map(|_| folder.path().join("none.crt")).unwrap();
    let refused = program()
        .arg("init")
        .arg(&dir)
        .arg("--ca")
        .arg(&other)
        .arg("--ca-key")
        .arg(&key)
        .output()
        .unwrap();
    assert!(!refused.status.success() && !dir.exists());
    // What somebody has there is neither overwritten nor removed, and named.
    fs::create_dir_all(dir.join("pools/worker")).unwrap();
    fs::write(dir.join("pools/worker/pool.toml"), "mine").unwrap();
    let (made, said) = init(&[]);
    assert!(!made && said.contains("pool.toml exists"), "{said}");
    assert_eq!(fs::read(dir.join("pools/worker/pool.toml")).unwrap(), b"mine");
    assert!(names(&elsewhere).is_empty());
    fs::remove_dir_all(&dir).unwrap();
    let (made, said) = init(&[]);
    assert!(made, "{said}");
    assert!(key.exists() && dir.join("gateway.toml").exists());
}

#[test]
fn check_reports_broken_settings_and_files() {
    let broken = |change: &dyn Fn(&Gateway), expected: &str| {
        let gateway = Gateway::init();
        // With another one beside it, a broken pool is no reason not to serve.
        fs::remove_dir_all(gateway.path("pools/infra")).unwrap();
        change(&gateway);
        let said = refused(&gateway, &["check"]);
        assert!(said.contains(expected), "{expected:?} is not in:\n{said}");
    };
    broken(&|gateway| gateway.settings("unknown = 1"), "unknown");
    broken(&|gateway| gateway.settings("[limits]\nrequests = 0"), "requests");
    broken(
        &|gateway| fs::write(gateway.path("pools/worker/full/config.ign"), "").unwrap(),
        "full/config.ign",
    );
    broken(&|gateway| fs::remove_dir_all(gateway.path("pools/worker/full")).unwrap(), "full");
    broken(&|gateway| gateway.edit_pool(POOL, "\"0-7\"", "\"0-6\""), "PCR 7");
    broken(&|gateway| fs::remove_file(gateway.path("tls/mcs.key")).unwrap(), "mcs.key");
    broken(
        &|gateway| fs::write(gateway.path("state/gateway.db"), [b'x'; 4096]).unwrap(),
        "gateway.db",
    );
    broken(
        &|gateway| fs::set_permissions(gateway.path("tls/mcs.key"), fs::Permissions::from_mode(0o644)).unwrap(),
        "mcs.key",
    );
    broken(
        &|gateway| {
            let other = Gateway::init();
            fs::copy(other.path("tls/mcs.key"), gateway.path("tls/mcs.key")).unwrap();
        },
        "mcs.key",
    );
    // A certificate that nodes, who trust the CA in the pointer only, would refuse.
    broken(
        &|gateway| {
            let other = Gateway::init();
            fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("tls/mcs-ca.crt")).unwrap();
        },
        "mcs.crt",
    );
}

#[test]
fn check_warns_about_overly_permissive_grants() {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"full\"");
    fs::copy(
        gateway.path("pools/infra/full/config.ign"),
        gateway.path("pools/infra/pre-approved/config.ign"),
    )
    .unwrap();
    let report = gateway.command(&["check"]);
    assert!(report.contains("gives its full config to unauthenticated clients"), "{report}");
    assert!(report.contains("pool infra: full and pre-approved config are the same"), "{report}");
}

#[test]
fn config_diff_and_render_match_the_served_configs() {
    let gateway = Gateway::init();
    let diff = gateway.command(&["config", "diff", "--pool", POOL]);
    let rows: Vec<Vec<&str>> = diff
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[1], ["file", "/etc/attest-gateway/full", "only full", "5"], "{diff}");
    assert_eq!(rows.len(), 2, "{diff}");
    let object = |name: &str, rest: &str| {
        format!(
            "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {{name: {name}, labels: {{machineconfiguration.openshift.io/role: worker}}}}\nspec: {{{rest}}}\n"
        )
    };
    let unit = "config: {ignition: {version: 3.2.0}, systemd: {units: [{name: a.service, enabled: true}]}}";
    let text = object("00-a", &format!("neededBeforeNodeApproved: true, {unit}"))
        + &object("99-b", "kernelArguments: [nosmt], fips: true, extensions: [usbguard]");
    gateway.machine_configs(POOL, &[("all.yaml", &text)]);
    let diff = gateway.command(&["config", "diff", "--pool", POOL]);
    for row in ["kernel argument", "nosmt", "FIPS", "usbguard", "changed by full"] {
        assert!(diff.contains(row), "{row} is not in:\n{diff}");
    }
    assert!(!diff.contains("a.service"), "{diff}");
    let rendered = |spec: &str| -> Value {
        serde_json::from_str(&gateway.command(&["config", "render", "--pool", POOL, "--set", "full", "--spec", spec])).unwrap()
    };
    for spec in ["2.2.0", "3.0.0", "3.6.0"] {
        assert_eq!(rendered(spec)["ignition"]["version"], spec);
    }
    assert!(refused(&gateway, &["config", "render", "--pool", "nowhere", "--set", "full"]).contains("pools: infra, worker"));
    assert_eq!(
        gateway
            .try_command(&["config", "render", "--pool", POOL, "--set", "full", "--spec", "3.7.0"])
            .status
            .code(),
        Some(2)
    );
    fs::write(gateway.path("pools/worker/machine-configs/all.yaml"), "a: [").unwrap();
    for command in [["config", "render", "--set", "full"].as_slice(), &["config", "diff"]] {
        assert!(refused(&gateway, &[command, &["--pool", POOL]].concat()).contains("all.yaml:1"));
    }
}

#[test]
fn pointer_names_the_gateway_its_ca_and_the_token() {
    let gateway = Gateway::init();
    let pointer = |arguments: &[&str]| -> Value {
        serde_json::from_str(&gateway.command(&[&["pointer", "create", "--pool", POOL], arguments].concat())).unwrap()
    };
    let plain = pointer(&[]);
    // What follows tells the gateway which CAs the pointer carries.
    let source = |pointer: &Value| {
        let source = pointer.pointer("/ignition/config/merge/0/source").unwrap().as_str().unwrap();
        source.split_once("?ca=").unwrap().0.to_owned()
    };
    assert_eq!(
        source(&plain),
        format!("https://localhost:{}/config/worker", gateway.address().port())
    );
    assert_eq!(plain.pointer("/ignition/version").unwrap(), "3.1.0");
    assert!(plain.pointer("/ignition/config/merge/0/httpHeaders").is_none());
    let ca = plain
        .pointer("/ignition/security/tls/certificateAuthorities/0/source")
        .unwrap()
        .as_str()
        .unwrap();
    let ca = data_encoding::BASE64.decode(ca.split_once(',').unwrap().1.as_bytes()).unwrap();
    assert_eq!(ca, fs::read(gateway.path("tls/mcs-ca.crt")).unwrap());
    let with_token = pointer(&["--token", "abc", "--url", "https://10.0.2.2:8443"]);
    assert_eq!(source(&with_token), "https://10.0.2.2:8443/config/worker");
    assert_eq!(
        with_token.pointer("/ignition/config/merge/0/httpHeaders/0/value").unwrap(),
        "Bearer abc"
    );
    // Tokens are base64url: any of its characters may come first.
    let hyphen = pointer(&["--token", "-3BuGctX"]);
    assert_eq!(
        hyphen.pointer("/ignition/config/merge/0/httpHeaders/0/value").unwrap(),
        "Bearer -3BuGctX"
    );
    assert!(refused(&gateway, &["pointer", "create", "--pool", "nowhere"]).contains("nowhere"));
    assert!(refused(&gateway, &["pointer", "create", "--pool", POOL, "--url", "http://a"]).contains("https"));
}

#[test]
fn tokens_are_shown_once_and_kept_as_a_hash() {
    let gateway = Gateway::init();
    let output = gateway.command(&["token", "create", "--pool", POOL, "--name", "rack-4", "--uses", "1", "--ttl", "2h"]);
    let token = output.trim();
    assert_eq!((token.len(), output.lines().count()), (43, 1), "{output}");
    let database = fs::read(gateway.path("state/gateway.db")).unwrap();
    let wal = fs::read(gateway.path("state/gateway.db-wal")).unwrap_or_default();
    assert!(![database, wal].concat().windows(43).any(|window| window == token.as_bytes()));
    let list = gateway.command(&["token", "list"]);
    assert!(list.contains("rack-4") && list.contains(POOL) && !list.contains(token), "{list}");
    assert!(refused(&gateway, &["token", "create", "--pool", "nowhere"]).contains("nowhere"));
    assert!(refused(&gateway, &["token", "revoke", "unknown"]).contains("unknown"));
    assert_eq!(
        gateway
            .try_command(&["token", "create", "--pool", POOL, "--uses", "0"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        gateway
            .try_command(&["token", "create", "--pool", POOL, "--ttl", "soon"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn ek_add_takes_digest_certificate_or_public_area() {
    let gateway = Gateway::init();
    let (case, other) = (tpm(), tpm());
    let file = gateway.path("ek.pub");
    fs::write(&file, case.ek_area.to_bytes()).unwrap();
    gateway.command(&["ek", "add", "--public", &file.display().to_string(), "--name", "worker-0"]);
    let digest_of_other = digest(&other);
    gateway.command(&["ek", "add", &digest_of_other.to_uppercase()]);
    let list = gateway.command(&["machines", "list"]);
    assert!(
        list.contains(&digest(&case)) && list.contains("worker-0") && list.contains(&digest_of_other),
        "{list}"
    );
    gateway.command(&["ek", "remove", &digest_of_other]);
    assert!(gateway.command(&["machines", "show", &digest_of_other]).contains(", removed at 20"));
    assert!(refused(&gateway, &["ek", "remove", &digest_of_other]).contains(&digest_of_other));
    gateway.command(&["ek", "remove", "--leave-to-roots", &digest_of_other]);
    assert!(!gateway.command(&["machines", "list"]).contains(&digest_of_other));
    assert!(refused(&gateway, &["ek", "remove", &digest_of_other]).contains(&digest_of_other));
    assert!(refused(&gateway, &["node", "forget", "worker-9"]).contains("worker-9"));
    assert_eq!(gateway.try_command(&["ek", "add"]).status.code(), Some(2));
    assert_eq!(gateway.try_command(&["ek", "add", "abc"]).status.code(), Some(2));
}

#[test]
fn completes_an_identifier_from_its_beginning() {
    let gateway = Gateway::init();
    let (one, other) = ("0a".repeat(32), format!("0a0a0a0a{}", "0b".repeat(28)));
    gateway.command(&["ek", "add", &one]);
    let revoked = gateway.command(&["node", "revoke", "0a0a0a0a"]);
    assert!(revoked.contains(&format!("tpm:{one}")), "{revoked}");
    gateway.command(&["node", "restore", "tpm:0a0a0a0a"]);
    gateway.command(&["ek", "add", &other]);
    assert!(refused(&gateway, &["ek", "remove", "0a0a0a0a"]).contains("give more characters"));
    assert!(refused(&gateway, &["node", "revoke", "0a0a0a0a"]).contains("give more characters"));
    gateway.command(&["ek", "remove", "0a0a0a0a0b"]);
    let is_removed = |ek: &str| gateway.command(&["machines", "show", ek]).contains(", removed at 20");
    assert!(is_removed(&other) && !is_removed(&one));
    // A revoked name stays a name, although a TPM begins so.
    gateway.command(&["node", "revoke", "cafecafe", "--anyway"]);
    gateway.command(&["ek", "add", &"cafe".repeat(16)]);
    assert!(gateway.command(&["node", "restore", "cafecafe"]).contains("restored: cafecafe"));
    // A name is whole.
    gateway.command(&["ek", "add", &one, "--name", "worker-10", "--replace"]);
    assert!(refused(&gateway, &["node", "forget", "worker-1"]).contains("no node is named"));
    assert!(refused(&gateway, &["node", "revoke", "worker-1"]).contains("--anyway"));
}

#[test]
fn errors_say_what_to_do_next() {
    let gateway = Gateway::init();
    let path = |name: &str| gateway.path(name).display().to_string();
    let (there, none, der) = (path("there"), path("none/x"), path("der"));
    fs::write(&there, "").unwrap();
    fs::write(&der, [0x30, 0x82, 0xff, 0xfe]).unwrap();
    gateway.settings("[store]\nkey_file = \"store.key\"");
    gateway.command(&["store", "create-key"]);
    let refused = |arguments: &[&str], expected: &str| {
        // A command that is advised names the settings in use.
        let config = format!("--config {} ", path("gateway.toml"));
        let said = refused(&gateway, arguments).replace(&config, "");
        assert!(said.contains(expected) && !said.contains("os error 17"), "{arguments:?}: {said}");
    };
    refused(&["store", "create-key"], "store create-key --rotate");
    gateway.settings("");
    refused(&["log", "show-key"], "the gateway creates it at its first start");
    refused(&["seal", "rotate"], "the gateway creates it at its first start");
    refused(&["log", "show"], "serve` creates it");
    refused(&["token", "revoke", "x"], "token list");
    refused(&["token", "rotate", "x"], "token list");
    refused(&["node", "forget", "x"], "machines list");
    refused(&["backup", &there], "was not changed: name another file");
    assert_eq!(fs::read(&there).unwrap(), b"", "nothing is overwritten");
    refused(&["ca", "create", "--out", &there, "--key-out", &path("k")], "name another file");
    refused(&["ca", "create", "--out", &path("c"), "--key-out", &there], "name another file");
    refused(
        &["ca", "create", "--out", &path("c"), "--key-out", &path("c")],
        "name a separate file",
    );
    assert!(!gateway.path("c").exists() && !gateway.path("k").exists());
    fs::write(gateway.path("state/attestation.jsonl"), "").unwrap();
    refused(&["log", "export", "--out", &none], "No such file");
    fs::write(path("export.part"), "").unwrap();
    refused(
        &["log", "export", "--out", &path("export")],
        "was interrupted; if no command is running, remove it",
    );
    refused(&["certificate", "renew", "--certificate", &der, "--key", &der], "-inform der");
}

#[test]
fn every_help_shows_an_example() {
    for command in [
        "init",
        "serve",
        "pointer create",
        "pointer inspect",
        "config render",
        "config diff",
        "certificate list",
        "token create",
        "token rotate",
        "token list",
        "token revoke",
        "ek add",
        "machines list",
        "node forget",
        "node forget-history",
        "node release",
        "waiting list",
        "waiting accept",
        "waiting refuse",
        "check",
    ] {
        let output = program().args(command.split(' ')).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains(&format!("attest-gateway {command}")), "{command}:\n{help}");
    }
}
