//! Reports of failed boots by the program: what a gateway gets, and what the console says if it gets nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use attest::protocol::{ReportRequest, ReportStage};
use serde_json::{Value, json};

use crate::support::gateway::{Gateway, Instead};
use crate::support::install;

/// Time that no report takes: the emergency shell waits for it.
const BOUND: Duration = Duration::from_secs(30);
const SECRETS: [&str; 7] = [
    "SECRETTICKET-0123456789",
    "secret of a file",
    "SECRETTOKEN",
    "SECRETHASH",
    "SECRETPASSWORD",
    "SECRETKEYLINE",
    "SECRETQUERY",
];

/// Folder of a node whose boot failed: systemd's programs, the configs, and what this boot has kept.
fn node(gateway: &Gateway, failed: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("bin")).unwrap();
    fs::create_dir_all(path("kept")).unwrap();
    install(
        &path("bin/systemctl"),
        &format!("#!/bin/sh\n[ \"$2\" = --failed ] || exit 1\nfor unit in {failed}; do echo \"$unit loaded failed failed A unit\"; done\n"),
    );
    fs::write(
        path("journal"),
        "[1.0] ignition[5]: GET https://127.0.0.1/config/worker?token=SECRETTOKEN: attempt #1\n\
         [1.1] ignition[5]: Authorization: Bearer SECRETTICKET-0123456789\n\
         [1.2] ignition[5]: \"source\": \"data:,secret%20of%20a%20file%0A\"\n\
         [1.3] ignition[5]: wrote secret of a file\n\
         [1.4] ignition[5]: \"passwordHash\": \"$6$SALTSALT$SECRETHASH\"\n\
         [1.5] ignition[5]: https://user:SECRETPASSWORD@proxy/?SECRETQUERY\n\
         [1.6] x: -----BEGIN PRIVATE KEY-----\n\
         [1.7] x: SECRETKEYLINE\n\
         [1.8] x: -----END PRIVATE KEY-----\n\
         [1.9] \u{1b}[31mignition[5]\u{1b}[0m: disks failed: no /dev/vdb\n",
    )
    .unwrap();
    install(
        &path("bin/journalctl"),
        &format!(
            "#!/bin/sh\ncase \"$*\" in\n*--output=cat*) echo starting; echo 'failed: /dev/vdb is away, wrote secret of a file'; echo done;;\n*) cat {};;\nesac\n",
            path("journal").display()
        ),
    );
    let config = json!({"storage": {"files": [{"path": "/etc/x", "contents": {"source": "data:,secret%20of%20a%20file%0A"}}]}});
    fs::write(path("ignition.json"), config.to_string()).unwrap();
    fs::write(path("boot_id"), "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    fs::write(path("kept/pointer.ign"), gateway.pointer().replace("?token=SECRETTOKEN", "")).unwrap();
    folder
}

/// Keeps the result of this boot's attestation.
fn keep(folder: &Path, gateway: &Gateway, member: (&str, &str)) {
    let kept = json!([{"base": format!("https://127.0.0.1:{}", gateway.port), "pool": "worker", member.0: member.1}]);
    fs::write(folder.join("kept/attestations.json"), kept.to_string()).unwrap();
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let begun = Instant::now();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .env("PATH", path)
        .args(["report", "--kept", "kept", "--config", "ignition.json", "--boot-id", "boot_id"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    output
}

#[track_caller]
fn says(output: &Output, code: i32, said: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(
        stderr.starts_with("attest-node: ") && stderr.lines().count() == 1 && stderr.contains(said),
        "{stderr}"
    );
}

fn sent(gateway: &Gateway) -> Vec<ReportRequest> {
    let told = gateway.told.lock().unwrap();
    let reports = told.iter().filter(|(path, _)| path == "/v1/report");
    reports.map(|(_, body)| serde_json::from_value(body.clone()).unwrap()).collect()
}

/// Returns a gateway that answers each report otherwise, by its number.
fn answering(instead: impl Fn(usize) -> Option<Instead> + Send + Sync + 'static) -> Gateway {
    Gateway::answering(&json!(["tpm"]), &Value::Null, None, move |path, number| match path {
        "/v1/report" => instead(number),
        _ => None,
    })
}

fn refusal(status: u16, code: &str) -> Instead {
    let problem = json!({
        "type": format!("urn:attestation-gateway:problem:{code}"), "title": "t", "status": status, "code": code, "next_step": "n",
    });
    Some((status, String::new(), problem.to_string()))
}

#[test]
fn a_failed_boot_is_reported_without_its_secrets() {
    let gateway = answering(|_| None);
    let folder = node(&gateway, "attest-node.service ignition-disks.service");
    keep(folder.path(), &gateway, ("proof", "key.PROOF"));
    let output = run(folder.path(), &[]);
    says(
        &output,
        0,
        &format!("reported as {} to https://127.0.0.1:{}", "ab".repeat(16), gateway.port),
    );
    let [report] = sent(&gateway).try_into().unwrap();
    report.check().unwrap();
    assert_eq!(
        (report.stage, report.unit.as_str(), report.pool.as_str()),
        (ReportStage::Disks, "ignition-disks.service", "worker")
    );
    assert_eq!(report.error, "failed: /dev/vdb is away, wrote [redacted]");
    assert_eq!(report.boot, "0123456789abcdef0123456789abcdef");
    assert_eq!(report.proof.as_ref().unwrap().reveal(), "key.PROOF");
    assert!(
        report.journal.ends_with("ignition[5] [0m: disks failed: no /dev/vdb\n"),
        "{}",
        report.journal
    );
    assert_eq!(report.journal.lines().count(), 10);
    let all = format!("{report:?}{}", String::from_utf8_lossy(&output.stderr));
    for secret in SECRETS {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}

#[test]
fn a_failed_attestation_names_its_decision() {
    let gateway = answering(|_| None);
    let folder = node(&gateway, "");
    keep(folder.path(), &gateway, ("decision", &"cd".repeat(16)));
    says(&run(folder.path(), &["attestation"]), 0, "reported as ");
    let [report] = sent(&gateway).try_into().unwrap();
    assert_eq!((report.stage, report.unit.as_str()), (ReportStage::Attest, "attest-node.service"));
    assert_eq!((report.decision, report.proof), (Some("cd".repeat(16)), None));
}

#[test]
fn a_proof_that_is_refused_is_left_out() {
    let gateway = answering(|number| (number == 0).then(|| refusal(403, "report-proof-invalid")));
    let folder = node(&gateway, "ignition-files.service");
    keep(folder.path(), &gateway, ("proof", "of.another"));
    says(&run(folder.path(), &[]), 0, "reported as ");
    let proofs: Vec<bool> = sent(&gateway).iter().map(|report| report.proof.is_some()).collect();
    assert_eq!(proofs, [true, false]);
}

#[test]
fn an_overloaded_gateway_is_asked_again_for_a_short_time() {
    let gateway = answering(|number| (number < 2).then(|| refusal(503, "unavailable")));
    let folder = node(&gateway, "ignition-files.service");
    says(&run(folder.path(), &[]), 0, "reported as ");
    let gateway = answering(|_| Some(refusal(503, "unavailable")));
    let folder = node(&gateway, "ignition-files.service");
    says(&run(folder.path(), &["--deadline", "3"]), 1, "not reported: ");
    let tries = sent(&gateway).len();
    assert!((2..10).contains(&tries), "{tries}");
}

#[test]
fn the_console_says_why_nothing_is_reported() {
    let off = answering(|_| Some(refusal(403, "reports-off")));
    let folder = node(&off, "ignition-files.service");
    says(&run(folder.path(), &[]), 1, "takes no reports [reports-off]");
    // Nobody listens.
    let gateway = answering(|_| None);
    let folder = node(&gateway, "ignition-files.service");
    let away = gateway.pointer().replace(&gateway.port.to_string(), "1");
    fs::write(folder.path().join("kept/pointer.ign"), away).unwrap();
    says(
        &run(folder.path(), &["--deadline", "3"]),
        1,
        "not reported: https://127.0.0.1:1/v1/attest?pool=worker cannot be reached",
    );
    // A Machine Config Server gets no journal.
    let server = Gateway::answering(&json!(["tpm"]), &Value::Null, None, |path, _| {
        (path == "/v1/attest?pool=worker").then(|| Some((404, String::new(), String::new())))
    });
    let folder = node(&server, "ignition-files.service");
    says(&run(folder.path(), &[]), 1, "answers 404: no attestation gateway");
    assert!(sent(&server).is_empty());
    // Somebody else's server gets nothing.
    let other = answering(|_| None);
    let folder = node(&gateway, "ignition-files.service");
    let elsewhere = gateway.pointer().replace(&gateway.port.to_string(), &other.port.to_string());
    fs::write(folder.path().join("kept/pointer.ign"), elsewhere).unwrap();
    says(&run(folder.path(), &["--deadline", "3"]), 1, "[tls-unknown-ca]");
    assert!(sent(&other).is_empty());
    // The boot failed before there was a pointer; one that is not a first boot says nothing.
    fs::remove_file(folder.path().join("kept/pointer.ign")).unwrap();
    says(&run(folder.path(), &[]), 1, "[report-no-pointer]");
    says(&run(folder.path(), &["attestation"]), 1, "[report-no-pointer]");
    let folder = node(&gateway, "sysroot.mount");
    fs::remove_file(folder.path().join("kept/pointer.ign")).unwrap();
    let quiet = run(folder.path(), &[]);
    assert!(quiet.status.success() && quiet.stderr.is_empty());
    assert!(sent(&gateway).is_empty());
}

#[test]
fn nothing_holds_up_the_emergency_shell() {
    // A gateway that takes the report and is silent, and one whose answer has no end.
    let (test, tested) = mpsc::channel::<()>();
    let tested = Mutex::new(tested);
    let silent = answering(move |_| {
        tested.lock().unwrap().recv().unwrap_err();
        None
    });
    let folder = node(&silent, "ignition-files.service");
    says(&run(folder.path(), &["--deadline", "3"]), 1, "not reported: ");
    drop(test);
    // Programs that hang: the report has what is known without them.
    let gateway = answering(|_| None);
    for program in ["systemctl", "journalctl"] {
        let folder = node(&gateway, "ignition-files.service");
        install(&folder.path().join("bin").join(program), "#!/bin/sh\nexec sleep 60\n");
        says(&run(folder.path(), &["--deadline", "6"]), 0, "reported as ");
        let report = sent(&gateway).pop().unwrap();
        report.check().unwrap();
        match program {
            "systemctl" => assert_eq!((report.stage, report.unit.as_str()), (ReportStage::Other, "emergency.target")),
            _ => {
                assert_eq!(report.error, "ignition-files.service failed; it left no message");
                assert!(
                    report.journal.contains("no journal: journalctl took too long"),
                    "{}",
                    report.journal
                );
            }
        }
    }
}
