//! `attest-node try` without a TPM: what it says of pointer config, clock and gateway.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rcgen::date_time_ymd;
use serde_json::{Value, json};

use crate::support::gateway::{By, Gateway, TOKEN};

/// Runs `attest-node try` on a machine without a TPM, in no cloud. Returns the findings.
fn tries(folder: &Path, pointer: &str) -> Value {
    let Output { status, stdout, stderr } = tries_with(folder, pointer, &["--output", "json"]);
    let said = String::from_utf8(stdout).unwrap();
    assert_eq!(status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&stderr));
    assert!(!said.contains(TOKEN), "{said}");
    serde_json::from_str(&said).unwrap()
}

fn tries_with(folder: &Path, pointer: &str, more: &[&str]) -> Output {
    let file = folder.join("pointer.ign");
    fs::write(&file, pointer).unwrap();
    fs::write(
        folder.join("cmdline"),
        format!("ignition.config.url=https://u:{TOKEN}@example/?token={TOKEN}\n"),
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_attest-node"));
    if !more.contains(&"--gateway") {
        command.arg("try").arg("--pointer").arg(&file);
    } else {
        command.arg("try");
    }
    command
        .args(["--deadline", "5", "--tcti"])
        .arg(format!("device:{}", folder.join("no-tpm").display()))
        .arg("--cmdline")
        .arg(folder.join("cmdline"))
        .arg("--dmi")
        .arg(folder.join("no-dmi"))
        .args(more)
        .output()
        .unwrap()
}

/// Returns the codes of the findings that keep the machine out.
fn bad(found: &Value) -> Vec<&str> {
    let all = found["findings"].as_array().unwrap().iter();
    all.filter(|one| one["severity"] == "bad")
        .map(|one| one["code"].as_str().unwrap())
        .collect()
}

#[test]
fn names_a_clock_that_is_behind() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::showing(By::ItsCa, |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2096, 1, 1), date_time_ymd(2097, 1, 1));
    });
    let found = tries(folder.path(), &gateway.pointer());
    assert_eq!(bad(&found), ["tls-not-yet-valid"], "{found}");
    let last = found["findings"].as_array().unwrap().last().unwrap();
    assert!(last["next_step"].as_str().unwrap().contains("set this node's clock"), "{found}");
}

#[test]
fn asks_the_gateway_even_without_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::showing(By::ItsCa, |_| {});
    let found = tries(folder.path(), &gateway.pointer());
    assert_eq!(bad(&found), ["no-accepted-evidence"], "{found}");
    assert!(found["findings"].to_string().contains("answers, and accepts gcp"), "{found}");
    // It asked for nothing but what the gateway takes.
    let told = gateway.told.lock().unwrap();
    assert!(told.iter().all(|(path, _)| !path.contains("challenge")), "{told:?}");
}

/// The next step of the finding that keeps the machine out.
fn last_step(found: &Value) -> &str {
    let last = found["findings"].as_array().unwrap().last().unwrap();
    last["next_step"].as_str().unwrap()
}

#[test]
fn advises_the_firmware_setup_only_without_a_tpm() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::showing(By::ItsCa, |_| {});
    let found = tries(folder.path(), &gateway.pointer());
    assert!(last_step(&found).contains("firmware setup"), "{found}");
    // A file is no TPM: it takes the command, and gives no answer.
    fs::write(folder.path().join("no-tpm"), "").unwrap();
    let found = tries(folder.path(), &gateway.pointer());
    assert_eq!(bad(&found), ["no-accepted-evidence"], "{found}");
    assert!(found.to_string().contains("tpm-failed"), "{found}");
    assert!(!found.to_string().contains("firmware setup"), "{found}");
}

#[test]
fn a_wrong_ca_is_that_of_the_option_or_of_the_pointer_config() {
    let folder = tempfile::tempdir().unwrap();
    let (gateway, other) = (Gateway::showing(By::ItsCa, |_| {}), Gateway::showing(By::ItsCa, |_| {}));
    let (ca, url) = (folder.path().join("ca.crt"), format!("https://127.0.0.1:{}", gateway.port));
    let key = rcgen::KeyPair::generate().unwrap();
    let wrong = rcgen::CertificateParams::new(vec!["other".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    fs::write(&ca, wrong.pem()).unwrap();
    let options = [
        "--gateway",
        &url,
        "--pool",
        "worker",
        "--ca",
        ca.to_str().unwrap(),
        "--output",
        "json",
    ];
    let said: Value = serde_json::from_slice(&tries_with(folder.path(), "{}", &options).stdout).unwrap();
    assert_eq!(bad(&said), ["tls-unknown-ca"], "{said}");
    assert!(last_step(&said).contains(" --ca"), "{said}");
    assert!(!said.to_string().contains("pointer config"), "{said}");
    let pointer = gateway.pointer().replace(&gateway.authority, &other.authority);
    let found = tries(folder.path(), &pointer);
    assert_eq!(bad(&found), ["tls-unknown-ca"], "{found}");
    assert!(last_step(&found).contains("create the pointer config again"), "{found}");
}

#[test]
fn names_what_is_wrong_with_the_pointer_config() {
    let folder = tempfile::tempdir().unwrap();
    for (text, code) in [
        ("", "pointer-malformed"),
        ("{", "pointer-malformed"),
        ("{\"ignition\":{\"version\":\"2.2.0\"}}", "pointer-version"),
        ("{\"ignition\":{\"version\":\"3.1.0\"}}", "pointer-no-ca"),
    ] {
        assert_eq!(bad(&tries(folder.path(), text)), [code], "{text}");
    }
}

#[test]
fn no_output_has_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::showing(By::ItsCa, |_| {});
    let mut planted: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    let (port, bearer) = (gateway.port, format!("Bearer {TOKEN}"));
    let headers = json!([{"name": "Authorization", "value": bearer}, {"name": "X-Other", "value": TOKEN}]);
    planted["ignition"]["config"]["merge"] = json!([
        {"source": format!("https://127.0.0.1:{port}/config/worker?token={TOKEN}&other={TOKEN}#{TOKEN}"), "httpHeaders": headers},
        {"source": format!("https://user:{TOKEN}@127.0.0.1:{port}/config/worker")},
        {"source": format!("https://127.0.0.1:1/config/worker?token={TOKEN}")},
        {"source": format!("data:,{TOKEN}")},
    ]);
    planted["ignition"]["proxy"] = json!({"httpsProxy": format!("http://user:{TOKEN}@127.0.0.1:1"), "noProxy": ["127.0.0.1"]});
    planted["passwd"] = json!({"users": [{"name": "core", "passwordHash": TOKEN}]});
    let planted = planted.to_string();
    let damaged = planted.replacen("\"version\":", "\"version\": SECRETTOKEN", 1);
    assert!(damaged != planted);
    let no_source = planted.replace("/config/worker", "/worker");
    for pointer in [&planted, &damaged, &no_source] {
        for output in [&["--output", "json"][..], &["--output", "text"], &[]] {
            let Output { status, stdout, stderr } = tries_with(folder.path(), pointer, output);
            let said = String::from_utf8([stdout, stderr].concat()).unwrap();
            assert!(status.code() == Some(1) && !said.is_empty() && !said.contains(TOKEN), "{said}");
        }
    }
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, "none").unwrap();
    for url in [
        format!("https://user:{TOKEN}@127.0.0.1:{port}"),
        format!("https://127.0.0.1:{port}?token={TOKEN}"),
        format!("nonsense {TOKEN}"),
    ] {
        let more = [
            "--gateway",
            &url,
            "--pool",
            "worker",
            "--ca",
            ca.to_str().unwrap(),
            "--output",
            "json",
        ];
        let Output { stdout, stderr, .. } = tries_with(folder.path(), "{}", &more);
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert!(said.contains("\"code\": \"config-source\"") && !said.contains(TOKEN), "{said}");
    }
}
