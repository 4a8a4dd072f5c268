//! The attacks on transport, tickets, tokens and parsers, against a running gateway.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::bench::{Bench, endorsement_key, honest, request};
use attest::protocol::{
    CHALLENGE_BODY_LIMIT_BYTES, CHALLENGE_PATH, ChallengeRequest, EVIDENCE_BODY_LIMIT_BYTES, EVIDENCE_PATH, EvidenceResponse,
};
use attest_node::tpm::{AkKind, TpmDevice};
use serde_json::{Value, json};
use swtpm_tests::{POOL, Process, Programs, Relay, Reply, TestGateway};

/// Maximum duration of attest-node, which ends long before, unless something is wrong.
const NODE_LIMIT: Duration = Duration::from_secs(90);
/// Number of concurrent clients in a race.
const RACERS: usize = 50;
/// Default number of uses of a ticket.
const TICKET_USES: usize = 4;

#[test]
fn attack_10_relay_through_a_server_of_the_same_ca() {
    let bench = Bench::new();
    let relay = Relay::start(&bench.gateway).unwrap();
    // The node's first fetches go through it, and it is trusted: its certificate is the MCS CA's.
    let attest_node = |port: u16| {
        let file = |name: &str| bench.folder.path().join(name).display().to_string();
        fs::write(file("pointer.ign"), bench.gateway.pointer_to("127.0.0.1", port, None).unwrap()).unwrap();
        fs::write(file("cmdline"), "quiet\n").unwrap();
        let arguments = [
            "attest".to_owned(),
            "--pointer".to_owned(),
            file("pointer.ign"),
            "--out".to_owned(),
            file("user.ign"),
            "--cmdline".to_owned(),
            file("cmdline"),
            "--event-log".to_owned(),
            file("no-event-log"),
            "--tcti".to_owned(),
            bench.server.tcti(),
        ];
        let log = bench.folder.path().join("node.log");
        let mut node = Process::spawn(&Programs::build().unwrap().node, arguments, &log, None).unwrap();
        (node.wait(NODE_LIMIT).unwrap().code(), node.lines().join("\n"))
    };
    let (code, lines) = attest_node(relay.port());
    assert_eq!(code, Some(1), "{lines}");
    assert!(lines.contains("[quote-extra-data]"), "{lines}");
    let record = bench.last_record();
    assert_eq!((record.verdict(), record.code()), ("refused", Some("quote-extra-data")));
    // No ticket: the pointer, and which decision it was.
    let json = |name: &str| -> Value { serde_json::from_slice(&fs::read(bench.folder.path().join(name)).unwrap()).unwrap() };
    let mut expect = json("pointer.ign");
    let said = format!("quote-extra-data {}", record.text("/id").unwrap());
    expect["ignition"]["config"]["merge"][0]["httpHeaders"] = json!([{"name": "attestation-not-attested", "value": said}]);
    assert_eq!(json("user.ign"), expect);
    bench.gives_only_pre_approved();
    // Without the relay the same node is trusted.
    let (code, lines) = attest_node(bench.gateway.port());
    assert_eq!(code, Some(0), "{lines}");
    assert!(json("user.ign").to_string().contains("Bearer ticket."));
}

/// Attests once. Returns the ticket.
fn ticket(bench: &Bench) -> String {
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.trusts(&mut attester, &request).ticket
}

/// Sends the same request from many threads at once.
fn race(racers: usize, send: impl Fn() -> Reply + Sync) -> Vec<Reply> {
    let start = Barrier::new(racers);
    let run = || {
        start.wait();
        send()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..racers).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Verifies that exactly `winners` of the racers are served, and that the others get this code.
fn exactly(winners: usize, code: &str, replies: &[Reply]) {
    let won = replies.iter().filter(|reply| reply.status == 200).count();
    let lost = replies
        .iter()
        .filter(|reply| (reply.status, reply.code().as_str()) == (403, code))
        .count();
    assert_eq!((won, lost), (winners, replies.len() - winners), "{replies:?}");
}

#[test]
fn attack_18_one_challenge_is_answered_twice_at_once() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    for racers in [2, 2, 2, RACERS] {
        let asked = bench.asked(&request);
        let evidence = asked.answered(honest(&mut attester, &asked));
        let replies = race(racers, || bench.client.evidence(&evidence).unwrap());
        exactly(1, "challenge-spent", &replies);
        let records = bench.gateway.records().unwrap();
        let trusted = records.iter().rev().take(racers).filter(|record| record.verdict() == "trusted");
        assert_eq!(trusted.count(), 1);
    }
}

#[test]
fn attack_18_a_tickets_last_use_is_raced_for() {
    let bench = Bench::new();
    let ticket = ticket(&bench);
    for _ in 1..TICKET_USES {
        bench.gives("full", Some(&ticket));
    }
    let replies = race(RACERS, || bench.client.config(POOL, Some(&ticket)).unwrap());
    exactly(1, "ticket-spent", &replies);
    bench.refuses_config(POOL, &ticket, "ticket-spent");
}

#[test]
fn attack_18_a_single_use_token_is_raced_for() {
    let bench = Bench::with(|gateway| gateway.edit_pool("token = \"refuse\"", "token = \"full\"").unwrap());
    let token = bench.gateway.command(&["token", "create", "--pool", POOL, "--uses", "1"]).unwrap();
    let token = token.trim();
    let replies = race(RACERS, || bench.client.config(POOL, Some(token)).unwrap());
    exactly(1, "token-spent", &replies);
    bench.refuses_config(POOL, token, "token-spent");
    let full = bench.gateway.records().unwrap();
    assert_eq!(full.iter().filter(|record| record.grant() == Some("full")).count(), 1);
    let reply = bench.client.get(&format!("/config/{POOL}?token={token}"), None).unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (403, "token-spent"));
}

/// Adds a second pool, like the first.
fn add_pool(gateway: &TestGateway, name: &str) {
    copy(
        &gateway.folder().join("pools").join(POOL),
        &gateway.folder().join("pools").join(name),
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn attack_21_a_ticket_for_another_pool_or_of_another_gateway() {
    let bench = Bench::with(|gateway| {
        add_pool(gateway, "master");
        gateway.edit_pool("token = \"refuse\"", "token = \"full\"").unwrap();
    });
    let ticket = ticket(&bench);
    for _ in 0..10 {
        bench.refuses_config("master", &ticket, "ticket-wrong-pool");
    }
    // Refusals have not used it up, and it is not a token.
    bench.gives("full", Some(&ticket));
    let reply = bench.client.get(&format!("/config/master?token={ticket}"), None).unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (403, "ticket-wrong-pool"));
    assert_eq!(bench.client.config("other", Some(&ticket)).unwrap().code(), "pool-unknown");

    // Evidence for one pool earns nothing in another: the challenge says which pool it is for.
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = ChallengeRequest {
        pool: "master".to_owned(),
        ..request(&ek, attester.ak_public())
    };
    let earned: EvidenceResponse = bench.trusts(&mut attester, &request);
    assert_eq!(earned.url, "/config/master");
    bench.refuses_config(POOL, &earned.ticket, "ticket-wrong-pool");

    // Another gateway's ticket, and tickets that nobody issued.
    let other = Bench::new();
    let foreign = self::ticket(&other);
    other.gives("full", Some(&foreign));
    bench.refuses_config(POOL, &foreign, "ticket-invalid");
    for at in [7, ticket.len() / 2, ticket.len() - 1] {
        let mut forged = ticket.clone();
        let replacement = if forged.as_bytes()[at] == b'A' { "B" } else { "A" };
        forged.replace_range(at..=at, replacement);
        bench.refuses_config(POOL, &forged, "ticket-invalid");
    }
    bench.refuses_config(POOL, "ticket.", "ticket-invalid");
    // A challenge is sealed by the same gateway, and is no ticket; nor the other way around.
    let asked = bench.asked(&request);
    bench.refuses_config(POOL, &format!("ticket.{}", asked.response.challenge), "ticket-invalid");
    let evidence = honest(&mut attester, &asked);
    let mut sealed_otherwise = asked;
    sealed_otherwise.response.challenge = earned.ticket.trim_start_matches("ticket.").to_owned();
    bench.refuses(&sealed_otherwise, evidence, "challenge-invalid");

    // Tokens: for one pool, too.
    let token = bench.gateway.create_token("spare").unwrap();
    bench.gives("full", Some(&token));
    bench.refuses_config(POOL, &token[1..], "token-invalid");
    bench.refuses_config(POOL, &token.to_ascii_uppercase(), "token-invalid");
    bench.refuses_config("master", &token, "token-not-accepted");
}

#[test]
fn attack_23_malformed_requests() {
    let mut bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let (challenge, evidence) = well_formed(&bench, &mut tpm, &ek);
    let post = |path: &str, body: Vec<u8>, status: u16, code: &str| {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let reply = bench.client.post(path, body).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{path} {shown:?}");
    };
    for (path, good, limit) in [
        (CHALLENGE_PATH, &challenge, CHALLENGE_BODY_LIMIT_BYTES),
        (EVIDENCE_PATH, &evidence, EVIDENCE_BODY_LIMIT_BYTES),
    ] {
        let malformed = |body: Vec<u8>| post(path, body, 400, "malformed-request");
        for cut in [0, 1, good.len() / 4, good.len() / 2, good.len() - 1] {
            malformed(good.as_bytes()[..cut].to_vec());
        }
        malformed(format!("{good}x").into_bytes());
        malformed(format!("{good}{good}").into_bytes());
        malformed(format!("[{good}]").into_bytes());
        malformed(good.replacen('{', "{\"more\":1,", 1).into_bytes());
        malformed(good.replace("\"tpm\"", "\"sgx\"").into_bytes());
        malformed(good.replace("_public", "_private").replace("quoted", "quoted2").into_bytes());
        // Base64 without padding, with line breaks, of the other alphabet; hexadecimal that is none.
        for bad in ["A", "AAA", "AA=A", "AAAA\\n", "____", "\\u0000", "ÄÖÜ="] {
            malformed(with_blob(good, bad).into_bytes());
        }
        for bad in ["{}", "[]", "null", "0", "\"\"", "{\"pool\":1}", "\u{feff}{}", "NaN", "1e999999"] {
            malformed(bad.as_bytes().to_vec());
        }
        for depth in [100, 10_000, limit / 2 - 1] {
            malformed(vec![b'['; depth]);
            malformed("{\"pool\":".repeat(depth / 8).into_bytes());
        }
        malformed(vec![0xff; 1000]);
        malformed(vec![0; 1000]);
        malformed(vec![b' '; limit]);
        post(path, vec![b' '; limit + 1], 413, "body-too-large");
        // Refused by its announced length: whether the answer still reaches a client that is busy sending is up to TCP.
        if let Ok(reply) = bench.client.post(path, vec![b'['; 8 * limit]) {
            assert_eq!((reply.status, reply.code().as_str()), (413, "body-too-large"));
        }
        let reply = bench.client.get(path, None).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (405, "no-such-method"));
    }
    // Well-formed JSON around structures that are none.
    let of_tpm = |body: String, code: &str| post(CHALLENGE_PATH, body.into_bytes(), 400, code);
    of_tpm(with_blob(&challenge, ""), "tpm-malformed");
    of_tpm(with_blob(&challenge, "AAAA"), "tpm-malformed");
    of_tpm(with_blob(&challenge, &"/".repeat(4096)), "tpm-malformed");
    for pool in ["../worker", "wörker", "", "WORKER", "worker\\u0000"] {
        let body = challenge.replace("\"worker\"", &format!("\"{pool}\""));
        post(CHALLENGE_PATH, body.into_bytes(), 404, "pool-unknown");
    }
    for name in ["../x", "a b", "", "X"] {
        let body = challenge.replacen('{', &format!("{{\"name\":\"{name}\","), 1);
        of_tpm(body, "malformed-request");
    }
    for path in [
        "/",
        "/v1",
        "/v1/attest/x",
        "/config",
        "/config/",
        "/config/a/b",
        "/config/../v1/attest",
        "/%00",
        "/config/%2e%2e",
        "/config/%ff",
    ] {
        let reply = bench.client.get(path, None).unwrap();
        assert!(
            (400..500).contains(&reply.status) || path.ends_with("/v1/attest"),
            "{path} {}",
            reply.status
        );
    }
    for credential in ["", " ", "a b", &"x".repeat(5000)] {
        let reply = bench.client.config(POOL, Some(credential)).unwrap();
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (403, "credential-malformed"),
            "{credential:?}"
        );
    }
    // It is still there, has not restarted, and trusts who is to be trusted.
    assert_eq!(bench.client.get("/readyz", None).unwrap().status, 200);
    let lines = bench.gateway.process().unwrap().lines();
    assert!(lines.iter().all(|line| !line.contains("panicked")), "{lines:#?}");
    assert_eq!(bench.client.post(EVIDENCE_PATH, evidence.into_bytes()).unwrap().status, 200);
    drop(tpm);
    bench.gives_only_pre_approved();
    assert!(bench.gateway.terminate().unwrap().success());
}

/// Returns request bodies that would be accepted.
fn well_formed(bench: &Bench, tpm: &mut TpmDevice, ek: &attest_node::tpm::EndorsementKey) -> (String, String) {
    let mut attester = tpm.attester(ek, AkKind::EccP256).unwrap();
    let request = request(ek, attester.ak_public());
    let asked = bench.asked(&request);
    let evidence = asked.answered(honest(&mut attester, &asked));
    (serde_json::to_string(&request).unwrap(), serde_json::to_string(&evidence).unwrap())
}

/// Replaces the content of a body's first binary value.
fn with_blob(body: &str, content: &str) -> String {
    let field = if body.contains("ek_public") {
        "\"ek_public\":\""
    } else {
        "\"quoted\":\""
    };
    let (before, rest) = body.split_once(field).unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    format!("{before}{field}{content}\"{after}")
}
