//! Claims of a node without a TPM: by the first-boot secret, the same across reboots of the first boot.

use std::fs;
use std::path::Path;
use std::process::Command;

use attest::protocol::{Blob, CLAIMANT_HEADER};
use serde_json::{Value, json};

use super::{GCP_DMI, QEMU_DMI, Run, amazon, claimant_in, gcp_task, run};
use crate::support::gateway::{Gateway, TOKEN};
use crate::support::google;

/// Returns an instance's claimant in a boot whose memory is `state` and whose disk is `disk`.
fn claims(folder: &Path, gateway: &Gateway, state: &str, disk: &str) -> Blob {
    gateway.told.lock().unwrap().clear();
    let metadata = amazon(gateway.pointer());
    let arguments = ["--state", state, "--first-boot-secret-on", disk];
    run(folder, Some("aws"), &[], &metadata.base, &arguments).attested("by aws-identity-document");
    gateway.evidence().evidence.claimant.unwrap()
}

fn takes_documents() -> Gateway {
    Gateway::start(&json!(["aws-identity-document"]), &json!({"aws_identity_document": {}}))
}

#[test]
fn instance_claim_is_stable_until_forget() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (gateway, keep) = (takes_documents(), disk.path().to_str().unwrap());
    let first = claims(folder.path(), &gateway, "state", keep);
    assert_eq!(claims(folder.path(), &gateway, "state", "none"), first);
    // It boots again from the initramfs, and its memory is empty.
    assert_eq!(claims(folder.path(), &gateway, "state-2", keep), first);
    let kept = fs::read(disk.path().join("attest-node/claimant")).unwrap();
    assert!(kept.len() == 32 && kept != first.as_ref(), "no gateway has seen what is kept");
    // Ignition is done.
    let forget = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args([
            "first-boot-secret",
            "remove",
            "--cmdline",
            "cmdline",
            "--state",
            "state-2",
            "--first-boot-secret-on",
            keep,
        ])
        .output()
        .unwrap();
    assert!(forget.status.success() && forget.stderr.is_empty(), "{forget:?}");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
    assert!(!folder.path().join("state-2").exists());
    assert_ne!(claims(folder.path(), &gateway, "state-2", keep), first);
}

#[test]
fn attack_27_claim_values_differ_between_gateways() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = [takes_documents(), takes_documents()].map(|gateway| claims(folder.path(), &gateway, "state", "none"));
    assert_ne!(one, other);
}

#[test]
fn unsaved_first_boot_secret_does_not_prevent_attestation() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = takes_documents();
    let metadata = amazon(gateway.pointer());
    let ended = run(
        folder.path(),
        Some("aws"),
        &[],
        &metadata.base,
        &["--first-boot-secret-on", "/nonexistent"],
    );
    let lines: Vec<_> = ended.stderr.lines().collect();
    let [note, attested] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(
        note.contains("note: ") && note.contains("/nonexistent: ") && note.contains("instance-claimed"),
        "{note}"
    );
    assert!(ended.success && attested.contains("attested as aws:"), "{attested}");
    fs::remove_file(folder.path().join("user.ign")).unwrap();
    // A gateway that takes nothing of a cloud's is told nothing, and no disk is touched for it.
    let disk = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&json!(["tpm"]), &json!({}));
    let metadata = amazon(gateway.pointer().replace(&format!("?token={TOKEN}"), ""));
    let keep = disk.path().to_str().unwrap();
    run(folder.path(), Some("aws"), &[], &metadata.base, &["--first-boot-secret-on", keep]).failed(&["[no-accepted-evidence]"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
}

/// A machine without a TPM, in no cloud, with a token for each source of its pointer.
fn with_tokens(folder: &Path, pointer: &str, disk: &str) -> Run {
    fs::write(folder.join("pointer.ign"), pointer).unwrap();
    let arguments = ["--pointer", "pointer.ign", "--first-boot-secret-on", disk, "--state", "fresh"];
    let _ = fs::remove_dir_all(folder.join("fresh"));
    run(folder, Some("metal"), QEMU_DMI, "http://127.0.0.1:1", &arguments)
}

#[test]
fn token_claim_header_goes_to_gateways_only() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (gateway, other) = (takes_documents(), takes_documents());
    let no_gateway = Gateway::answering(&json!([]), &json!({}), None, |path, _| {
        path.starts_with("/v1").then(|| Some((404, String::new(), String::new())))
    });
    let source = |gateway: &Gateway| {
        let pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
        pointer.pointer("/ignition/config/merge/0").unwrap().clone()
    };
    let sources = [source(&gateway), source(&no_gateway), source(&other)];
    let authorities = [&gateway, &no_gateway, &other].map(|gateway| json!({"source": gateway.authority}));
    let pointer = |version: &str| json!({"ignition": {"version": version, "config": {"merge": sources}, "security": {"tls": {"certificateAuthorities": authorities}}}});
    let told = |version: &str, keep: &str| {
        let ended = with_tokens(folder.path(), &pointer(version).to_string(), keep);
        assert!(
            ended.success && ended.stderr.contains("attest-node: nothing to do: this node has no TPM 2.0"),
            "{}",
            ended.stderr
        );
        let mut written: Value = serde_json::from_str(&ended.written.unwrap()).unwrap();
        let mut claimants = Vec::new();
        for place in [0, 2] {
            let source = written["ignition"]["config"]["merge"][place].as_object_mut().unwrap();
            claimants.push(claimant_in(&source.remove("httpHeaders").unwrap()));
        }
        // 3.0.0 has no headers.
        assert_eq!(written, pointer(if version == "3.0.0" { "3.1.0" } else { version }));
        claimants
    };
    let keep = disk.path().to_str().unwrap();
    let first = told("3.0.0", keep);
    assert_ne!(first[0], first[1], "each gateway has its own");
    assert_eq!(told("3.4.0", keep), first, "the first-boot secret across a reboot");
    assert_ne!(told("3.4.0", "none"), first);
    // Whoever has a token and nothing to attest by was asked for nothing.
    let asked = |gateway: &Gateway| {
        gateway
            .told
            .lock()
            .unwrap()
            .iter()
            .map(|(path, _)| path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(&gateway), vec!["/v1/attest?pool=worker"; 3]);
}

/// A node with a token is expected to have no TPM: nothing about it counts as a failure, and an unreachable service is not waited for.
#[test]
fn token_without_claim_reports_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = takes_documents();
    let behind_a_proxy = gateway
        .pointer()
        .replacen("\"version\"", "\"proxy\":{\"httpsProxy\":\"http://proxy.example\"},\"version\"", 1);
    let ended = with_tokens(folder.path(), &behind_a_proxy.replace("127.0.0.1", "gateway.example"), "none");
    assert!(ended.success && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    assert_eq!(ended.written, None);
    // One that nobody answers for, and an administrator who has said how long that is waited for.
    let gone = gateway.pointer().replace(&format!(":{}/", gateway.port), ":1/");
    fs::write(folder.path().join("pointer.ign"), gone).unwrap();
    let arguments = ["--pointer", "pointer.ign", "--wait", "0", "--deadline", "3"];
    let ended = run(folder.path(), Some("metal"), QEMU_DMI, "http://127.0.0.1:1", &arguments);
    assert!(ended.success, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("note: ") && ended.stderr.contains("[gateway-unreachable]"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.lines().last().unwrap().contains("nothing to do: "), "{}", ended.stderr);
    assert!(!ended.written.unwrap_or_default().contains(CLAIMANT_HEADER));
}

#[test]
fn remaining_token_source_gets_a_claim_header() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keep = disk.path().to_str().unwrap();
    let (gateway, metadata) = (Gateway::start(&json!(["gcp"]), &gcp_task()), google(None));
    // Attested: the ticket is all that Ignition shows.
    fs::write(folder.path().join("pointer.ign"), gateway.pointer()).unwrap();
    let arguments = ["--pointer", "pointer.ign", "--first-boot-secret-on", keep];
    let ended = run(folder.path(), Some("qemu"), GCP_DMI, &metadata.base, &arguments);
    ended.attested("by gcp");
    assert!(!ended.written.unwrap().contains(CLAIMANT_HEADER));
}
