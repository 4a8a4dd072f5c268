//! Nodes that are told to come again: whole runs of the program against a gateway that is busy.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
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
fn site(hold_seconds: Option<u64>, instead: impl Fn(&str, usize) -> Option<Instead> + Send + 'static) -> (Gateway, Server) {
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
fn come_again(seconds: u32) -> Option<Instead> {
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
        .args(["--cmdline", "cmdline", "--dmi", "dmi", "--metadata", &metadata.base])
        .args([
            "--output",
            "user.ign",
            "--state",
            "state",
            "--claimant-on",
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

/// A pointer without what says who shows its tokens, which is random. Only sources with a token and without a ticket may have that.
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
        assert!(first.starts_with("attest-node: waiting: https://127.0.0.1:"), "{first}");
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

/// One request is answered with 503 for longer than the deadline: the node waits, and attests all the same.
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
fn a_node_that_was_told_to_come_again_is_held_and_not_given_less() {
    check_held("/v1/attest", || problem(503, "unavailable"));
    check_held(CHALLENGE, || problem(503, "unavailable"));
    check_held(EVIDENCE, || problem(503, "unavailable"));
}

#[test]
fn each_come_again_starts_the_time_for_silence_anew() {
    // Nine seconds are gone at least, and no more than 4.5 since the last answer, before one is lost: after it, two are waited at most.
    let (_gateway, metadata) = site(None, |path, before| match (path, before) {
        (CHALLENGE, 0..3) => come_again(3),
        (CHALLENGE, 3) => Some(None),
        _ => None,
    });
    run(&metadata, &["--deadline", "8"]).attested();
}

/// A gateway that has no answer to the first requests for a path, for longer than the deadline: the node waits, and attests all the same.
#[track_caller]
fn check_waited_for(path: &'static str, instead: fn() -> Instead) {
    let (_gateway, metadata) = site(Some(LONG), move |asked, before| {
        (asked.split('?').next() == Some(path) && before < 4).then(instead)
    });
    let run = run(&metadata, &["--deadline", "2"]);
    let written = run.written.as_ref().unwrap_or_else(|| panic!("{}", run.stderr)).to_string();
    assert!(run.success && written.contains("Bearer ticket.abc"), "{}{written}", run.stderr);
    let first = run.stderr.lines().next().unwrap();
    for part in [
        "attest-node: waiting for 0 s so far: https://127.0.0.1:",
        "Ignition needs it too",
        "rd.systemd.mask=attest-node.service",
    ] {
        assert!(first.contains(part), "{part:?} is missing in {first}");
    }
    assert!(run.took > Duration::from_millis(1800), "not waited for at all: {:?}", run.took);
}

#[test]
fn a_gateway_that_does_not_answer_is_waited_for_and_not_given_up() {
    for path in ["/v1/attest", CHALLENGE, EVIDENCE] {
        check_waited_for(path, || None);
        check_waited_for(path, || Some((500, String::new(), String::new())));
    }
    // What stands before a gateway that is not there says 503 too, whatever the pool says of those that are told to come again.
    check_waited_for("/v1/attest", || Some((503, String::new(), String::new())));
    check_waited_for(CHALLENGE, || {
        Some((503, String::new(), "<html>no server is available</html>".to_owned()))
    });
}

#[test]
fn a_server_with_errors_for_the_discovery_only_is_left_alone() {
    // A path-routing proxy before a Machine Config Server.
    let (gateway, metadata) = site(None, |path, _| {
        (path != "/config/worker").then(|| Some((503, String::new(), String::new())))
    });
    let run = run(&metadata, &["--deadline", "2"]);
    // Nothing but what a gateway would want to know.
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.written.unwrap(), unreachable(&gateway));
    let last = run.stderr.lines().last().unwrap();
    assert!(
        last.contains("nothing to do: no source is an attestation gateway") && last.contains("its configs can be had all the same"),
        "{last}"
    );
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != CHALLENGE));
}

/// Its pointer, with what says that it could not be reached.
fn unreachable(gateway: &Gateway) -> Value {
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["config"]["merge"][0]["httpHeaders"] =
        json!([{"name": "attestation-not-attested", "value": "gateway-unreachable"}]);
    pointer
}

/// Whoever is asked whether it has configs may have come back by then.
#[test]
fn a_gateway_that_comes_back_before_it_is_given_up_is_attested_to() {
    let was_asked = AtomicBool::new(false);
    let (gateway, metadata) = site(Some(LONG), move |path, _| match path {
        "/config/worker" => {
            was_asked.store(true, Ordering::Relaxed);
            None
        }
        _ => (!was_asked.load(Ordering::Relaxed)).then(|| Some((500, String::new(), String::new()))),
    });
    let run = run(&metadata, &["--deadline", "2"]);
    assert!(run.success && run.written.is_some(), "{}", run.stderr);
    let told = gateway.told.lock().unwrap();
    let asked: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).collect();
    assert!(asked.contains(&"/config/worker") && asked.last() == Some(&EVIDENCE), "{asked:?}");
}

/// Time in which a gateway has answered is none in which it has failed.
#[test]
fn one_failure_after_a_long_hold_gives_no_gateway_up() {
    // More than three seconds are gone before the one that fails, and only failures for two make a server none.
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before) {
        ("/v1/attest?pool=worker", 0) => come_again(3),
        ("/v1/attest?pool=worker", 1) => Some(Some((500, String::new(), String::new()))),
        _ => None,
    });
    run(&metadata, &["--deadline", "2"]).attested();
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != "/config/worker"));
}

/// Who refuses the config gives none, unless Ignition shows a token that this program does not.
#[test]
fn a_refusal_counts_as_a_config_only_where_ignition_shows_a_token() {
    let refusing = |with_token: bool| {
        let (gateway, _) = site(Some(LONG), |path, before| match (path, before) {
            ("/config/worker", _) => problem(403, "nothing-shown"),
            ("/v1/attest?pool=worker", 0..8) => Some(Some((500, String::new(), String::new()))),
            _ => None,
        });
        let token = format!("?token={TOKEN}");
        let pointer = gateway.pointer().replace(if with_token { "" } else { &token }, "");
        (gateway, run(&google(Some(pointer)), &["--deadline", "2"]))
    };
    let (gateway, run) = refusing(false);
    assert!(run.success && run.written.is_some(), "{}", run.stderr);
    let told = gateway.told.lock().unwrap();
    assert!(told.iter().any(|(path, _)| path == "/config/worker"), "{told:?}");
    assert_eq!(told.last().unwrap().0, EVIDENCE);
    let (gateway, run) = refusing(true);
    assert_eq!(run.written, Some(unreachable(&gateway)), "{}", run.stderr);
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != CHALLENGE));
}

#[test]
fn what_ignition_fetches_by_a_proxy_is_not_waited_for_without_end() {
    let gateway = Gateway::answering(&json!(["gcp"]), &json!({}), None, |_, _| None);
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["version"] = json!("3.1.0");
    // Nobody has this name, and what is on the machine itself is fetched by no proxy.
    pointer["ignition"]["config"]["merge"][0]["source"] = json!("https://gateway.invalid:1/config/worker");
    pointer["ignition"]["proxy"] = json!({"httpsProxy": "http://proxy.example:3128"});
    let run = run(&google(Some(pointer.to_string())), &["--deadline", "2"]);
    run.failed(&["[gateway-unreachable]"]);
    assert!(run.took < Duration::from_secs(30), "{:?}", run.took);
}

#[test]
fn answers_that_are_lost_each_time_are_not_asked_for_for_ever() {
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before % 2) {
        (EVIDENCE, 0) => Some(None),
        (EVIDENCE, _) => problem(403, "challenge-spent"),
        _ => None,
    });
    run(&metadata, &["--deadline", "20"]).failed(&["[challenge-spent]"]);
    let asked = gateway.told.lock().unwrap().iter().filter(|(path, _)| path == CHALLENGE).count();
    assert_eq!(asked, 3);
}

/// Where the administrator has said how long: by the unit or on the kernel command line.
#[test]
fn a_limit_is_the_administrators_and_the_gateway_is_told() {
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
            "; the pointer config is unchanged, but for a header that says why",
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
fn when_the_hold_is_over_the_console_and_the_gateway_are_told() {
    let (gateway, metadata) = site(Some(1), |path, _| {
        (path == CHALLENGE).then(|| problem(503, "unavailable")).flatten()
    });
    let folder = tempfile::tempdir().unwrap();
    let systemd = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let run = run_in(folder.path(), &metadata, &["--deadline", "60"]);
    run.failed(&[
        "has told this node to come again for 1 s",
        "[held-too-long]; next: ",
        "; the pointer config is unchanged, but for a header that says why",
    ]);
    let waiting = run.stderr.lines().next().unwrap();
    for part in [
        "[unavailable]",
        "for 0 s so far",
        "for 1 s at most",
        "rd.systemd.mask=attest-node.service",
    ] {
        assert!(waiting.contains(part), "{part:?} is missing in {waiting}");
    }
    // What Ignition then reads is the pointer, with the token that it had, and one header more.
    let mut expect: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    expect["ignition"]["config"]["merge"][0]["httpHeaders"] = json!([{"name": "attestation-not-attested", "value": "held-too-long"}]);
    assert_eq!(run.written.unwrap(), expect);
    assert!(expect.to_string().contains(TOKEN));
    // And systemd has been told that this takes longer: the pause, a minute, and a moment for the last words.
    let receive = || {
        let mut buffer = [0; 512];
        let length = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let mut messages = std::iter::repeat_with(receive);
    let message = messages.find(|message| message.contains("come again")).unwrap();
    let extended = message.lines().find_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
    let extended: u64 = extended.unwrap_or_else(|| panic!("{message}")).parse().unwrap();
    assert!((80_000_000..=82_000_000).contains(&extended), "{message}");
}

/// A refused node's request for its config names the refusal, so that the two records belong together. Nothing else of a gateway's gets in there.
#[test]
fn who_was_refused_says_by_which_decision() {
    let check = |path: &'static str, decision: Option<&'static str>, expect: &str| {
        let (gateway, metadata) = site(Some(LONG), move |asked, _| {
            let mut document: Value = serde_json::from_str(&document(403, "ek-not-endorsed")).unwrap();
            document["decision"] = json!(decision);
            (asked == path).then(|| Some((403, String::new(), document.to_string())))
        });
        let run = run(&metadata, &["--deadline", "20"]);
        run.failed(&["[ek-not-endorsed]; next: n; the pointer config is unchanged, but for a header that says why"]);
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

/// What stands in a gateway's place for a moment costs nobody anything: Ignition does not take it either, and asks again.
#[test]
fn a_certificate_that_nobody_takes_is_waited_for() {
    let (gateway, other) = (
        Gateway::start(&json!(["gcp"]), &json!({})),
        Gateway::start(&json!(["gcp"]), &json!({})),
    );
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"][0]["source"] = json!(other.authority);
    let metadata = google(Some(pointer.to_string()));
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path(), &metadata, &["--wait", "2"]);
    run.failed(&[
        "[tls-unknown-ca]; next: ",
        "; the pointer config is unchanged, but for a header that says why",
    ]);
    assert!(run.stderr.contains("waiting for 0 s so far: "), "{}", run.stderr);
    assert!(run.took >= Duration::from_secs(2), "{:?}", run.took);
    // Where the system trusts it, Ignition gets there, and what it gets is not for this node to hold up.
    let pem = gateway.authority.strip_prefix("data:;base64,").unwrap();
    fs::write(folder.path().join("system.pem"), BASE64.decode(pem.as_bytes()).unwrap()).unwrap();
    let run = run_in(folder.path(), &metadata, &[]);
    run.failed(&["[tls-unknown-ca]; next: ", "; the pointer config is unchanged"]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(gateway.told.lock().unwrap().is_empty(), "nothing was said to it");
}

/// What Ignition takes and this program does not is not held up by it.
#[test]
fn a_certificate_that_ignition_may_take_is_given_up_at_once() {
    let given_up = |gateway: &Gateway, pointer: &Value, code: &str, lines: usize| {
        let run = run(&google(Some(pointer.to_string())), &[]);
        run.failed(&[code, "; the pointer config is unchanged"]);
        assert_eq!(run.stderr.lines().count(), lines, "{}", run.stderr);
        assert!(run.written.is_none() && gateway.told.lock().unwrap().is_empty());
        run.stderr
    };
    // Its CA is one that Ignition fetches, and this program does not.
    let (gateway, other) = (
        Gateway::start(&json!(["gcp"]), &json!({})),
        Gateway::start(&json!(["gcp"]), &json!({})),
    );
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"] =
        json!([{"source": other.authority}, {"source": "https://ca.example/ca.pem"}]);
    let said = given_up(&gateway, &pointer, "[tls-unknown-ca]; next: ", 2);
    let note = "note: certificate authority 1 of the pointer config: is not a data URL, and nothing else is trusted";
    assert!(said.contains(note), "{said}");
    // Its certificate is its own CA: Go's programs take it, and this one's TLS does not.
    let gateway = Gateway::of_its_own_ca();
    let pointer = serde_json::from_str(&gateway.pointer()).unwrap();
    given_up(&gateway, &pointer, "[tls-failed]; next: ", 1);
}

/// One that gives configs and cannot attest is not waited for without end: Ignition would not wait.
#[test]
fn a_gateway_that_has_configs_only_is_given_up_in_the_end() {
    let (gateway, metadata) = site(Some(LONG), |path, _| {
        (path == CHALLENGE).then(|| Some((500, String::new(), String::new())))
    });
    let run = run(&metadata, &["--deadline", "2"]);
    run.failed(&[
        "[gateway-failing]",
        "its configs can be had all the same",
        "; the pointer config is unchanged, but for a header that says why",
    ]);
    assert!(
        (Duration::from_secs(20)..Duration::from_secs(50)).contains(&run.took),
        "{:?}",
        run.took
    );
    assert_eq!(run.written.unwrap(), unreachable(&gateway));
    let told = gateway.told.lock().unwrap();
    let [.., before, asked, after] = told.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!((before.0.as_str(), after.0.as_str()), (CHALLENGE, CHALLENGE), "asked once more");
    assert_eq!(*asked, ("/config/worker".to_owned(), json!({"HEAD": null})));
}

#[test]
fn nobody_is_held_against_the_will_of_who_started_the_program() {
    let busy = |path: &str, _: usize| (path == CHALLENGE).then(|| problem(503, "unavailable")).flatten();
    let (gateway, metadata) = site(Some(LONG), busy);
    let run = run(&metadata, &["--deadline", "2", "--hold", "0"]);
    run.failed(&[
        "answers 503",
        "[gateway-failing]",
        "; the pointer config is unchanged, but for a header that says who",
    ]);
    let pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    assert_eq!((run.written, run.stderr.lines().count()), (Some(pointer), 1));
    // The pool's own zero is the same.
    let (_gateway, metadata) = site(Some(0), busy);
    self::run(&metadata, &["--deadline", "2"]).failed(&["[gateway-failing]"]);
}

#[test]
fn a_challenge_that_was_spent_in_vain_is_replaced_as_long_as_the_node_is_held() {
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before) {
        (EVIDENCE, 0 | 3) => problem(503, "cloud-unavailable"),
        (EVIDENCE, 1) => problem(503, "unavailable"),
        (EVIDENCE, 2 | 4) => problem(403, "challenge-spent"),
        (EVIDENCE, 5) => problem(403, "challenge-expired"),
        _ => None,
    });
    run(&metadata, &["--deadline", "20"]).attested();
    let told = gateway.told.lock().unwrap();
    let asked: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).skip(1).collect();
    // What could not be verified has spent its challenge. What the gateway had no time for may not have.
    let expect = [
        CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE, EVIDENCE, CHALLENGE,
        EVIDENCE,
    ];
    assert_eq!(asked, expect);
}

#[test]
fn a_challenge_that_is_always_spent_is_not_asked_for_for_ever() {
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
fn a_node_comes_back_when_it_is_told_to() {
    let (_gateway, metadata) = site(None, |path, before| {
        (path == CHALLENGE && before == 0).then(|| come_again(2)).flatten()
    });
    let run = run(&metadata, &["--deadline", "10"]);
    run.attested();
    assert!(run.took >= Duration::from_secs(2), "{:?}", run.took);
}

/// Gives tickets that last so long, each with its number.
fn ticket(number: usize, lasts: u64) -> Option<Instead> {
    // The challenge's `expires` is 0.
    let body = json!({"ticket": format!("ticket.{number}"), "expires": lasts, "url": "/config/worker"});
    Some(Some((200, String::new(), body.to_string())))
}

/// Two gateways in one pointer: the first gives tickets that last `lasts` seconds, and answers `again` to whoever wants another challenge;
/// the second has this node wait for three seconds. Gives how often the first was asked for a challenge, and what stands in both sources.
#[track_caller]
fn two_sources(lasts: u64, again: fn() -> Option<Instead>) -> (usize, Run, [Value; 2]) {
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    let first = Gateway::answering(&json!(["gcp"]), &task, Some(LONG), move |path, before| match (path, before) {
        (CHALLENGE, 1..) => again(),
        (EVIDENCE, _) => ticket(before, lasts),
        _ => None,
    });
    let second = Gateway::answering(&json!(["gcp"]), &task, Some(LONG), move |path, before| match (path, before) {
        (CHALLENGE, 0) => come_again(3),
        (EVIDENCE, _) => ticket(7, LONG),
        _ => None,
    });
    let [mut pointer, other] = [&first, &second].map(|gateway| serde_json::from_str::<Value>(&gateway.pointer()).unwrap());
    for list in ["/ignition/config/merge", "/ignition/security/tls/certificateAuthorities"] {
        let further = other.pointer(list).unwrap()[0].clone();
        pointer.pointer_mut(list).unwrap().as_array_mut().unwrap().push(further);
    }
    let run = run(&google(Some(pointer.to_string())), &["--deadline", "20"]);
    let asked = first.told.lock().unwrap().iter().filter(|(path, _)| path == CHALLENGE).count();
    let written = run.written.clone().unwrap_or_else(|| panic!("{}", run.stderr));
    let headers = [0, 1].map(|index| written["ignition"]["config"]["merge"][index]["httpHeaders"].clone());
    (asked, run, headers)
}

fn bearer(number: u32) -> Value {
    json!([{"name": "Authorization", "value": format!("Bearer ticket.{number}")}])
}

#[test]
fn a_ticket_that_grows_old_while_another_gateway_is_waited_for_is_earned_again() {
    let (asked, run, headers) = two_sources(2, || None);
    assert_eq!((asked, headers), (2, [bearer(1), bearer(7)]), "{}", run.stderr);
    assert!(run.success && !run.stderr.contains("ticket."), "{}", run.stderr);
}

#[test]
fn a_ticket_that_cannot_be_earned_again_is_kept_while_it_is_good() {
    let refuse = || problem(403, "ek-not-endorsed");
    let (asked, run, headers) = two_sources(11, refuse);
    assert_eq!((asked, headers), (2, [bearer(0), bearer(7)]), "{}", run.stderr);
    assert!(
        run.success && run.stderr.contains("the ticket is the one of before"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("[ek-not-endorsed]"), "{}", run.stderr);
}

#[test]
fn a_ticket_that_is_over_is_not_written() {
    let refuse = || problem(403, "ek-not-endorsed");
    let (asked, run, headers) = two_sources(2, refuse);
    let said = json!([{"name": "attestation-not-attested", "value": "ek-not-endorsed"}]);
    assert_eq!((asked, headers), (2, [said, bearer(7)]), "{}", run.stderr);
    run.failed(&["[ek-not-endorsed]", "the other sources have their tickets"]);
}
