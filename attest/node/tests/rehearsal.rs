//! `attest-node try` without a TPM: what it says of pointer config, clock and gateway.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rcgen::date_time_ymd;
use serde_json::Value;

use crate::support::gateway::{By, Gateway, TOKEN};

/// Runs `attest-node try` on a machine without a TPM, in no cloud. Returns the findings.
fn tries(folder: &Path, pointer: &str) -> Value {
    let file = folder.join("pointer.ign");
    fs::write(&file, pointer).unwrap();
    fs::write(folder.join("cmdline"), "quiet\n").unwrap();
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .args(["try", "--output", "json", "--deadline", "5", "--tcti"])
        .arg(format!("device:{}", folder.join("no-tpm").display()))
        .arg("--pointer")
        .arg(&file)
        .arg("--cmdline")
        .arg(folder.join("cmdline"))
        .arg("--dmi")
        .arg(folder.join("no-dmi"))
        .output()
        .unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert_eq!(status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&stderr));
    assert!(!said.contains(TOKEN), "{said}");
    serde_json::from_str(&said).unwrap()
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
