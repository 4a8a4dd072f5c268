//! A node whose ticket cannot be delivered: this is detected before it attests, or when it is written; and reported to console and gateway.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::gateway::Gateway;
use crate::support::google;
use serde_json::{Value, json};

/// Runs with this as `--out` in `folder`. Returns the last line of the console, and the requests to the gateway in order.
fn run(folder: &Path, output: &str) -> (String, Vec<(String, Value)>) {
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    let gateway = Gateway::start(&json!(["gcp", "token"]), &task);
    let metadata = google(Some(gateway.pointer()));
    fs::write(folder.join("cmdline"), "ignition.platform.id=gcp\n").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .args(["attest", "--cmdline", "cmdline", "--dmi", "dmi", "--metadata", &metadata.base])
        .args(["--out", output, "--state", "state", "--tcti", "device:/dev/no-such-tpm"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(!stderr.contains("SECRET") && !stderr.contains("; ticket written"), "{stderr}");
    let told = gateway.told.lock().unwrap().clone();
    (stderr.lines().last().unwrap().to_owned(), told)
}

fn check(folder: &Path, output: &str, why: &str, asked_before: &[&str]) {
    let (line, told) = run(folder, output);
    for part in [
        "attest-node: not attested: ",
        output,
        why,
        "[ticket-undeliverable]; next: ",
        "; the pointer config is unchanged",
    ] {
        assert!(line.contains(part), "{part:?} is missing in {line}");
    }
    let (last, before) = told.split_last().unwrap();
    let paths: Vec<&str> = before.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, asked_before);
    assert_eq!(last, &("/config/worker".to_owned(), json!({"HEAD": "ticket-undeliverable"})));
}

#[test]
fn unwritable_pointer_stops_before_attestation() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    check(folder.path(), "file/user.ign", "ot a directory", &["/v1/attest?pool=worker"]);
    check(
        folder.path(),
        "/proc/no-such-folder/user.ign",
        "No such file",
        &["/v1/attest?pool=worker"],
    );
}

#[test]
fn unwritable_ticket_is_reported_after_attestation() {
    let folder = tempfile::tempdir().unwrap();
    // A file can be made beside it, and does not take its place.
    fs::create_dir(folder.path().join("user.ign")).unwrap();
    let attested = ["/v1/attest?pool=worker", "/v1/attest/challenge", "/v1/attest/evidence"];
    check(folder.path(), "user.ign", "irectory", &attested);
}
