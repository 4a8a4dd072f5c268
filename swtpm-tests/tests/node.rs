//! Behaviour of attest-node in case of failure: one line of message, no changes, and an end in bounded time.
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use attest::protocol::{ChallengeResponse, Discovery, SERVICE, Task, TpmTask, VERSION};
use serde_json::{Value, json};
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::stand_in::{StandIn, response};
use swtpm_tests::{EkAuthority, Process, Programs, TestEndorsement, TestFolder, TestGateway, TpmServer, VmClock, free_port};

/// Deadline of the node in these tests.
const NODE_DEADLINE_SECONDS: u64 = 4;
/// Maximum delay of the end after its deadline on a loaded machine.
const GRACE: Duration = Duration::from_secs(20);
const VM_LIMIT: Duration = Duration::from_secs(180);

/// `attest-node` on this machine with an endorsed TPM, and a gateway that trusts it.
struct Bench {
    folder: TestFolder,
    gateway: TestGateway,
    tpm: TpmServer,
}

/// Result of a run of attest-node.
struct Ended {
    code: Option<i32>,
    /// Last line of its output.
    verdict: String,
    /// Content of the file that it wrote for Ignition.
    user_ign: Option<String>,
}

impl Bench {
    fn new() -> Self {
        let folder = TestFolder::new().unwrap();
        let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
        let gateway = TestGateway::on_free_port(&folder.path().join("gateway")).unwrap();
        gateway.trust(&authority).unwrap();
        let tpm = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
        Self { folder, gateway, tpm }
    }

    /// Creates a second gateway's folder, which has another CA.
    fn stranger(&self) -> TestGateway {
        TestGateway::on_free_port(&self.path("stranger")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_node(&self, pointer: &str, deadline_seconds: u64) -> Process {
        fs::write(self.path("pointer.ign"), pointer).unwrap();
        fs::write(self.path("cmdline"), "quiet\n").unwrap();
        let arguments = [
            ("--pointer", self.path("pointer.ign").display().to_string()),
            ("--out", self.path("user.ign").display().to_string()),
            ("--cmdline", self.path("cmdline").display().to_string()),
            ("--event-log", self.path("no-event-log").display().to_string()),
            ("--tcti", self.tpm.tcti()),
            ("--deadline", deadline_seconds.to_string()),
            // Without it, for ever.
            ("--wait", deadline_seconds.to_string()),
            // How a node is held that is told to come again is in attest/node/tests/hold.rs.
            ("--hold", "0".to_owned()),
        ];
        let options = arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let words = std::iter::once("attest".to_owned()).chain(options);
        Process::spawn(&Programs::build().unwrap().node, words, &self.path("node.log"), None).unwrap()
    }

    fn finish(&self, mut node: Process, limit: Duration) -> Ended {
        let status = node.wait(limit).unwrap();
        Ended {
            code: status.code(),
            verdict: node
                .lines()
                .into_iter()
                .rfind(|line| line.starts_with("attest-node: "))
                .unwrap_or_default(),
            user_ign: read(&self.path("user.ign")),
        }
    }

    /// Runs attest-node, which must fail in time and say `reason`. It must change nothing, except for the header that reports a failed
    /// attestation.
    fn refuses(&self, pointer: &str, reason: &str) {
        let started = Instant::now();
        let node = self.start_node(pointer, NODE_DEADLINE_SECONDS);
        let ended = self.finish(node, Duration::from_secs(NODE_DEADLINE_SECONDS) + GRACE);
        assert_eq!(ended.code, Some(1), "{}", ended.verdict);
        if ["[gateway-unreachable]", "[gateway-failing]", "[tls-unknown-ca]"].contains(&reason) {
            let mut expect: Value = serde_json::from_str(pointer).unwrap();
            let headers = json!([{"name": "attestation-not-attested", "value": "gateway-unreachable"}]);
            *expect.pointer_mut("/ignition/config/merge/0").unwrap() = {
                let mut source = expect.pointer("/ignition/config/merge/0").unwrap().clone();
                source.as_object_mut().unwrap().insert("httpHeaders".to_owned(), headers);
                source
            };
            let written: Value = serde_json::from_str(&ended.user_ign.unwrap()).unwrap();
            assert_eq!(written, expect);
        } else {
            assert_eq!(ended.user_ign, None);
        }
        assert_eq!(read(&self.path("pointer.ign")).as_deref(), Some(pointer));
        for part in ["attest-node: not attested: ", reason, "; next: ", "the pointer config is unchanged"] {
            assert!(ended.verdict.contains(part), "{part:?} is not in {:?}", ended.verdict);
        }
        println!("{:.1} s: {}", started.elapsed().as_secs_f64(), ended.verdict);
    }

    /// Starts a server with the gateway's certificate that gives this answer to everything. Returns the pointer to it.
    fn server_that_answers(&self, answer: Vec<u8>) -> String {
        let stand_in = StandIn::tls(&self.gateway.serving_certificate(), Box::new(move |_| answer.clone())).unwrap();
        self.gateway.pointer_to("127.0.0.1", stand_in.port(), None).unwrap()
    }

    /// Runs attest-node against a server other than a gateway: a missing gateway does not count as a failure.
    fn leaves_alone(&self, pointer: &str) {
        let node = self.start_node(pointer, NODE_DEADLINE_SECONDS);
        let ended = self.finish(node, Duration::from_secs(NODE_DEADLINE_SECONDS) + GRACE);
        assert_eq!((ended.code, ended.user_ign), (Some(0), None), "{}", ended.verdict);
        assert!(
            ended.verdict.contains("nothing to do: no source is an attestation gateway"),
            "{}",
            ended.verdict
        );
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[test]
fn writes_the_ticket_after_a_successful_attestation() {
    let mut bench = Bench::new();
    bench.gateway.start(None).unwrap();
    let pointer = bench.gateway.pointer_to("127.0.0.1", bench.gateway.port(), None).unwrap();
    let ended = bench.finish(bench.start_node(&pointer, 60), Duration::from_secs(60) + GRACE);
    assert_eq!(ended.code, Some(0), "{}", ended.verdict);
    assert!(ended.verdict.contains("attested as tpm:"), "{}", ended.verdict);
    assert!(ended.user_ign.unwrap().contains("Bearer ticket."));
    assert!(
        !read(&bench.path("node.log")).unwrap().contains("ticket."),
        "the ticket is a secret"
    );
}

#[test]
fn a_pointer_with_the_wrong_ca() {
    let mut bench = Bench::new();
    bench.gateway.start(None).unwrap();
    let pointer = bench.stranger().pointer_to("127.0.0.1", bench.gateway.port(), None).unwrap();
    bench.refuses(&pointer, "[tls-unknown-ca]");
    assert!(bench.gateway.records().unwrap().is_empty());
}

#[test]
fn a_gateway_that_is_down_and_stays_down() {
    let bench = Bench::new();
    let pointer = bench.gateway.pointer_to("127.0.0.1", free_port().unwrap(), None).unwrap();
    bench.refuses(&pointer, "[gateway-unreachable]");
}

#[test]
fn a_gateway_that_is_down_and_comes_up() {
    let mut bench = Bench::new();
    // Somebody must see the node's first attempt fail before the gateway comes: a listener that hangs up.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let pointer = bench.gateway.pointer_to("127.0.0.1", port, None).unwrap();
    let node = bench.start_node(&pointer, 60);
    drop(listener.accept().unwrap());
    drop(listener);
    bench.gateway.set_port(port).unwrap();
    bench.gateway.start(None).unwrap();
    let ended = bench.finish(node, Duration::from_secs(60) + GRACE);
    assert_eq!(ended.code, Some(0), "{}", ended.verdict);
    assert!(ended.verdict.contains("attested as tpm:"), "{}", ended.verdict);
}

#[test]
fn a_server_that_does_not_speak_tls() {
    let bench = Bench::new();
    let stand_in = StandIn::raw(b"\x00\xff\x13\x37 this is not TLS\n").unwrap();
    bench.refuses(
        &bench.gateway.pointer_to("127.0.0.1", stand_in.port(), None).unwrap(),
        "[gateway-unreachable]",
    );
}

#[test]
fn a_server_that_does_not_speak_http() {
    let bench = Bench::new();
    bench.refuses(
        &bench.server_that_answers(b"\x00\xff\x13\x37 this is not HTTP\n".to_vec()),
        "[gateway-unreachable]",
    );
}

#[test]
fn ignores_a_server_that_is_no_gateway() {
    let bench = Bench::new();
    let json = "application/json";
    // A Machine Config Server.
    bench.leaves_alone(&bench.server_that_answers(response("404 Not Found", json, b"")));
    bench.leaves_alone(&bench.server_that_answers(response("200 OK", "text/html", b"<html>It works!</html>")));
    bench.leaves_alone(&bench.server_that_answers(response("200 OK", json, br#"{"service":"other","protocol":1,"kinds":["tpm"]}"#)));
    bench.leaves_alone(&bench.server_that_answers(response("200 OK", json, b"")));
    bench.leaves_alone(&bench.server_that_answers(response("302 Found\r\nLocation: https://127.0.0.1:1/", json, b"")));
}

#[test]
fn refuses_an_endless_or_truncated_answer() {
    let bench = Bench::new();
    let json = "application/json";
    bench.refuses(
        &bench.server_that_answers(response("200 OK", json, &vec![b'['; 4 * 1024 * 1024])),
        "[gateway-answer]",
    );
    bench.refuses(
        &bench.server_that_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{".to_vec()),
        "[gateway-unreachable]",
    );
}

#[test]
fn a_gateway_that_is_overloaded() {
    let bench = Bench::new();
    bench.refuses(
        &bench.server_that_answers(response("503 Service Unavailable", "application/json", b"")),
        "[gateway-failing]",
    );
}

/// Starts a server that claims to be a gateway and then gives this challenge, which the node must refuse.
fn challenges(bench: &Bench, nonce: &[u8], reason: &str) {
    let discovery = Discovery {
        kubelet_key: None,
        service: SERVICE.to_owned(),
        protocol: VERSION,
        kinds: vec!["tpm".to_owned()],
        hold_seconds: None,
    };
    let challenge = ChallengeResponse {
        challenge: "opaque".to_owned(),
        nonce: nonce.to_vec().into(),
        purpose: attest::nonce::PURPOSE_CONFIG.to_owned(),
        expires: 1,
        task: Task::from(TpmTask {
            credential_blob: vec![0xff; 40].into(),
            encrypted_secret: vec![0; 258].into(),
            pcr_bank: "sha256".to_owned(),
            pcrs: vec![0, 7],
        }),
    };
    let script = move |request: &str| {
        let body = if request.starts_with("GET ") {
            serde_json::to_vec(&discovery)
        } else {
            serde_json::to_vec(&challenge)
        };
        response("200 OK", "application/json", &body.unwrap())
    };
    let stand_in = StandIn::tls(&bench.gateway.serving_certificate(), Box::new(script)).unwrap();
    bench.refuses(&bench.gateway.pointer_to("127.0.0.1", stand_in.port(), None).unwrap(), reason);
}

#[test]
fn a_challenge_that_is_garbage() {
    let bench = Bench::new();
    challenges(&bench, b"short", "[gateway-task]");
    // Well formed, but no credential for this TPM: it says so itself.
    challenges(&bench, &[7; 32], "[tpm-failed]");
}

/// Boots a VM with an endorsed TPM whose clock is off. Returns its attest-node's verdict.
fn verdict_with_clock(days: i64) -> String {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("clock").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap();
    let vm = site
        .vm()
        .pointer(&pointer)
        .tpm(&tpm)
        .clock(VmClock::OffByDays(days))
        .kernel_argument("attest-node.wait=3")
        .start(&vm_folder)
        .unwrap();
    // Ignition itself would retry for ever: the VM is dropped as soon as attest-node has ended.
    vm.console()
        .wait_line(VM_LIMIT, |line| line.starts_with("@@ exit attest-node "))
        .unwrap();
    vm.console()
        .lines()
        .into_iter()
        .rfind(|line| line.starts_with("attest-node: "))
        .unwrap()
}

#[test]
fn a_clock_that_is_a_year_ahead() {
    let verdict = verdict_with_clock(365);
    assert!(verdict.contains("attested as tpm:"), "{verdict}");
}

#[test]
fn a_clock_that_is_a_year_behind() {
    let verdict = verdict_with_clock(-365);
    assert!(
        verdict.contains("not attested: ") && verdict.contains("[tls-not-yet-valid]"),
        "{verdict}"
    );
}
