//! The program as a boot sees it, where no TPM and no gateway are needed: exit code and the one line on stderr.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = r#"{"source":"https://127.0.0.1:1/config/worker"}"#;

/// No cloud, wherever this runs: no DMI tables, and nobody where the metadata server would be.
const NOWHERE: [&str; 6] = ["--dmi", "no-dmi", "--metadata", "http://127.0.0.1:1", "--state", "state"];

fn pointer(version: &str, source: &str, authorities: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"{version}","config":{{"merge":[{source}]}},"security":{{"tls":{{"certificateAuthorities":[{authorities}]}}}}}}}}"#
    )
}

fn authority() -> String {
    let pem = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
    format!(r#"{{"source":"data:;base64,{}"}}"#, data_encoding::BASE64.encode(pem.as_bytes()))
}

fn run(folder: &Path, cmdline: &str, arguments: &[&str]) -> Output {
    fs::write(folder.join("cmdline"), cmdline).unwrap();
    Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .args([
            "--cmdline",
            "cmdline",
            "--pointer",
            "pointer.ign",
            "--output",
            "out/user.ign",
            "--tcti",
            "device:/dev/no-such-tpm",
            "--deadline",
            "20",
        ])
        .args(NOWHERE)
        .args(arguments)
        .output()
        .unwrap()
}

/// The one line must hold all of `said`, and nothing may have been written.
fn check(pointer: &str, cmdline: &str, arguments: &[&str], code: i32, said: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), pointer).unwrap();
    let output = run(folder.path(), cmdline, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in said {
        assert!(stderr.contains(part), "{part:?} is missing in {stderr:?}");
    }
    assert!(!folder.path().join("out").exists());
    assert_eq!(fs::read_to_string(folder.path().join("pointer.ign")).unwrap(), pointer);
}

#[test]
fn there_may_be_nothing_to_do() {
    let good = pointer("3.2.0", SOURCE, &authority());
    check(
        &good,
        "ignition.config.url=https://a/b",
        &[],
        0,
        &["nothing to do", "ignition.config.url is on the kernel command line"],
    );
    check(&pointer("3.2.0", "", ""), "", &[], 0, &["nothing to do", "/config/<pool>"]);
    // A machine without a TPM that was given a token is meant to have none.
    let with_token = pointer(
        "3.2.0",
        &SOURCE.replace("/config/worker", "/config/worker?token=SECRET"),
        &authority(),
    );
    check(
        &with_token,
        "",
        &[],
        0,
        &["nothing to do", "no TPM 2.0", "has a provisioning token"],
    );
    check(
        &pointer("3.2.0", r#"{"source":"https://a/base.ign"}"#, ""),
        "",
        &[],
        0,
        &["nothing to do"],
    );
}

#[test]
fn failures_are_one_line_with_code_and_next_step() {
    let unchanged = "; the pointer config is unchanged";
    let ca = authority();
    check(
        &pointer("3.2.0", SOURCE, &ca),
        "",
        &[],
        1,
        &["no TPM 2.0", "[tpm-absent]; next: ", unchanged],
    );
    check(
        &pointer("2.2.0", SOURCE, &ca),
        "",
        &[],
        1,
        &["version \"2.2.0\"", "[pointer-version]; next: ", unchanged],
    );
    check(
        &pointer("3.2.0", SOURCE, ""),
        "",
        &[],
        1,
        &["no CA", "[pointer-no-ca]; next: ", unchanged],
    );
    check(
        &pointer("3.2.0", SOURCE, r#"{"source":"data:,x"}"#),
        "",
        &[],
        1,
        &["[pointer-ca]; next: ", unchanged],
    );
    check("not JSON", "", &[], 1, &["[pointer-malformed]; next: ", unchanged]);
}

#[test]
fn a_missing_pointer_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("looked at pointer.ign [pointer-not-found]")
    );
}

#[test]
fn wrong_usage_is_2() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [
        ["--ak", "rsa-1024"],
        ["--ek", "dsa"],
        ["--deadline", "0"],
        ["--metadata", "https://a"],
        ["--no-such", "x"],
    ] {
        assert_eq!(run(folder.path(), "", &wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// `attest-node config`, in a folder with this pointer and this kubelet's file: exit code 1, one line, and nothing written.
fn check_config(pointer: &str, kubelet: Option<&str>, arguments: &[&str], said: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), pointer).unwrap();
    if let Some(kubelet) = kubelet {
        fs::write(folder.path().join("kubelet.pem"), kubelet).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args(["config", "--pointer", "pointer.ign", "--certificate", "kubelet.pem"])
        .args(["--output", "full.ign", "--deadline", "1"])
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in said {
        assert!(stderr.contains(part), "{part:?} is missing in {stderr:?}");
    }
    assert!(
        stderr.starts_with("attest-node: no config: ") && stderr.ends_with("; full.ign is unchanged\n"),
        "{stderr}"
    );
    assert!(!stderr.contains("SECRET"), "{stderr}");
    assert!(!folder.path().join("full.ign").exists());
}

#[test]
fn without_a_config_one_line_says_why() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["node".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let kubelet = format!("{}{}", certificate.pem(), key.serialize_pem());
    let ca = authority();
    let token = r#"{"source":"https://127.0.0.1:1/config/worker?token=SECRET"}"#;
    let good = pointer("3.2.0", token, &ca);
    check_config(&good, None, &[], &["kubelet.pem cannot be read", "[kubelet-certificate]; next: "]);
    check_config(&good, Some("no PEM"), &[], &["[kubelet-certificate]; next: "]);
    check_config(
        &good,
        Some(&kubelet),
        &[],
        &["https://127.0.0.1:1/config/worker ", "[gateway-unreachable]; next: "],
    );
    check_config(
        &pointer("3.2.0", "", &ca),
        Some(&kubelet),
        &[],
        &["names 0 sources", "[config-source]; next: "],
    );
    check_config(&pointer("3.2.0", token, ""), Some(&kubelet), &[], &["[pointer-no-ca]; next: "]);
    check_config(
        &good,
        Some(&kubelet),
        &["--url", "http://127.0.0.1:1/config/worker"],
        &["[config-source]"],
    );
    check_config("not JSON", Some(&kubelet), &[], &["[pointer-malformed]"]);
}

#[test]
fn a_config_needs_an_output_and_a_version() {
    let config = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_attest-node"))
            .arg("config")
            .args(arguments)
            .output()
            .unwrap()
    };
    assert_eq!(config(&[]).status.code(), Some(2));
    assert_eq!(config(&["--output", "x", "--spec", "3"]).status.code(), Some(2));
    assert!(config(&["--help"]).status.success());
}

#[test]
fn endorsement_keys_need_a_tpm() {
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .args(["ek", "--tcti", "device:/dev/no-such-tpm"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("[tpm-absent]"));
}
