//! Records, logs and answers of the gateway do not help an attacker to attest, and requests without proof leave little behind.

use std::fs;

use crate::support::{Answer, Case, Gateway, challenge_request, next_boot, tpm};
use attest::Challenge;
use attest::protocol::{BearerText, Blob, EvidenceRequest, GcpEvidence, HexDigest, SecretText, TokenEvidence, TpmEvidence};
use serde_json::{Value, json};

const EVIDENCE: &str = "/v1/attest/evidence";
/// Maximum number of bytes that a refusal without proof may add to the log.
const SMALL_BYTES: usize = 4096;

/// Returns everything that an outsider might read: log, which has the blobs' names, console, answer.
fn readable_text(gateway: &Gateway, answer: &Answer) -> String {
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    format!("{log}\n{}\n{}", gateway.output(), String::from_utf8_lossy(&answer.body))
}

/// Collects each challenge secret in a record that a reader could find: all fields of that name.
fn secrets(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == "secret_sha256" => found.push(text.clone()),
            value => secrets(value, found),
        }),
        Value::Array(values) => values.iter().for_each(|value| secrets(value, found)),
        _ => {}
    }
}

/// Reason for a refusal: its code, the requested pool and name, and the change of the answer.
struct Way {
    code: &'static str,
    pool: &'static str,
    name: Option<&'static str>,
    alter: fn(&mut EvidenceRequest),
}

impl Way {
    const fn new(code: &'static str, alter: fn(&mut EvidenceRequest)) -> Self {
        Self {
            code,
            pool: "worker",
            name: None,
            alter,
        }
    }
}

/// Returns a challenge and the TPM's answer; only the TPM knows the challenge's secret.
fn honest(gateway: &Gateway, tpm: &Case, way: &Way) -> (Challenge, EvidenceRequest) {
    let mut boot = next_boot(tpm);
    boot.pool = way.pool.to_owned();
    let mut challenge = gateway.challenge(&boot, way.name);
    boot.secret_sha256 = challenge.id.as_bytes().try_into().unwrap();
    boot.secret_sha256.reverse();
    challenge.subject.tpm.as_mut().unwrap().secret_sha256 = HexDigest::from(boot.secret_sha256);
    let answer = gateway.answer(boot, &challenge);
    (challenge, answer)
}

/// Sends refused evidence, then evidence with the secrets that a reader of all output could know, and then the true answer.
async fn attack(gateway: &Gateway, tpm: &Case, way: &Way) {
    let (challenge, honest) = honest(gateway, tpm, way);
    let mut refused = honest.clone();
    (way.alter)(&mut refused);
    let before = gateway.records().len();
    let answer = gateway.post(EVIDENCE, &refused).await;
    assert_eq!(answer.code(), way.code, "{}", String::from_utf8_lossy(&answer.body));
    let said = readable_text(gateway, &answer);
    let records = gateway.records();
    assert!(records.get(before).is_none_or(|record| record["code"] == way.code), "{}", way.code);

    let mut stolen = Vec::new();
    records[before..].iter().for_each(|record| secrets(record, &mut stolen));
    if let Some(secret) = stolen.pop() {
        let mut forged = honest.clone();
        tpm_of(&mut forged).secret_sha256 = HexDigest::from_hex(&secret).unwrap();
        gateway.post(EVIDENCE, &forged).await.refused(403, "challenge-spent");
    }
    let unspent = [
        "challenge-invalid",
        "pool-unknown",
        "evidence-incomplete",
        "malformed-request",
        "credential-mismatch",
    ];
    if unspent.contains(&way.code) {
        // It can be answered still, so nobody was told anything of it.
        let secret = challenge.subject.tpm.as_ref().unwrap().secret_sha256.to_string();
        for told in [secret, challenge.id.to_string()] {
            assert!(!said.contains(&told), "{}: {said}", way.code);
        }
    } else {
        gateway.post(EVIDENCE, &honest).await.refused(403, "challenge-spent");
    }
}

fn tpm_of(body: &mut EvidenceRequest) -> &mut TpmEvidence {
    body.evidence.tpm.as_mut().unwrap()
}

const WAYS: [Way; 12] = [
    Way::new("evidence-incomplete", |body| {
        body.evidence.tpm = None;
        body.evidence.token = Some(TokenEvidence {
            token: SecretText::default(),
        });
    }),
    Way::new("evidence-incomplete", |body| body.evidence.tpm = None),
    Way::new("evidence-incomplete", |body| {
        body.evidence.gcp = Some(GcpEvidence {
            token: BearerText::default(),
        });
    }),
    Way::new("malformed-request", |body| {
        let token = BearerText("x".repeat(100_000));
        body.evidence.gcp = Some(GcpEvidence { token });
    }),
    Way::new("credential-mismatch", |body| tpm_of(body).secret_sha256 = HexDigest::from([0; 32])),
    Way::new("quote-signature", |body| *tpm_of(body).signature.0.last_mut().unwrap() ^= 1),
    Way::new("tpm-malformed", |body| tpm_of(body).signature.0.truncate(3)),
    Way::new("pcr-not-quoted", |body| {
        tpm_of(body).pcrs.insert(9, HexDigest::from([0; 32]));
    }),
    Way::new("event-log-malformed", |body| {
        tpm_of(body).event_log = Some(Blob(b"no log".to_vec()))
    }),
    Way::new("challenge-invalid", |body| body.challenge.insert(10, 'A')),
    Way::new("challenge-invalid", |body| body.challenge.clear()),
    Way::new("challenge-invalid", |body| body.challenge = "A".repeat(2000)),
];

#[tokio::test(flavor = "multi_thread")]
async fn attack_25_refusals_reveal_no_valid_answer() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(
        "infra",
        "\"0-7\" = \"not checked\"",
        &format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "ab".repeat(32)),
    );
    gateway.run();
    let (case, other, stranger) = (tpm(), tpm(), tpm());
    gateway.endorse(&case, &[]);
    gateway.endorse(&other, &["--name", "worker-0"]);
    gateway.command(&["node", "revoke", "worker-9", "--anyway"]);
    for way in &WAYS {
        attack(&gateway, &case, way).await;
    }
    let as_it_is = |code, pool, name| Way {
        pool,
        name,
        ..Way::new(code, |_| {})
    };
    attack(&gateway, &case, &as_it_is("pcr-mismatch", "infra", None)).await;
    attack(&gateway, &case, &as_it_is("pool-unknown", "nowhere", None)).await;
    attack(&gateway, &case, &as_it_is("node-name-taken", "worker", Some("worker-0"))).await;
    attack(&gateway, &case, &as_it_is("node-revoked", "worker", Some("worker-9"))).await;
    attack(&gateway, &stranger, &as_it_is("ek-not-endorsed", "worker", None)).await;
    gateway.kill();
    gateway.edit_pool("worker", "attested = \"full\"", "attested = \"refuse\"");
    gateway.run();
    attack(&gateway, &case, &as_it_is("attested-not-accepted", "worker", None)).await;
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_25_a_malformed_body_does_not_spend_its_challenge() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let (challenge, honest) = honest(&gateway, &case, &WAYS[0]);
    let whole = serde_json::to_value(&honest).unwrap();
    let mut more = whole.clone();
    more["evidence"]["extra"] = json!(1);
    for body in [more.to_string(), whole.to_string()[..200].to_owned()] {
        let answer = Answer::send(gateway.client.post(gateway.url(EVIDENCE)).body(body)).await;
        answer.refused(400, "malformed-request");
        let said = readable_text(&gateway, &answer);
        assert!(!said.contains(&challenge.id.to_string()), "{said}");
    }
    assert_eq!(gateway.records().len(), 0);
    gateway.post(EVIDENCE, &honest).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_37_records_unproven_requests_by_digest_only() {
    let gateway = Gateway::start();
    let case = tpm();
    // A request with as much in it as it may have, from a machine that nobody knows.
    let mut request = challenge_request(&case, "worker");
    request.name = Some("\"".repeat(2000));
    let attester = request.attester.tpm.as_mut().unwrap();
    attester.ek_intermediates = vec![Blob(vec![0x30; 5000]); 8];
    gateway
        .post("/v1/attest/challenge", &request)
        .await
        .refused(400, "malformed-request");
    request.name = None;
    request.attester.tpm.as_mut().unwrap().ek_intermediates.clear();
    gateway.post("/v1/attest/challenge", &request).await.refused(403, "ek-not-endorsed");
    // Evidence with as large a log as it may have; then all of that once more, for a challenge that is spent.
    gateway.endorse(&case, &[]);
    let large = |body: &mut EvidenceRequest| {
        tpm_of(body).event_log = Some(Blob(vec![0; 1_000_000]));
        tpm_of(body).secret_sha256 = HexDigest::from([0; 32]);
    };
    let (_, mut honest) = honest(&gateway, &case, &WAYS[0]);
    let mut right = honest.clone();
    large(&mut honest);
    gateway.post(EVIDENCE, &honest).await.refused(403, "credential-mismatch");
    gateway.post(EVIDENCE, &honest).await.refused(403, "credential-mismatch");

    let lines = gateway.record_lines();
    assert_eq!(lines.len(), 4);
    for line in lines {
        assert!(line.len() < SMALL_BYTES, "{} bytes: {line}", line.len());
    }
    let blobs = fs::read_dir(gateway.path("state/evidence")).unwrap().count();
    assert_eq!(blobs, 0);
    let is_by_digest = |record: &Value| assert_eq!(record["basis"]["digests"]["tpm.event_log"]["bytes"], 1_000_000);
    is_by_digest(&gateway.records()[3]);
    // Nor does it leave more where the challenge was spent.
    gateway.post(EVIDENCE, &right).await.ticket();
    tpm_of(&mut right).event_log = tpm_of(&mut honest).event_log.clone();
    gateway.post(EVIDENCE, &right).await.refused(403, "challenge-spent");
    let record = &gateway.records()[5];
    is_by_digest(record);
    assert_eq!(record["decided_by"], "store");
    assert!(gateway.record_lines()[5].len() < SMALL_BYTES);
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}
