//! Reports of failed first boots: linked to an attestation or not, limited for each source and in all, and harmless to whoever reads them.

use std::fs;
use std::net::Ipv4Addr;

use attest::protocol::{EvidenceResponse, REPORT_BODY_LIMIT_BYTES, REPORT_JOURNAL_LIMIT_BYTES, REPORT_PATH, ReportResponse};
use cloud_fixtures::port::ReservedPort;
use serde_json::{Value, json};

use crate::support::{Answer, Case, Gateway, POOL, bearer, next_boot, tpm};

/// Journal of a report.
const JOURNAL: &str = "ignition[512]: disks: createPartitions: op(1): [failed] partitioning \"/dev/vdb\"\n";

/// Returns a report of a node that proves nothing.
pub fn report() -> Value {
    json!({
        "pool": POOL,
        "stage": "disks",
        "unit": "ignition-disks.service",
        "error": "disks: createPartitions: op(1): [failed] partitioning \"/dev/vdb\"",
        "boot": "0123456789abcdef".repeat(2),
        "journal": JOURNAL,
    })
}

fn with(report: &Value, name: &str, value: impl Into<Value>) -> Value {
    let mut report = report.clone();
    report[name] = value.into();
    report
}

/// Attests, and returns the proof for reports with the id of the decision.
pub async fn proof(gateway: &Gateway, case: Case) -> (String, String) {
    let answer = gateway.attest(case, None).await;
    let response: EvidenceResponse = serde_json::from_slice(&answer.body).unwrap();
    let decision = gateway.records().last().unwrap()["id"].as_str().unwrap().to_owned();
    (response.report.unwrap().reveal().to_owned(), decision)
}

/// Returns the id of an accepted report.
#[track_caller]
pub fn id(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    serde_json::from_slice::<ReportResponse>(&answer.body).unwrap().report
}

/// Sends a report from another address of this machine.
async fn from(gateway: &Gateway, address: u32, report: &Value) -> Answer {
    let client = gateway.client_from(Ipv4Addr::from_bits((127 << 24) + address));
    Answer::send(client.post(gateway.url(REPORT_PATH)).json(report)).await
}

/// Returns the number of files with evidence.
fn blobs(gateway: &Gateway) -> usize {
    fs::read_dir(gateway.path("state/evidence")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_linked_to_the_attestation_that_it_proves() {
    let port = ReservedPort::reserve();
    let mut gateway = Gateway::init();
    gateway.settings(&format!("[metrics]\nlisten = \"{}\"", port.address()));
    gateway.run();
    let case = tpm();
    let identity = format!("tpm:{}", gateway.endorse(&case, &["--name", "worker-7"]));
    let (proof, decision) = proof(&gateway, case).await;
    let verified = id(&gateway.post(REPORT_PATH, &with(&report(), "proof", proof.clone())).await);
    // A node that was refused has no proof, and names the refusal.
    let claimed = with(&with(&report(), "decision", decision.clone()), "stage", "attest");
    let other = id(&gateway.post(REPORT_PATH, &claimed).await);
    let records = gateway.records();
    let [first, second] = &records[records.len() - 2..] else { panic!() };
    assert_eq!((&first["id"], &second["id"]), (&json!(verified), &json!(other)));
    let known = (
        &first["identity"],
        &first["name"],
        &first["report"]["attestation"],
        &first["report"]["verified"],
    );
    assert_eq!(known, (&json!(identity), &json!("worker-7"), &json!(decision), &json!(true)));
    let known = (
        &second["identity"],
        &second["name"],
        &second["report"]["attestation"],
        &second["report"]["verified"],
    );
    assert_eq!(known, (&Value::Null, &Value::Null, &json!(decision), &json!(false)));
    gateway.line(|line| line.contains(&format!("REPORT {verified} of {identity} (worker-7) pool=worker")));
    // By node, by time, verified ones alone.
    let list = |more: &[&str]| gateway.command(&[&["reports", "list"], more].concat());
    let rows = |more: &[&str]| list(more).lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rows(&[]).len(), 2);
    for more in [
        &["--node", "worker-7"][..],
        &["--node", &identity],
        &["--verified", "--since", "1h"],
    ] {
        let rows = rows(more);
        assert!(
            rows.len() == 1 && rows[0].contains(&verified[..12]) && rows[0].contains("  worker-7  worker  yes  "),
            "{rows:?}"
        );
    }
    assert!(rows(&["--node", "worker-8"]).is_empty() && rows(&["--until", "1h"]).is_empty() && rows(&["--pool", "infra"]).is_empty());
    let listed: Value = serde_json::from_str(&list(&["--output", "json"])).unwrap();
    assert_eq!((&listed[0]["report"], &listed[1]["verified"]), (&json!(verified), &json!("no")));
    let shown = gateway.command(&["reports", "show", &verified[..8]]);
    assert!(
        shown.contains(&format!("attestation  {decision} (verified)")) && shown.ends_with(JOURNAL),
        "{shown}"
    );
    let shown: Value = serde_json::from_str(&gateway.command(&["reports", "show", &other, "--output", "json"])).unwrap();
    assert_eq!((&shown["journal"], &shown["report"]["stage"]), (&json!(JOURNAL), &json!("attest")));
    for wrong in ["00000000", "7"] {
        assert!(!gateway.try_command(&["reports", "show", wrong]).status.success());
    }
    // One journal, and one file with it.
    assert_eq!(first["report"]["journal_sha256"], second["report"]["journal_sha256"]);
    gateway.command(&["log", "audit"]);
    let text = reqwest::get(format!("http://{}/metrics", port.address()))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    for line in [
        "attest_gateway_reports_total{result=\"verified\"} 1",
        "attest_gateway_reports_total{result=\"unverified\"} 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // An audit notices a journal that was altered.
    let name = first["report"]["journal_sha256"].as_str().unwrap();
    fs::remove_file(gateway.path(&format!("state/evidence/{name}.gz"))).unwrap();
    let audited = gateway.try_command(&["log", "audit"]);
    assert!(!audited.status.success() && String::from_utf8(audited.stdout).unwrap().contains("the journal cannot be read"));
    let shown = gateway.try_command(&["reports", "show", &verified]);
    assert!(!shown.status.success() && String::from_utf8(shown.stderr).unwrap().contains("cannot read the journal"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_that_does_not_hold_links_nothing() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let next = next_boot(&case);
    let answer = gateway.attest(case, None).await;
    let response: EvidenceResponse = serde_json::from_slice(&answer.body).unwrap();
    let (ticket, proof) = (response.ticket, response.report.unwrap().reveal().to_owned());
    let before = gateway.records().len();
    let middle = proof.len() / 2;
    let other = if proof[middle..].starts_with('A') { "B" } else { "A" };
    let altered = format!("{}{other}{}", &proof[..middle], &proof[middle + 1..]);
    for wrong in [
        &*altered,
        "",
        "x",
        &ticket,
        ticket.trim_start_matches("ticket."),
        &"x".repeat(120_000),
    ] {
        let answer = gateway.post(REPORT_PATH, &with(&report(), "proof", wrong)).await;
        assert_ne!(proof, wrong);
        answer.refused(403, "report-proof-invalid");
    }
    let elsewhere = with(&with(&report(), "proof", proof.clone()), "pool", "infra");
    gateway.post(REPORT_PATH, &elsewhere).await.refused(403, "report-proof-invalid");
    assert_eq!(gateway.records().len(), before);
    // And it earns nothing else.
    for credential in [proof.clone(), format!("ticket.{proof}")] {
        let answer = gateway.config("/config/worker", &[&bearer(&credential)]).await;
        assert_ne!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    }
    // Its machine may attest again, and both proofs are good.
    let (second, _) = self::proof(&gateway, next).await;
    for proof in [proof, second] {
        id(&gateway.post(REPORT_PATH, &with(&report(), "proof", proof)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_60_a_malformed_report_is_refused() {
    let gateway = Gateway::start();
    let good = report();
    let escaped = "\"\n".repeat(REPORT_JOURNAL_LIMIT_BYTES / 2);
    id(&gateway.post(REPORT_PATH, &with(&good, "journal", escaped)).await);
    id(&gateway.post(REPORT_PATH, &with(&good, "journal", "")).await);
    let (records, files) = (gateway.records().len(), blobs(&gateway));
    let long = |letters: usize| "x".repeat(letters);
    for (name, value) in [
        ("journal", json!(long(REPORT_JOURNAL_LIMIT_BYTES + 1))),
        ("journal", json!("a\u{1b}[2Jb")),
        ("journal", json!("a\rb")),
        ("journal", json!("a\u{9b}2J")),
        ("journal", json!("\0")),
        ("journal", json!(["a"])),
        ("journal", Value::Null),
        ("error", json!("a\nTRUSTED tpm:00")),
        ("error", json!(long(1001))),
        ("error", json!("\u{1b}]0;owned\u{7}")),
        ("unit", json!("")),
        ("unit", json!("a b.service")),
        ("unit", json!("\u{e4}.service")),
        ("unit", json!("../x")),
        ("unit", json!(long(256))),
        ("stage", json!("Disks")),
        ("stage", json!("sleep")),
        ("boot", json!("0123456789ABCDEF".repeat(2))),
        ("boot", json!("")),
        ("decision", json!("0")),
        ("decision", json!("\u{1b}".repeat(32))),
        ("proof", json!(7)),
        ("identity", json!("tpm:00")),
        ("name", json!("worker-7")),
        ("journal2", json!("")),
    ] {
        gateway
            .post(REPORT_PATH, &with(&good, name, value))
            .await
            .refused(400, "malformed-request");
    }
    for name in ["pool", "stage", "unit", "error", "boot", "journal"] {
        let mut without = good.clone();
        without.as_object_mut().unwrap().remove(name);
        gateway.post(REPORT_PATH, &without).await.refused(400, "malformed-request");
    }
    gateway
        .post(REPORT_PATH, &with(&good, "pool", "none"))
        .await
        .refused(404, "pool-unknown");
    let raw = async |body: String| Answer::send_large(gateway.client.post(gateway.url(REPORT_PATH)).body(body)).await;
    for body in [
        String::new(),
        "null".to_owned(),
        "[".repeat(100_000),
        format!("{{\"journal\":{}", "[".repeat(100_000)),
    ] {
        raw(body).await.refused(400, "malformed-request");
    }
    raw(" ".repeat(REPORT_BODY_LIMIT_BYTES + 1)).await.refused(413, "body-too-large");
    gateway.config(REPORT_PATH, &[]).await.refused(405, "no-such-method");
    assert_eq!((gateway.records().len(), blobs(&gateway)), (records, files));
}

/// A terminal may interpret characters that JSON leaves as they are.
#[tokio::test(flavor = "multi_thread")]
async fn attack_60_a_report_commands_no_terminal() {
    let gateway = Gateway::start();
    let hostile = "a\u{202e}b\u{2066}c\u{e0041}d\u{200b}";
    let mut hostile = with(&with(&report(), "error", hostile), "journal", format!("{hostile}\n\t{hostile}\n"));
    hostile["unit"] = json!("x\\x1b.service");
    let sent = id(&gateway.post(REPORT_PATH, &hostile).await);
    gateway.line(|line| line.contains(&format!("REPORT {sent} of unknown node pool=worker")));
    let plain = |text: &str| {
        let line = |c: char| c == '\n' || c.is_ascii_graphic() || c == ' ' || c == '…';
        assert!(text.chars().all(line), "{text:?}");
    };
    for arguments in [
        &["reports", "list"][..],
        &["reports", "list", "--output", "json"],
        &["reports", "show", &sent],
        &["reports", "show", &sent, "--output", "json"],
        &["log", "show", "--decision", "report"],
        &["log", "show", "--record", &sent],
    ] {
        plain(&gateway.command(arguments));
    }
    let shown: Value = serde_json::from_str(&gateway.command(&["reports", "show", &sent, "--output", "json"])).unwrap();
    assert_eq!(shown["journal"], hostile["journal"], "the bytes are those that were sent");
}

/// A thousand sources that send what they can, beside attested nodes and nodes that could not attest.
#[tokio::test(flavor = "multi_thread")]
async fn attack_60_strangers_displace_no_report_of_others() {
    const STRANGERS: u32 = 1000;
    let gateway = Gateway::start();
    let mut proofs = Vec::new();
    for _ in 0..3 {
        let case = tpm();
        gateway.endorse(&case, &[]);
        proofs.push(proof(&gateway, case).await.0);
    }
    let before = id(&gateway.post(REPORT_PATH, &with(&report(), "proof", proofs[0].clone())).await);
    let honest = id(&from(&gateway, 0x01_0000, &report()).await);
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..STRANGERS {
        // Each journal is another one; some of the senders come again and again.
        let address = if number % 2 == 0 { 66 } else { 0x02_0000 + number };
        let sent = with(&report(), "journal", format!("{number}\n{}", "x".repeat(1000)));
        let answer = from(&gateway, address, &sent).await;
        match answer.status.as_u16() {
            200 => accepted += 1,
            _ => {
                refused += 1;
                answer.refused(503, "unavailable");
                assert!(answer.header("retry-after").is_some());
            }
        }
    }
    assert!(accepted <= 257 && refused >= 743, "{accepted} {refused}");
    // One that floods takes at most half.
    let records = gateway.records();
    let of_one = records
        .iter()
        .filter(|record| record["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.66:")))
        .count();
    assert!(of_one <= 128, "{of_one}");
    // The console has few lines, and the disk little of it.
    assert_eq!(gateway.how_often(|line| line.contains("REPORT ")), accepted + 2);
    assert!(gateway.how_often(|line| line.contains("too many reports")) <= 3);
    assert!(blobs(&gateway) <= 260);
    // Attested nodes, also behind the address of a stranger that has used up everything.
    for proof in &proofs {
        let sent = with(&with(&report(), "proof", proof.clone()), "journal", "after the flood\n");
        id(&from(&gateway, 66, &sent).await);
    }
    for earlier in [before, honest] {
        let shown = gateway.command(&["reports", "show", &earlier]);
        assert!(shown.ends_with(JOURNAL), "{shown}");
    }
    // Nor do they push them off the screen.
    let listed = gateway.command(&["reports", "list"]);
    let verified = listed.lines().filter(|line| line.contains("  yes  ")).count();
    assert_eq!((verified, listed.lines().count()), (4, 1 + 4 + 50), "{listed}");
    assert_eq!(gateway.command(&["reports", "list", "--all"]).lines().count(), 1 + 4 + 1 + accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_reports_are_off_says_so() {
    let mut gateway = Gateway::init();
    gateway.settings("reports = \"off\"");
    gateway.run();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let (proof, _) = proof(&gateway, case).await;
    let before = gateway.records().len();
    for sent in [report(), with(&report(), "proof", proof), json!("nothing of it is looked at")] {
        let answer = gateway.post(REPORT_PATH, &sent).await;
        answer.refused(403, "reports-off");
        assert!(answer.problem().next_step.contains("reports = \"on\""));
    }
    assert_eq!(gateway.records().len(), before);
    let listed = gateway.try_command(&["reports", "list"]);
    assert!(listed.status.success() && String::from_utf8(listed.stdout).unwrap().lines().count() == 1);
    assert_eq!(String::from_utf8(listed.stderr).unwrap(), "no report matches\n");
    gateway.settings("reports = \"no\"");
    let checked = gateway.try_command(&["check"]);
    assert!(!checked.status.success() && String::from_utf8(checked.stderr).unwrap().contains("`on` or `off`"));
}
