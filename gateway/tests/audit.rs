//! Report to an auditor: a log is as it was written, or the report says what is not.

use std::fs;
use std::path::PathBuf;

use crate::support::{Gateway, POOL, bearer, challenge_request, next_boot, tpm};
use attest::protocol::HexDigest;
use serde_json::{Value, json};

const EVIDENCE: &str = "/v1/attest/evidence";

/// Log with a record of each kind, made by a gateway's own actions.
struct Log {
    gateway: Gateway,
    records: Vec<Value>,
    altered: PathBuf,
}

/// Positions of the kinds of record in the log.
const TRUSTED: usize = 0;
const TICKET: usize = 1;
const TICKET_AGAIN: usize = 2;
const NAMED: usize = 3;
const TOKEN: usize = 4;
const NOTHING: usize = 5;
const REFUSED_BY_EVIDENCE: usize = 6;
const REFUSED_BY_STORE: usize = 7;
const BY_DIGEST: usize = 8;
const UNREAD: usize = 9;
const TOKEN_REFUSED: usize = 10;
const CHALLENGE: usize = 11;

impl Log {
    async fn written() -> Self {
        let mut gateway = Gateway::init();
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        gateway.run();
        let (case, named, stranger) = (tpm(), tpm(), tpm());
        gateway.endorse(&case, &[]);
        gateway.endorse(&named, &["--name", "worker-1"]);
        let ticket = bearer(&gateway.attest(next_boot(&case), Some("worker-0")).await.ticket());
        for _ in 0..2 {
            gateway.config("/config/worker", &[&ticket]).await;
        }
        gateway.attest(next_boot(&named), None).await.ticket();
        let token = bearer(&gateway.token(&["--name", "rack"]));
        gateway.config("/config/worker", &[&token]).await;
        gateway.config("/config/worker", &[]).await;
        let challenge = gateway.challenge(&case, None);
        let forged = gateway.answer(next_boot(&case), &challenge);
        gateway.post(EVIDENCE, &forged).await.refused(403, "quote-signature");
        gateway
            .attest(next_boot(&case), Some("worker-1"))
            .await
            .refused(403, "node-name-taken");
        let challenge = gateway.challenge(&case, None);
        let mut forged = gateway.answer(next_boot(&case), &challenge);
        forged.evidence.tpm.as_mut().unwrap().secret_sha256 = HexDigest::from([0; 32]);
        gateway.post(EVIDENCE, &forged).await.refused(403, "credential-mismatch");
        forged.challenge.insert(0, 'A');
        gateway.post(EVIDENCE, &forged).await.refused(403, "challenge-invalid");
        gateway
            .config("/config/worker", &["Bearer no-such-token"])
            .await
            .refused(403, "token-invalid");
        let request = challenge_request(&stranger, "worker");
        gateway.post("/v1/attest/challenge", &request).await.refused(403, "ek-not-endorsed");
        // As an older release has written them: what is altered is to be found by what it says, and not by the chain.
        let mut records = gateway.records();
        for record in &mut records {
            record.as_object_mut().unwrap().remove("chain");
        }
        Self {
            records,
            altered: gateway.path("altered.jsonl"),
            gateway,
        }
    }

    /// Returns whether the auditor finds these lines sound, and its output.
    fn audit(&self, lines: &[String]) -> (bool, String) {
        self.audit_with(lines, &[])
    }

    fn audit_with(&self, lines: &[String], options: &[&str]) -> (bool, String) {
        fs::write(&self.altered, lines.join("\n") + "\n").unwrap();
        let arguments = [&["log", "audit", "--unchained", "--log", self.altered.to_str().unwrap()], options].concat();
        let output = self.gateway.try_command(&arguments);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    /// Returns the auditor's output for the decisions in files of several gateways, each with a chain of its own.
    fn audit_several(&self, files: &[&[String]]) -> String {
        let mut arguments = vec!["log".to_owned(), "audit".to_owned(), "--unchained".to_owned(), "--log".to_owned()];
        for (number, lines) in files.iter().enumerate() {
            let file = self.gateway.path(&format!("gateway-{number}.jsonl"));
            let place = |at: usize| json!({"id": format!("{number:032x}"), "number": at + 1, "previous": "0".repeat(64)});
            let placed = lines.iter().enumerate().map(|(at, line)| {
                let open = line.strip_suffix('}').unwrap();
                format!("{open},\"chain\":{}}}\n", place(at))
            });
            fs::write(&file, placed.collect::<String>()).unwrap();
            arguments.push(file.to_str().unwrap().to_owned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        String::from_utf8(self.gateway.try_command(&arguments).stdout).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        self.records.iter().map(Value::to_string).collect()
    }

    /// Replaces one field of one record; `null` removes it. The auditor must name the line and what it is about. Returns a message if its
    /// output is different.
    fn misses(&self, at: usize, field: &str, value: &Value, said: &str) -> Option<String> {
        let mut record = self.records[at].clone();
        let (parent, name) = field.rsplit_once('/').unwrap();
        let parent = record.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        let before = parent.get(name).cloned();
        if value.is_null() {
            parent.remove(name);
        } else {
            parent.insert(name.to_owned(), value.clone());
        }
        assert_ne!(before, parent.get(name).cloned(), "{field} is as it was");
        let mut lines = self.lines();
        lines[at] = record.to_string();
        let (sound, table) = self.audit(&lines);
        // Of another id, its uses tell.
        let named = ["/id", "/ticket/uses"].contains(&field) || table.contains(&format!("line {}: ", at + 1));
        let found = !sound && named && table.contains("DIFFERENT") && table.contains(said);
        (!found).then(|| {
            format!(
                "{at} {field} {value}: {said:?} is not in:
{table}"
            )
        })
    }
}

/// Lines are in the order in which they were written. That of a decision which took long is older than those before it.
#[tokio::test(flavor = "multi_thread")]
async fn warns_of_lines_that_are_older_than_a_decision_can_be_late() {
    const LATE_SECONDS: u64 = 60;
    let log = Log::written().await;
    let earlier = log.records[..NOTHING].iter().filter_map(|record| record["at"].as_u64());
    let latest = earlier.max().unwrap();
    for (at, warns) in [(latest - LATE_SECONDS, false), (latest - LATE_SECONDS - 1, true)] {
        let mut record = log.records[NOTHING].clone();
        record["at"] = json!(at);
        record["time"] = json!(attest_system::clock::rfc3339(at));
        let mut lines = log.lines();
        lines[NOTHING] = record.to_string();
        let (sound, table) = log.audit(&lines);
        assert!(sound, "{table}");
        assert_eq!(table.contains("warning: it is older than an earlier line"), warns, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_34_every_altered_field_is_found() {
    let log = Log::written().await;
    let (sound, table) = log.audit(&log.lines());
    assert!(sound && table.contains("0 different"), "{table}");
    assert!(table.contains("2 recorded by digest, 1 unread, 0 unreadable lines"), "{table}");
    let at = log.records[TRUSTED]["at"].as_u64().unwrap();
    let other_id = "ab".repeat(16);
    let other_tpm = format!("tpm:{}", "ab".repeat(32));
    let mut missed = Vec::new();
    for (line, field, value, said) in [
        (TRUSTED, "/v", json!(2), "v is"),
        (TRUSTED, "/time", json!("2020-01-01T00:00:00Z"), "time is"),
        (TRUSTED, "/at", json!(at + 1), "time is"),
        (TRUSTED, "/id", json!(other_id), "earned_by"),
        (TRUSTED, "/decision", json!("config"), "verdict"),
        (TRUSTED, "/verdict", json!("served"), "verdict"),
        (TRUSTED, "/verdict", json!("refused"), "code is missing"),
        (TRUSTED, "/code", json!("pcr-mismatch"), "code"),
        (TRUSTED, "/pool", json!("infra"), "pool is"),
        (TRUSTED, "/shown", json!("cloud"), "shown is"),
        (TRUSTED, "/kinds", json!(["tpm", "gcp"]), "kinds is"),
        (TRUSTED, "/kinds", Value::Null, "kinds is"),
        (TRUSTED, "/identity", json!(other_tpm), "identity is"),
        (TRUSTED, "/identity", Value::Null, "identity is"),
        (TRUSTED, "/instance", json!("gcp:p/1"), "instance is"),
        (TRUSTED, "/name", json!("worker-9"), "name is"),
        (TRUSTED, "/name", Value::Null, "name is"),
        (TRUSTED, "/reason", json!("because"), "reason is"),
        (TRUSTED, "/decided_by", json!("store"), "decided_by is"),
        (TRUSTED, "/grant", json!("pre-approved"), "grant is"),
        (TRUSTED, "/grant", Value::Null, "grant is missing"),
        (TRUSTED, "/grants", Value::Null, "grants is missing"),
        (TRUSTED, "/ticket", Value::Null, "ticket is missing"),
        (TRUSTED, "/ticket/uses", json!(1), "use 2 of its ticket is missing"),
        (TRUSTED, "/ticket/expires", json!(at - 1), "terms"),
        (TRUSTED, "/claims", json!({}), "comes out as pcr-missing"),
        (TRUSTED, "/claims", Value::Null, "comes out as pcr-missing"),
        (TRUSTED, "/claims/tpm/reset_count", json!(1), "claims differ"),
        (TRUSTED, "/claims/name", json!("worker-9"), "claims differ"),
        (TRUSTED, "/earned_by", json!(other_id), "earned_by does not"),
        (TRUSTED, "/use_number", json!(1), "use_number is required"),
        (TRUSTED, "/config_sha256", json!("00"), "config_sha256 does not"),
        (TRUSTED, "/spec_version", json!("3.4.0"), "spec_version does not"),
        (TRUSTED, "/basis", Value::Null, "comes out as cannot"),
        (
            TRUSTED,
            "/recorded_late",
            json!("unanswered"),
            "recorded_late does not belong there",
        ),
        (TRUSTED, "/basis/challenge/pool", json!("infra"), "pool is"),
        (TRUSTED, "/basis/challenge/issued", json!(at + 1000), "its challenge was valid"),
        (
            TRUSTED,
            "/claims/tpm/pcrs/1",
            json!("00".repeat(32)),
            "comes out as quote-pcr-digest",
        ),
        (
            TRUSTED,
            "/basis/evidence/tpm/pcrs",
            json!({"1": "00".repeat(32)}),
            "comes out as pcr-missing",
        ),
        (TRUSTED, "/basis/allowlisted", json!(false), "comes out as ek-not-endorsed"),
        (TRUSTED, "/basis/policy", Value::Null, "comes out as cannot"),
        (NAMED, "/name", json!("worker-9"), "name is"),
        (NAMED, "/basis/allowlisted_name", json!("worker-9"), "name is"),
        (TICKET, "/identity", json!(other_tpm), "identity is"),
        (TICKET, "/name", json!("worker-9"), "name is"),
        (TICKET, "/pool", json!("infra"), "pool is"),
        (TICKET, "/earned_by", Value::Null, "earned_by is missing"),
        (TICKET, "/earned_by", log.records[NAMED]["id"].clone(), "earned_by"),
        (TICKET, "/earned_by", log.records[NOTHING]["id"].clone(), "earned_by"),
        (TICKET, "/use_number", json!(2), "reason is"),
        (TICKET, "/use_number", json!(9), "use 9 of its ticket is missing"),
        (TICKET, "/use_number", Value::Null, "use_number is missing"),
        (TICKET, "/grant", json!("pre-approved"), "grant is"),
        (TICKET, "/config_sha256", Value::Null, "config_sha256 is missing"),
        (TICKET, "/shown", json!("nothing"), "identity does not"),
        (TICKET_AGAIN, "/id", log.records[TICKET]["id"].clone(), "earlier decision"),
        (TICKET_AGAIN, "/claims", json!({}), "claims does not"),
        (TOKEN, "/shown", json!("ticket"), "earned_by is missing"),
        (TOKEN, "/use_number", json!(7), "reason is"),
        (TOKEN, "/identity", json!(other_tpm), "identity does not"),
        (TOKEN, "/name", Value::Null, "name is missing"),
        (NOTHING, "/grant", json!("full"), "grant is"),
        (NOTHING, "/name", json!("worker-9"), "name does not"),
        (NOTHING, "/verdict", json!("trusted"), "verdict"),
        (NOTHING, "/reason", json!("a friend"), "reason is"),
        (REFUSED_BY_EVIDENCE, "/code", json!("pcr-mismatch"), "comes out as quote-signature"),
        (REFUSED_BY_EVIDENCE, "/code", json!("node-revoked"), "decided_by is"),
        (REFUSED_BY_EVIDENCE, "/code", json!("challenge-invalid"), "decided_by is"),
        (REFUSED_BY_EVIDENCE, "/reason", json!("because"), "reason is"),
        (REFUSED_BY_EVIDENCE, "/identity", json!(other_tpm), "identity is"),
        (REFUSED_BY_EVIDENCE, "/pool", json!("infra"), "pool is"),
        (REFUSED_BY_STORE, "/code", json!("quote-signature"), "comes out as trusted"),
        (REFUSED_BY_STORE, "/decided_by", json!("evidence"), "decided_by is"),
        (REFUSED_BY_STORE, "/claims", json!({}), "comes out as pcr-missing"),
        (REFUSED_BY_STORE, "/name", json!("worker-9"), "name is"),
        (BY_DIGEST, "/verdict", json!("trusted"), "comes out as cannot"),
        (BY_DIGEST, "/code", json!("challenge-invalid"), "comes out as cannot"),
        (BY_DIGEST, "/basis", Value::Null, "comes out as cannot"),
        (UNREAD, "/identity", json!(other_tpm), "identity does not"),
        (UNREAD, "/pool", json!("worker"), "pool is"),
        (UNREAD, "/code", json!("pcr-mismatch"), "decided_by is"),
        (
            TOKEN_REFUSED,
            "/code",
            json!("ticket-spent"),
            "does not fit the presented credential",
        ),
        (TOKEN_REFUSED, "/verdict", json!("served"), "grant is missing"),
        (CHALLENGE, "/verdict", json!("trusted"), "verdict"),
        (CHALLENGE, "/basis", Value::Null, "digests is missing"),
        (CHALLENGE, "/claims", json!({}), "claims does not"),
    ] {
        missed.extend(log.misses(line, field, &value, said));
    }
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}

/// A forger of a log cannot remove evidence by marking its record as late: the ticket that the decision earned was used.
#[tokio::test(flavor = "multi_thread")]
async fn attack_34_audit_checks_late_records() {
    let log = Log::written().await;
    let late = |answered: &str, terms: bool| {
        let mut records = log.records.clone();
        let record = records[TRUSTED].as_object_mut().unwrap();
        record.remove("basis");
        record.insert("recorded_late".to_owned(), json!(answered));
        if !terms {
            record.remove("ticket");
        }
        records.iter().map(Value::to_string).collect::<Vec<_>>()
    };
    let (sound, table) = log.audit(&late("unanswered", true));
    assert!(!sound && table.contains("its ticket was never sent"), "{table}");
    let (sound, table) = log.audit(&late("unknown", true));
    assert!(sound && table.contains("was recorded late, without its evidence"), "{table}");
    // Where it is known what was signed, nothing is missing that could have more of it.
    let signed = log.gateway.checkpoints();
    let (sound, table) = log.audit_with(&late("unknown", true), &["--checkpoints", &signed]);
    assert!(!sound && table.contains("all logs are given"), "{table}");
    let (sound, table) = log.audit(&late("unknown", false));
    assert!(!sound && table.contains("ticket is missing"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_34_audit_finds_forged_moved_and_unreadable_lines() {
    let log = Log::written().await;
    let lines = log.lines();
    // The first line is gone: what it earned is used later, for longer than a ticket lives.
    let mut later = log.records[TICKET].clone();
    let at = later["at"].as_u64().unwrap() + 100_000;
    later["at"] = json!(at);
    later["time"] = json!(attest_system::clock::rfc3339(at));
    later["id"] = json!("cd".repeat(16));
    later["use_number"] = json!(3);
    later["reason"] = json!("a ticket was shown, use 3");
    let (sound, table) = log.audit(&[lines[NAMED].clone(), later.to_string()]);
    assert!(
        !sound && table.contains("which is not an earlier decision that earned a ticket"),
        "{table}"
    );
    let (sound, table) = log.audit(&[lines[TRUSTED].clone(), later.to_string()]);
    assert!(!sound && table.contains("its ticket was too old"), "{table}");
    // Late is good once, if it was not used before, and from then on for its lifetime.
    let expires = log.records[TRUSTED]["ticket"]["expires"].as_u64().unwrap();
    let late = |number: u64, seconds: u64, end: &str| {
        let mut record = log.records[TICKET].clone();
        record["at"] = json!(expires + seconds);
        record["time"] = json!(attest_system::clock::rfc3339(expires + seconds));
        record["id"] = json!(format!("{number:032x}"));
        record["use_number"] = json!(number);
        record["late_seconds"] = json!(seconds);
        record["reason"] = json!(format!("a ticket was shown, use {number}, {seconds} s after it expired; {end}"));
        record
    };
    let (first, then) = ("it was not used before", "its first use was late, too");
    let trusted = &lines[TRUSTED];
    let (sound, table) = log.audit(&[trusted.clone(), late(1, 3400, first).to_string(), late(2, 4000, then).to_string()]);
    assert!(sound, "{table}");
    // Where clocks differ, the first use may be read after the second: its number says which it is.
    let (one, two) = (late(1, 3410, first), late(2, 3400, then));
    let table = log.audit_several(&[&[trusted.clone(), two.to_string()], &[one.to_string()]]);
    assert!(table.contains("0 different") && !table.contains("too old"), "{table}");
    let table = log.audit_several(&[&[trusted.clone(), late(2, 8000, then).to_string()], &[one.to_string()]]);
    assert!(
        table.contains("0 different") && table.contains("warning: its ticket was too old, unless clocks differ"),
        "{table}"
    );
    let table = log.audit_several(&[&[trusted.clone(), two.to_string()], &[lines[TICKET].clone()]]);
    assert!(table.contains("1 different") && table.contains("its ticket was too old"), "{table}");
    let mut unsaid = late(1, 3400, first);
    unsaid["late_seconds"] = json!(3399);
    let mut promising = log.records[TRUSTED].clone();
    promising["ticket"]["config_sha256"] = log.records[TICKET]["config_sha256"].clone();
    let promising = promising.to_string();
    let (sound, table) = log.audit(&[promising.clone(), lines[TICKET].clone()]);
    assert!(sound, "{table}");
    let mut other_config = log.records[TICKET].clone();
    other_config["config_sha256"] = json!("ab".repeat(32));
    let mut other_reason = late(1, 3400, first);
    other_reason["reason"] = json!("a ticket was shown, use 1");
    for (lines, problem) in [
        (vec![late(1, 3400, first), late(2, 4001, then)], "its ticket was too old"),
        (vec![late(1, 86_401, first)], "its ticket was too old"),
        (vec![log.records[TICKET].clone(), late(2, 9, then)], "its ticket was too old"),
        (vec![unsaid], "late_seconds is Some(3399)"),
        (vec![other_reason], "reason is"),
        (vec![other_config], "config_sha256 is not that of the config that its ticket is for"),
    ] {
        let lines: Vec<String> = [promising.clone()].into_iter().chain(lines.iter().map(Value::to_string)).collect();
        let (sound, table) = log.audit(&lines);
        assert!(!sound && table.contains(problem), "{problem}: {table}");
    }
    // A log that was rotated in a ticket's life begins with its use.
    let begins = [lines[TICKET].clone()];
    let (sound, table) = log.audit(&begins);
    assert!(
        !sound && table.contains("which is not an earlier decision that earned a ticket"),
        "{table}"
    );
    let (sound, table) = log.audit_with(&begins, &["--continued"]);
    assert!(
        sound && table.contains("warning") && table.contains("is not earlier in this log"),
        "{table}"
    );
    // The same use a second time.
    let mut twice = log.records[TICKET].clone();
    twice["id"] = json!("cd".repeat(16));
    let (sound, table) = log.audit(&[lines[TRUSTED].clone(), lines[TICKET].clone(), twice.to_string()]);
    assert!(!sound && table.contains("use 1 is recorded twice"), "{table}");
    // Before what earned it.
    let (sound, table) = log.audit(&[lines[TRUSTED].clone(), lines[TRUSTED].clone()]);
    assert!(!sound && table.contains("earlier decision"), "{table}");
    let mut old = lines.clone();
    old.swap(NOTHING, TRUSTED);
    assert!(log.audit(&old).1.contains("line "), "moved");
    // What cannot be read is named, and the rest is read.
    let mut broken = lines.clone();
    broken.insert(1, "{\"v\":1,\u{0}".to_owned());
    broken.insert(4, "\u{fffd}".to_owned());
    let (sound, table) = log.audit(&broken);
    assert!(
        !sound && table.contains("line 2: cannot be read") && table.contains("line 5: cannot be read"),
        "{table}"
    );
    assert!(table.contains("0 different") && table.contains("2 unreadable lines"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_tolerates_small_clock_differences() {
    let log = Log::written().await;
    let earlier = |index: usize, at: u64| {
        let mut lines = log.lines();
        let mut record = log.records[index].clone();
        record["at"] = json!(at);
        record["time"] = json!(attest_system::clock::rfc3339(at));
        lines[index] = record.to_string();
        log.audit(&lines)
    };
    let trusted = log.records[TRUSTED]["at"].as_u64().unwrap();
    let (sound, table) = earlier(TICKET, trusted - 30);
    assert!(sound && table.contains("30 s older than the attestation that earned it"), "{table}");
    let issued = log.records[TRUSTED].pointer("/basis/challenge/issued").unwrap().as_u64().unwrap();
    let (sound, table) = earlier(TRUSTED, issued - 5);
    assert!(sound && table.contains("5 s before its challenge was created"), "{table}");
    // What the gateway itself has held against its clock has to fit still.
    let expires = log.records[TRUSTED].pointer("/basis/challenge/expires").unwrap().as_u64().unwrap();
    let (sound, table) = earlier(TRUSTED, expires + 1);
    assert!(!sound && table.contains("its challenge was valid from"), "{table}");
}
