//! Pool's rules for the firmware's event log, applied after the PCRs themselves.

use std::collections::BTreeMap;

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use crate::measured_boot::machine::grub_machine;
use crate::support::{Case, SoftKey, at};
use attest::tpm::event_log::{OS_SEPARATOR, OS_SEPARATOR_PCRS};
use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
use attest::tpm::wire::HashAlg;
use attest::{AppraisalPolicy, ReferenceValues, Reject, appraise};
use serde_json::{Value, json};

const RULES: [EventLogRule; 3] = [EventLogRule::Required, EventLogRule::Checked, EventLogRule::Recorded];

/// A machine that has booted by this log, and sends that one.
fn machine(booted: &LogBuilder, sent: Option<Vec<u8>>) -> Case {
    let pcrs = booted.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 8);
    let values: BTreeMap<u8, Vec<u8>> = pcrs.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, values).but(|case| case.event_log = sent)
}

fn policy(case: &Case, event_log: EventLogRule, but: Option<u8>) -> AppraisalPolicy {
    let accepted = |pcr: &u8| match but {
        Some(other) if other == *pcr => AcceptedValues::AnyOf(vec![[0xab; 32].into()]),
        _ => AcceptedValues::AnyOf(vec![case.pcrs[pcr].clone()]),
    };
    let pcrs = case.pcrs.keys().map(|pcr| (*pcr, accepted(pcr))).collect();
    AppraisalPolicy::for_tpm(ReferenceValues::new(HashAlg::Sha256, pcrs).unwrap().with_event_log(event_log))
}

/// Returns the result of each of the three rules: the record of the log, or the code.
fn judged(case: &Case) -> [Result<Value, &'static str>; 3] {
    RULES.map(|rule| {
        let result = appraise(case.verify().unwrap(), &policy(case, rule, None), at(case.now));
        let log = |claims: &attest::Claims| serde_json::to_value(&claims.tpm().unwrap().event_log).unwrap();
        result.map(|result| log(result.claims())).map_err(|reject: Reject| reject.code())
    })
}

#[test]
fn event_log_rules_apply_to_each_log() {
    let log = LogBuilder::typical(&[SHA256]);
    let all: Vec<u8> = (0..8).collect();
    let good = json!({"events": log.events.len(), "explained_pcrs": all});
    assert_eq!(
        judged(&machine(&log, Some(log.build()))),
        [Ok(good.clone()), Ok(good.clone()), Ok(good)]
    );
    assert_eq!(
        judged(&machine(&log, None)),
        [Err("event-log-missing"), Ok(Value::Null), Ok(Value::Null)]
    );

    let problem = |code: &str, events: usize| json!({"events": events, "explained_pcrs": [], "problem": code});
    let malformed = "event-log-malformed";
    for bytes in [Vec::new(), b"no log".to_vec(), log.build()[..100].to_vec()] {
        let judged = judged(&machine(&log, Some(bytes)));
        assert_eq!(judged, [Err(malformed), Err(malformed), Ok(problem(malformed, 0))]);
    }
    let mut shorter = log.clone();
    shorter.events.remove(3);
    let mismatch = "event-log-mismatch";
    assert_eq!(
        judged(&machine(&log, Some(shorter.build()))),
        [Err(mismatch), Err(mismatch), Ok(problem(mismatch, shorter.events.len()))]
    );

    // systemd extends its separator, which no firmware logs.
    let mut booted = log.clone();
    for pcr in OS_SEPARATOR_PCRS {
        booted
            .events
            .extend(LogBuilder::new(&[SHA256]).event(pcr.into(), EV_IPL, OS_SEPARATOR).events);
    }
    let separated = json!({"events": log.events.len(), "explained_pcrs": all, "os_separator_pcrs": all});
    let judged = judged(&machine(&booted, Some(log.build())));
    assert_eq!(judged, [Ok(separated.clone()), Ok(separated.clone()), Ok(separated)]);
}

/// The meaning of the events is in the claims, and only a word of it in the record.
#[test]
fn claims_contain_the_interpreted_boot() {
    for on in [true, false] {
        let log = grub_machine(on);
        let case = machine(&log, Some(log.build()));
        let claims = case.verify().unwrap();
        let found = claims.tpm().unwrap().event_log.as_ref().unwrap();
        assert_eq!(found.boot.as_ref().unwrap().secure_boot(), Ok(on));
        let all: Vec<u8> = (0..8).collect();
        let recorded = json!({"events": log.events.len(), "explained_pcrs": all, "secure_boot": on});
        assert_eq!(serde_json::to_value(found).unwrap(), recorded);
    }
    let log = grub_machine(true);
    let claims = machine(&log, Some(log.build()[..100].to_vec())).verify().unwrap();
    assert!(claims.tpm().unwrap().event_log.as_ref().unwrap().boot.is_none());
}

/// A PCR that is not accepted is the reported reason, regardless of the log.
#[test]
fn pcr_mismatch_is_reported_before_log_errors() {
    let log = LogBuilder::typical(&[SHA256]);
    for sent in [None, Some(b"no log".to_vec()), Some(log.build())] {
        for rule in RULES {
            let case = machine(&log, sent.clone());
            let reject = appraise(case.verify().unwrap(), &policy(&case, rule, Some(7)), at(case.now)).unwrap_err();
            assert_eq!(reject.code(), "pcr-mismatch", "{rule:?}");
        }
    }
}

#[test]
fn legacy_policy_checks_event_logs() {
    let case = machine(&LogBuilder::typical(&[SHA256]), None);
    let written = |rule| serde_json::to_value(policy(&case, rule, None)).unwrap();
    assert!(written(EventLogRule::Checked)["tpm"].get("event_log").is_none());
    assert_eq!(written(EventLogRule::Required)["tpm"]["event_log"], "required");
    for rule in RULES {
        let read: AppraisalPolicy = serde_json::from_value(written(rule)).unwrap();
        assert_eq!(read.reference_values().unwrap().event_log(), rule);
    }
    let mut wrong = written(EventLogRule::Recorded);
    wrong["tpm"]["event_log"] = json!("not checked");
    assert!(serde_json::from_value::<AppraisalPolicy>(wrong).is_err());
}
