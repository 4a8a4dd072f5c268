//! Nodes that a gateway asks to retry: whole runs of the program against a gateway that is busy.

mod certificates;
mod silence;
mod tickets;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::gateway::{Gateway, Instead, TOKEN};
use crate::support::{Server, google};
use attest::protocol::CLAIMANT_HEADER;
use data_encoding::BASE64;
use serde_json::{Value, json};

const CHALLENGE: &str = "/v1/attest/challenge";
const EVIDENCE: &str = "/v1/attest/evidence";

/// Far beyond any `--deadline` here.
const LONG: u64 = 300;

/// A gateway for an instance of Google's, and its metadata server with the pointer.
fn site(hold_seconds: Option<u64>, instead: impl Fn(&str, usize) -> Option<Instead> + Send + Sync + 'static) -> (Gateway, Server) {
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    let gateway = Gateway::answering(&json!(["gcp", "token"]), &task, hold_seconds, instead);
    let metadata = google(Some(gateway.pointer()));
    (gateway, metadata)
}

fn problem(status: u16, code: &str) -> Option<Instead> {
    Some(Some((status, String::new(), document(status, code))))
}

fn document(status: u16, code: &str) -> String {
    let kind = format!("urn:attestation-gateway:problem:{code}");
    json!({"type": kind, "title": "T", "status": status, "code": code, "next_step": "n"}).to_string()
}

/// The gateway's, with the seconds until then.
fn retry_after(seconds: u32) -> Option<Instead> {
    Some(Some((503, format!("Retry-After: {seconds}\r\n"), document(503, "unavailable"))))
}

struct Run {
    stderr: String,
    success: bool,
    written: Option<Value>,
    took: Duration,
}

fn run(metadata: &Server, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    run_in(folder.path(), metadata, arguments)
}

fn run_in(folder: &Path, metadata: &Server, arguments: &[&str]) -> Run {
    run_with(folder, metadata, arguments, "ignition.platform.id=gcp")
}

fn run_with(folder: &Path, metadata: &Server, arguments: &[&str], cmdline: &str) -> Run {
    fs::write(folder.join("cmdline"), format!("{cmdline}\n")).unwrap();
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .args(["attest", "--cmdline", "cmdline", "--dmi", "dmi", "--metadata", &metadata.base])
        .args([
            "--out",
            "user.ign",
            "--state",
            "state",
            "--first-boot-secret-on",
            "none",
            "--tcti",
            "device:/dev/no-such-tpm",
        ])
        .args(arguments)
        .env("NOTIFY_SOCKET", folder.join("notify"))
        // Whom the system trusts beside the pointer: nobody, unless a test says so.
        .env("SSL_CERT_FILE", folder.join("system.pem"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("SECRET"), "{stderr}");
    Run {
        stderr,
        success: output.status.success(),
        written: fs::read(folder.join("user.ign"))
            .ok()
            .map(|bytes| without_claimants(serde_json::from_slice(&bytes).unwrap())),
        took: start.elapsed(),
    }
}

/// Removes the claimants of tokens, which are random, from a pointer. Only sources with a token and without a ticket may have them.
fn without_claimants(mut pointer: Value) -> Value {
    let text = pointer.to_string();
    for source in pointer.pointer_mut("/ignition/config/merge").unwrap().as_array_mut().unwrap() {
        let has_token = source["source"].as_str().unwrap().contains("?token=");
        let Some(headers) = source.get_mut("httpHeaders").and_then(Value::as_array_mut) else {
            continue;
        };
        let before = headers.len();
        headers.retain(|header| header["name"] != CLAIMANT_HEADER);
        assert!(before - headers.len() <= usize::from(has_token), "{text}");
        if headers.is_empty() {
            source.as_object_mut().unwrap().remove("httpHeaders");
        }
    }
    pointer
}

impl Run {
    #[track_caller]
    fn attested(&self) {
        let written = self.written.as_ref().unwrap_or_else(|| panic!("{}", self.stderr)).to_string();
        assert!(self.success && written.contains("Bearer ticket.abc"), "{}{written}", self.stderr);
        assert!(!written.contains("attestation-not-attested"), "{written}");
        let first = self.stderr.lines().next().unwrap();
        assert!(
            first.starts_with("attest-node: waiting for 0 s so far: https://127.0.0.1:"),
            "{first}"
        );
    }

    #[track_caller]
    fn failed(&self, said: &[&str]) {
        let line = self.stderr.lines().last().unwrap_or_default();
        assert!(!self.success, "{}", self.stderr);
        for part in said {
            assert!(line.contains(part), "{part:?} is missing in {line}");
        }
    }
}

/// Checks that the node waits and attests after all if one request is answered with 503 for longer than the deadline.
#[track_caller]
fn check_held(path: &'static str, answer: fn() -> Option<Instead>) {
    let (_gateway, metadata) = site(Some(LONG), move |asked, before| {
        (asked.split('?').next() == Some(path) && before < 4).then(answer).flatten()
    });
    let run = run(&metadata, &["--deadline", "2"]);
    run.attested();
    assert!(run.took > Duration::from_millis(1800), "not held at all: {:?}", run.took);
}

#[test]
fn node_holds_and_attests_after_503() {
    check_held("/v1/attest", || problem(503, "unavailable"));
    check_held(CHALLENGE, || problem(503, "unavailable"));
    check_held(EVIDENCE, || problem(503, "unavailable"));
}

#[test]
fn each_retry_answer_restarts_the_outage_limit() {
    // Nine seconds are gone at least, and no more than 4.5 since the last answer, before one is lost: after it, two are waited at most.
    let (_gateway, metadata) = site(None, |path, before| match (path, before) {
        (CHALLENGE, 0..3) => retry_after(3),
        (CHALLENGE, 3) => Some(None),
        _ => None,
    });
    run(&metadata, &["--deadline", "8"]).attested();
}

/// Returns its pointer, with the header for an unreachable gateway.
fn unreachable(gateway: &Gateway) -> Value {
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["config"]["merge"][0]["httpHeaders"] =
        json!([{"name": "attestation-not-attested", "value": "gateway-unreachable"}]);
    pointer
}

/// Checks limits that the administrator sets, by the unit or on the kernel command line.
#[test]
fn administrator_wait_limit_ends_the_hold() {
    let silent = || {
        site(Some(LONG), |path, before| match (path, before) {
            (CHALLENGE, 0) => problem(503, "unavailable"),
            (CHALLENGE, _) => Some(None),
            _ => None,
        })
    };
    let check = |arguments: &[&str], cmdline: &str| {
        let (gateway, metadata) = silent();
        let folder = tempfile::tempdir().unwrap();
        let run = run_with(folder.path(), &metadata, arguments, cmdline);
        run.failed(&[
            "[gateway-unreachable]; next: ",
            "; the pointer config is unchanged, except for a header that reports this failure",
        ]);
        assert_eq!(run.written.unwrap(), unreachable(&gateway));
        assert!(
            (Duration::from_secs(2)..Duration::from_secs(30)).contains(&run.took),
            "{:?}",
            run.took
        );
    };
    check(&["--wait", "2"], "ignition.platform.id=gcp");
    check(&[], "ignition.platform.id=gcp attest-node.wait=2");
    check(&["--wait", "3000"], "ignition.platform.id=gcp attest-node.wait=2");
}

#[test]
fn hold_timeout_is_reported_to_console_and_gateway() {
    let (gateway, metadata) = site(Some(1), |path, _| {
        (path == CHALLENGE).then(|| problem(503, "unavailable")).flatten()
    });
    let folder = tempfile::tempdir().unwrap();
    let systemd = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let run = run_in(folder.path(), &metadata, &["--deadline", "60"]);
    run.failed(&[
        "has answered 503 for 1 s",
        "[retry-limit-exceeded]; next: ",
        "; the pointer config is unchanged, except for a header that reports this failure",
    ]);
    let waiting = run.stderr.lines().next().unwrap();
    for part in [
        "[unavailable]",
        "for 0 s so far",
        "for at most 1 s",
        "rd.systemd.mask=attest-node.service",
    ] {
        assert!(waiting.contains(part), "{part:?} is missing in {waiting}");
    }
    // What Ignition then reads is the pointer, with the token that it had, and one header more.
    let mut expect: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    expect["ignition"]["config"]["merge"][0]["httpHeaders"] =
        json!([{"name": "attestation-not-attested", "value": "retry-limit-exceeded"}]);
    assert_eq!(run.written.unwrap(), expect);
    assert!(expect.to_string().contains(TOKEN));
    // And systemd has been told that this takes longer: the pause, a minute, and a moment for the last words.
    let receive = || {
        let mut buffer = [0; 512];
        let length = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    systemd.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut messages = std::iter::repeat_with(receive);
    let message = messages.find(|message| message.contains("tells this node to retry")).unwrap();
    let extended = message.lines().find_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
    let extended: u64 = extended.unwrap_or_else(|| panic!("{message}")).parse().unwrap();
    assert!((80_000_000..=82_000_000).contains(&extended), "{message}");
}

/// A refused node's request for its config names the refusal, so that the two records belong together. Nothing else of a gateway's gets in there.
#[test]
fn refused_node_sends_the_decision_id() {
    let check = |path: &'static str, decision: Option<&'static str>, expect: &str| {
        let (gateway, metadata) = site(Some(LONG), move |asked, _| {
            let mut document: Value = serde_json::from_str(&document(403, "ek-not-endorsed")).unwrap();
            document["decision"] = json!(decision);
            (asked == path).then(|| Some((403, String::new(), document.to_string())))
        });
        let run = run(&metadata, &["--deadline", "20"]);
        run.failed(&["[ek-not-endorsed]; next: n; the pointer config is unchanged, except for a header that reports this failure"]);
        let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
        pointer["ignition"]["config"]["merge"][0]["httpHeaders"] = json!([{"name": "attestation-not-attested", "value": expect}]);
        assert_eq!(run.written.unwrap(), pointer);
    };
    let id = "0123456789abcdef0123456789abcdef";
    check(CHALLENGE, Some(id), "ek-not-endorsed 0123456789abcdef0123456789abcdef");
    check(EVIDENCE, Some(id), "ek-not-endorsed 0123456789abcdef0123456789abcdef");
    check(EVIDENCE, None, "ek-not-endorsed");
    check(EVIDENCE, Some(""), "ek-not-endorsed");
    check(EVIDENCE, Some("a\r\nAuthorization: x"), "ek-not-endorsed");
    check(
        EVIDENCE,
        Some(concat!("0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef", "0")),
        "ek-not-endorsed",
    );
}

#[test]
fn zero_hold_disables_waiting() {
    let busy = |path: &str, _: usize| (path == CHALLENGE).then(|| problem(503, "unavailable")).flatten();
    let (gateway, metadata) = site(Some(LONG), busy);
    let run = run(&metadata, &["--deadline", "2", "--hold", "0"]);
    run.failed(&[
        "answers 503",
        "[gateway-failing]",
        "; the pointer config is unchanged, except for a header that identifies the node",
    ]);
    let pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    assert_eq!((run.written, run.stderr.lines().count()), (Some(pointer), 1));
    // The pool's own zero is the same.
    let (_gateway, metadata) = site(Some(0), busy);
    self::run(&metadata, &["--deadline", "2"]).failed(&["[gateway-failing]"]);
}

#[test]
fn spent_challenge_is_replaced_while_held() {
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before) {
        (EVIDENCE, 0 | 3) => problem(503, "cloud-unavailable"),
        (EVIDENCE, 1) => problem(503, "unavailable"),
        (EVIDENCE, 2 | 4) => problem(403, "challenge-spent"),
        (EVIDENCE, 5) => problem(403, "challenge-expired"),
        (EVIDENCE, 6) | (CHALLENGE, 5) => problem(503, "machines-unavailable"),
        _ => None,
    });
    run(&metadata, &["--deadline", "20"]).attested();
    let told = gateway.told.lock().unwrap();
    let asked: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).skip(1).collect();
    // What could not be verified, or decided, has spent its challenge. What the gateway had no time for may not have.
    let expect = [
        CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE,
        CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE,
    ];
    assert_eq!(asked, expect);
}

/// While an administrator decides about the booted system, each try is a new challenge. Ignition has not started, and this program still
/// runs.
#[test]
fn console_shows_the_pending_value_detail() {
    let what = "PCR 4, boot loader or kernel: sha256 ab12… and 3 more: nobody has accepted or denied this yet; question 0123";
    let (gateway, metadata) = site(Some(LONG), move |path, before| {
        let mut document: Value = serde_json::from_str(&document(503, "answer-pending")).unwrap();
        document["detail"] = json!(what);
        (path == EVIDENCE && before < 2).then(|| Some((503, "Retry-After: 1\r\n".to_owned(), document.to_string())))
    });
    let run = run(&metadata, &["--deadline", "20"]);
    run.attested();
    let expect = format!("tells this node to retry [answer-pending], because: {what}; retrying for at most {LONG} s");
    assert!(run.stderr.lines().next().unwrap().contains(&expect), "{}", run.stderr);
    let told = gateway.told.lock().unwrap();
    let asked: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).skip(1).collect();
    assert_eq!(asked, [CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE]);
}

#[test]
fn repeatedly_spent_challenge_ends_the_attempt() {
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before) {
        (EVIDENCE, 0) => problem(503, "cloud-unavailable"),
        (EVIDENCE, _) => problem(403, "challenge-spent"),
        _ => None,
    });
    run(&metadata, &["--deadline", "20"]).failed(&["[challenge-spent]", "; the pointer config is unchanged"]);
    let asked = gateway.told.lock().unwrap().iter().filter(|(path, _)| path == CHALLENGE).count();
    assert_eq!(asked, 4, "one in vain, and three");
}

#[test]
fn node_honors_retry_after() {
    let (_gateway, metadata) = site(None, |path, before| {
        (path == CHALLENGE && before == 0).then(|| retry_after(2)).flatten()
    });
    let run = run(&metadata, &["--deadline", "10"]);
    run.attested();
    assert!(run.took >= Duration::from_secs(2), "{:?}", run.took);
}
