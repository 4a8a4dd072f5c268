//! Decisions that a killed gateway had made and not recorded.

use attest::{EkDigest, NodeIdentity};
use attest_log::{ConfigSet, Decision, Earns, Grants, Record, ShownEvidence, TicketTerms, Verdict};
use attest_store::DecisionRecord;

use super::POOL;

/// Returns a decision about a config by a token's use, as a gateway stores it.
pub fn config_by_token(id: &str, at: u64, token: &str, use_number: u32) -> DecisionRecord {
    let mut record = record(id, Decision::Config, at);
    record.verdict = Verdict::Served;
    record.shown = ShownEvidence::Token;
    record.name = Some(token.to_owned());
    record.use_number = Some(use_number);
    stored_record(&record)
}

/// Returns a decision about evidence of this TPM that has earned a ticket, as a gateway stores it.
pub fn evidence(id: &str, at: u64, ek: EkDigest) -> DecisionRecord {
    let mut record = record(id, Decision::Evidence, at);
    record.verdict = Verdict::Trusted;
    record.shown = ShownEvidence::Tpm;
    record.identity = Some(NodeIdentity::from_ek(ek).to_string());
    record.ticket = Some(TicketTerms {
        expires: at + 600,
        uses: 5,
        late_seconds: 0,
        config_sha256: None,
    });
    stored_record(&record)
}

fn record(id: &str, decision: Decision, at: u64) -> Record {
    let mut record = Record::new(id.to_owned(), decision, at, "192.0.2.7:1234".to_owned(), POOL.to_owned());
    record.grant = Some(ConfigSet::Full);
    record.grants = Some(Grants {
        attested: Earns::Full,
        token: Earns::Full,
        kubelet: Earns::Refuse,
        nothing: Earns::PreApproved,
    });
    record
}

fn stored_record(record: &Record) -> DecisionRecord {
    DecisionRecord {
        decision: record.id.clone(),
        at: record.at,
        record: serde_json::to_string(record).unwrap(),
    }
}

/// Verifies that a line of the log is a decision that was recorded late, and whether its node has got the answer: `unanswered`, `unknown`.
pub fn is_recorded_late(record: &serde_json::Value, answered: &str) {
    assert_eq!(record["recorded_late"], answered, "{record}");
    let alerts = record["alerts"].as_array().unwrap();
    let late = |alert: &serde_json::Value| alert.as_str().unwrap().starts_with("recorded late: ");
    assert_eq!(alerts.iter().filter(|alert| late(alert)).count(), 1, "{record}");
}
