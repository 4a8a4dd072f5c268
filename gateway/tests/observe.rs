//! An observing pool, by the real program: it reports the refusals about boots that it would have made, and refuses for all other reasons.

use std::fs;

use attest::protocol::{BearerText, Blob, EvidenceRequest, GcpEvidence, HexDigest, TpmEvidence};
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, extended};
use attest::{Challenge, HashAlg};
use serde_json::{Value, json};

use crate::support::{Answer, Case, Gateway, ONLY_WHILE_BOOTING, POOL, SoftKey, bearer, next_boot, tpm};

const EVIDENCE: &str = "/v1/attest/evidence";

/// Creates a gateway with an observing pool that requires other PCRs than any machine has.
fn observing() -> Gateway {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
    gateway.edit_pool(
        POOL,
        "\"0-7\" = \"not checked\"",
        &format!(
            "\"0-3\" = \"not checked\"\n4 = [\"{}\"]\n\"5-6\" = \"not checked\"\n7 = [\"{}\"]",
            "ab".repeat(32),
            "cd".repeat(32)
        ),
    );
    gateway
}

/// Makes the pool strict.
fn strict(gateway: &Gateway) {
    gateway.edit_pool(POOL, "observe = true\n", "");
}

/// Returns the last record of evidence.
pub fn last(gateway: &Gateway) -> Value {
    let mut records = gateway.records().into_iter();
    records.rfind(|record| record["decision"] == "evidence").unwrap()
}

/// Returns the codes of the refusals that the pool would have made.
pub fn codes(record: &Value) -> Vec<&str> {
    let all = record["would_refuse"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().map(|one| one["code"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_pool_serves_and_records_would_refuse() {
    let mut gateway = observing();
    gateway.edit_pool(POOL, "#: event_log = \"checked\"", "event_log = \"required\"");
    gateway.run();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let answer = gateway.attest(next_boot(&case), Some("worker-0")).await;
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    let config = gateway.config("/config/worker", &[&bearer(&answer.ticket())]).await;
    assert_eq!(config.body, gateway.rendered(POOL, "full"));
    assert!(!told.contains("observe") && !told.contains("mismatch"), "{told}");

    let record = last(&gateway);
    assert_eq!(record["verdict"], "trusted");
    assert_eq!(codes(&record), ["pcr-mismatch", "pcr-mismatch", "event-log-missing"]);
    assert_eq!(record["basis"]["policy"]["observe"], true);
    let first = record["would_refuse"][0]["reason"].as_str().unwrap();
    assert!(first.contains("PCR 4") && first.contains(&"ab".repeat(32)), "{first}");
    assert!(record["reason"].as_str().unwrap().contains("quoted and observed"), "{record}");
    gateway.line(|line| line.contains("WOULD REFUSE tpm:") && line.contains("code=pcr-mismatch") && line.contains("and 2 more"));
    let shown = gateway.command(&["log", "show", "--code", "event-log-missing"]);
    assert!(shown.contains("WOULD REFUSE pcr-mismatch: PCR 4"), "{shown}");
    let none = gateway.try_command(&["log", "show", "--code", "event-log-missing", "--node", "nobody"]);
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.success() && said.contains("no record of the log matches"), "{said}");
    let whole = gateway.command(&["log", "show", "--record", record["id"].as_str().unwrap()]);
    assert_eq!(whole.matches("\nWOULD REFUSE ").count(), 3, "{whole}");

    for (command, expect) in [
        (&["policy", "explain", POOL][..], "- observed: PCR 4 has one of 1 digests"),
        (&["policy", "explain", POOL], "The pool observes"),
        (&["policy", "explain", POOL], "- the PCRs 0, 1"),
        (&["check"], "warning  pool worker observes (observe = true)"),
    ] {
        let said = gateway.command(command);
        assert!(said.contains(expect), "{expect} is not in {said}");
    }
    let simulated = gateway.try_command(&["policy", "simulate", POOL]);
    let said = String::from_utf8([simulated.stdout, simulated.stderr].concat()).unwrap();
    assert!(
        !simulated.status.success() && said.contains("1 refused (1 of them were trusted)"),
        "{said}"
    );
    let tested = gateway.try_command(&["policy", "test", POOL, "--record", record["id"].as_str().unwrap()]);
    let said = String::from_utf8([tested.stdout, tested.stderr].concat()).unwrap();
    assert!(
        !tested.status.success() && said.contains("pcr-mismatch") && said.contains("this pool observes"),
        "{said}"
    );
    let act = gateway.acts("gateway.start").pop().unwrap().to_string();
    assert!(act.contains("\"observe\":true"), "{act}");

    // What becomes of the machine once the pool is strict, and what a reload says.
    strict(&gateway);
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    gateway
        .attest(next_boot(&case), Some("worker-0"))
        .await
        .refused(403, "pcr-mismatch");
    assert!(last(&gateway).get("would_refuse").is_none());
    gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
    gateway.line(|line| line.contains("observing: no machine is refused for what it has booted"));
    gateway.attest(next_boot(&case), Some("worker-0")).await.ticket();
    assert_eq!(codes(&last(&gateway)).len(), 3);

    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.command(&["log", "audit"]);
    for (change, said) in [
        (json!(null), "would_refuse is []"),
        (json!([]), "would_refuse is []"),
        (json!([record["would_refuse"][0]]), "would_refuse is [WouldRefuse"),
        (
            json!([record["would_refuse"][1], record["would_refuse"][0], record["would_refuse"][2]]),
            "would_refuse is",
        ),
        (json!([{"code": "pcr-mismatch", "reason": "another"}]), "would_refuse is"),
    ] {
        let altered = alter(&gateway, &record, |line| line["would_refuse"] = change.clone());
        assert!(altered.contains("DIFFERENT") && altered.contains(said), "{change}: {altered}");
    }
    // As if the pool had been strict: the machine was refused, then.
    let altered = alter(&gateway, &record, |line| {
        drop(line["basis"]["policy"].as_object_mut().unwrap().remove("observe"))
    });
    assert!(altered.contains("comes out as pcr-mismatch"), "{altered}");
}

/// Returns the output of `audit` for the log with this record altered.
fn alter(gateway: &Gateway, record: &Value, change: impl Fn(&mut Value)) -> String {
    let lines = gateway.records().into_iter().map(|mut line| {
        if line["id"] == record["id"] {
            change(&mut line);
            if line["would_refuse"].is_null() {
                line.as_object_mut().unwrap().remove("would_refuse");
            }
        }
        line.as_object_mut().unwrap().remove("chain");
        line.to_string()
    });
    let file = gateway.path("altered.jsonl");
    fs::write(&file, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let output = gateway.try_command(&["log", "audit", "--unchained", "--log", file.to_str().unwrap()]);
    assert!(!output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn tpm_of(body: &mut EvidenceRequest) -> &mut TpmEvidence {
    body.evidence.tpm.as_mut().unwrap()
}

/// Change of evidence. Each refusal that is not about the boot is the same as in a strict pool, and names no hypothetical refusals.
type Alter = fn(&mut EvidenceRequest);

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_pool_refuses_for_other_reasons() {
    let mut gateway = observing();
    gateway.run();
    let (case, other, stranger) = (tpm(), tpm(), tpm());
    gateway.endorse(&case, &[]);
    gateway.endorse(&other, &["--name", "worker-0"]);
    gateway.command(&["node", "revoke", "worker-9", "--anyway"]);
    let altered: [(&str, Alter); 9] = [
        ("quote-signature", |body| *tpm_of(body).signature.0.last_mut().unwrap() ^= 1),
        ("tpm-malformed", |body| tpm_of(body).signature.0.truncate(3)),
        ("credential-mismatch", |body| tpm_of(body).secret_sha256 = HexDigest::from([0; 32])),
        ("quote-pcr-digest", |body| {
            tpm_of(body).pcrs.insert(4, HexDigest::from([0xab; 32]));
        }),
        ("pcr-missing", |body| _ = tpm_of(body).pcrs.remove(&4)),
        ("pcr-not-quoted", |body| {
            tpm_of(body).pcrs.insert(9, HexDigest::from([0; 32]));
        }),
        ("evidence-incomplete", |body| body.evidence.tpm = None),
        ("challenge-invalid", |body| body.challenge.insert(10, 'A')),
        ("malformed-request", |body| {
            let token = BearerText("x".repeat(100_000));
            body.evidence.gcp = Some(GcpEvidence { token });
        }),
    ];
    let refused = |answer: Answer, code: &str| {
        assert_eq!(answer.code(), code, "{}", String::from_utf8_lossy(&answer.body));
        if let Some(record) = gateway.records().pop() {
            assert!(record.get("would_refuse").is_none(), "{record}");
            assert_ne!(record["verdict"], "trusted", "{code}");
        }
    };
    for (code, alter) in altered {
        let boot = next_boot(&case);
        let challenge = gateway.challenge(&boot, None);
        let mut body = gateway.answer(boot, &challenge);
        alter(&mut body);
        refused(gateway.post(EVIDENCE, &body).await, code);
    }
    // For another challenge than was asked.
    let boot = next_boot(&case);
    let asked = gateway.challenge(&boot, None);
    let another = Challenge {
        nonce: Blob(vec![0x22; 32]),
        ..gateway.challenge(&boot, None)
    };
    let challenge = gateway.answer(next_boot(&case), &another).challenge;
    let body = EvidenceRequest {
        challenge,
        ..gateway.answer(boot, &asked)
    };
    refused(gateway.post(EVIDENCE, &body).await, "quote-extra-data");
    refused(gateway.attest(next_boot(&stranger), None).await, "ek-not-endorsed");
    refused(gateway.attest(next_boot(&case), Some("worker-9")).await, "node-revoked");
    refused(gateway.attest(next_boot(&case), Some("worker-0")).await, "node-name-taken");
    // The same evidence twice.
    let boot = next_boot(&case);
    let challenge = gateway.challenge(&boot, None);
    let body = gateway.answer(boot, &challenge);
    gateway.post(EVIDENCE, &body).await.ticket();
    refused_again(&gateway, &body).await;
    // And what attestation earns is the pool's to say.
    gateway.edit_pool(POOL, "attested = \"full\"", "attested = \"refuse\"");
    gateway.line(|line| line.contains("serving a new state"));
    gateway.attest(next_boot(&case), None).await.refused(403, "attested-not-accepted");
    assert!(last(&gateway).get("would_refuse").is_none());
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

async fn refused_again(gateway: &Gateway, body: &EvidenceRequest) {
    gateway.post(EVIDENCE, body).await.refused(403, "challenge-spent");
    assert!(last(gateway).get("would_refuse").is_none());
}

/// Observing skips the rules about a machine's boot, but not the check that it is still booting.
#[tokio::test(flavor = "multi_thread")]
async fn attack_47_an_observing_pool_refuses_after_boot_complete() {
    let mut gateway = observing();
    gateway.edit_pool(POOL, "[tpm]\n", &format!("[tpm]{ONLY_WHILE_BOOTING}"));
    gateway.run();
    let machine = |door: Vec<u8>| {
        let pcrs = (0..8).map(|pcr| (pcr, vec![pcr; 32])).chain([(BOOT_COMPLETE_PCR, door)]);
        Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs.collect())
    };
    let booting = machine(vec![0; 32]);
    gateway.endorse(&booting, &[]);
    gateway.attest(booting, None).await.ticket();
    assert_eq!(codes(&last(&gateway)), ["pcr-mismatch"; 2]);
    let over = machine(extended(HashAlg::Sha256, &[0; 32], CLOSING_WORD));
    gateway.endorse(&over, &[]);
    gateway.attest(over, None).await.refused(403, "tpm-boot-is-over");
    assert!(last(&gateway).get("would_refuse").is_none());
}
