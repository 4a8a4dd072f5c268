//! Pools that observe: the booted system never leads to a refusal, but is reported; all other rules refuse as usual.

use std::collections::BTreeMap;

use attest::appraisal::Rules;
use attest::condition::Condition;
use attest::protocol::HexDigest;
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD};
use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
use attest::tpm::rules::Check;
use attest::{AppraisalPolicy, AttestationResult, HashAlg, Kind, ReferenceValues, Reject, appraise};

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use crate::support::{Case, SoftKey, at};

const BANK: HashAlg = HashAlg::Sha256;

/// Returns a pool's rules for PCRs 0 to 7.
fn values(checked: &[u8]) -> ReferenceValues {
    let accepted = |pcr: u8| match checked.contains(&pcr) {
        true => AcceptedValues::AnyOf(vec![[0xab; 32].into()]),
        false => AcceptedValues::NotChecked,
    };
    ReferenceValues::new(BANK, (0..8).map(|pcr| (pcr, accepted(pcr))).collect()).unwrap()
}

fn policy(values: ReferenceValues, condition: Option<&str>, observe: bool) -> AppraisalPolicy {
    let rules = Rules {
        tpm: Some(values),
        condition: condition.map(|source| Condition::parse(source).unwrap()),
        observe,
        ..Rules::default()
    };
    AppraisalPolicy::new(vec![Kind::Tpm.into()], rules).unwrap()
}

/// A machine that has booted by one log, and sends another, or none.
fn machine(booted: &LogBuilder, sends: Option<Vec<u8>>) -> Case {
    let all = booted
        .pcrs(BANK)
        .into_iter()
        .filter(|(pcr, _)| *pcr < 8 || *pcr == BOOT_COMPLETE_PCR);
    let quoted: BTreeMap<u8, Vec<u8>> = all.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    Case::with_pcrs(SoftKey::p256(), BANK, quoted).but(|case| case.event_log = sends)
}

fn judged(case: &Case, policy: &AppraisalPolicy) -> Result<AttestationResult, Reject> {
    appraise(case.verify().unwrap(), policy, at(case.now))
}

/// Checks that a pool that observes refuses it like a strict pool.
#[track_caller]
fn refused(case: &Case, values: &ReferenceValues, condition: Option<&str>, code: &str) {
    for observe in [false, true] {
        let result = judged(case, &policy(values.clone(), condition, observe));
        assert_eq!(
            result.as_ref().map_err(Reject::code).map(drop),
            Err(code),
            "observe = {observe}: {condition:?}"
        );
    }
}

/// Checks that a pool that observes accepts a machine that a strict pool refuses with the first of these codes, and reports all of them.
#[track_caller]
fn observed(case: &Case, values: &ReferenceValues, condition: Option<&str>, codes: &[&str]) {
    let strict = judged(case, &policy(values.clone(), condition, false));
    assert_eq!(strict.as_ref().map_err(|reject| reject.code()).err().as_ref(), codes.first());
    let result = judged(case, &policy(values.clone(), condition, true)).unwrap();
    let found: Vec<&str> = result.would_refuse().iter().map(Reject::code).collect();
    assert_eq!(found, codes);
    if let Err(strict) = strict {
        assert_eq!(result.would_refuse()[0], strict);
    }
}

/// PCRs 0 to 7 and the door's.
fn booted() -> LogBuilder {
    LogBuilder::typical(&[SHA256])
}

fn eight(booted: &LogBuilder, sends: Option<Vec<u8>>) -> Case {
    let all = booted.pcrs(BANK).into_iter().filter(|(pcr, _)| *pcr < 8);
    let quoted: BTreeMap<u8, Vec<u8>> = all.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    Case::with_pcrs(SoftKey::p256(), BANK, quoted).but(|case| case.event_log = sends)
}

#[test]
fn observing_policy_rejects_a_machine_after_boot_complete() {
    let log = booted();
    let closed = log.clone().event(u32::from(BOOT_COMPLETE_PCR), EV_IPL, CLOSING_WORD);
    let other = log.clone().event(u32::from(BOOT_COMPLETE_PCR), EV_IPL, b"another");
    let rules = [EventLogRule::Recorded, EventLogRule::Checked, EventLogRule::Required];
    for rule in rules {
        let values = values(&[]).only_while_booting(true).with_event_log(rule);
        refused(&machine(&closed, Some(log.build())), &values, None, "tpm-boot-is-over");
        refused(&machine(&closed, Some(closed.build())), &values, None, "tpm-boot-is-over");
        refused(&machine(&other, Some(log.build())), &values, None, "tpm-boot-is-over");
    }
    let values = values(&[]).only_while_booting(true);
    refused(&machine(&closed, None), &values, None, "tpm-boot-is-over");
    // A log that cannot be read, or leads elsewhere, is observed where it is asked for; the end of the boot is not.
    let strict_log = values.with_event_log(EventLogRule::Required);
    let unread = |booted: &LogBuilder| machine(booted, Some(vec![0xff; 64]));
    let result = judged(&unread(&closed), &policy(strict_log.clone(), None, true));
    assert_eq!(result.unwrap_err().code(), "tpm-boot-is-over");
    observed(&unread(&log), &strict_log, None, &["event-log-malformed"]);
    let elsewhere = log.clone().event(4, EV_IPL, b"never measured");
    let result = judged(&machine(&closed, Some(elsewhere.build())), &policy(strict_log, None, true));
    assert_eq!(result.unwrap_err().code(), "tpm-boot-is-over");
}

/// The pool was changed since the challenge: PCRs that were not quoted cannot be observed.
#[test]
fn observing_policy_rejects_a_quote_with_wrong_selection() {
    let case = eight(&booted(), None);
    let more = |pcr: u8, accepted: AcceptedValues| {
        let pcrs = (0..8).map(|pcr| (pcr, AcceptedValues::NotChecked)).chain([(pcr, accepted)]);
        ReferenceValues::new(BANK, pcrs.collect()).unwrap()
    };
    refused(&case, &more(14, AcceptedValues::NotChecked), None, "quote-selection");
    refused(
        &case,
        &more(14, AcceptedValues::AnyOf(vec![[1; 32].into()])),
        None,
        "quote-selection",
    );
    refused(&case, &values(&[]).only_while_booting(true), None, "quote-selection");
    let other_bank = (0..8).map(|pcr| (pcr, AcceptedValues::NotChecked)).collect();
    refused(
        &case,
        &ReferenceValues::new(HashAlg::Sha384, other_bank).unwrap(),
        None,
        "quote-selection",
    );
    refused(&machine(&booted(), None), &values(&[]), None, "quote-selection");
}

#[test]
fn observing_policy_rejects_unaccepted_evidence_kinds() {
    let case = eight(&booted(), None);
    for observe in [false, true] {
        let rules = Rules {
            tpm: Some(values(&[])),
            gcp: Some(toml::from_str("projects = [{ id = \"example-project\", number = 739419398126 }]").unwrap()),
            observe,
            ..Rules::default()
        };
        let policy = AppraisalPolicy::new(vec![Kind::Gcp.into()], rules).unwrap();
        assert_eq!(judged(&case, &policy).unwrap_err().code(), "evidence-not-accepted");
    }
}

#[test]
fn observing_policy_lists_boot_mismatches_in_order() {
    let log = booted();
    let (with, without) = (eight(&log, Some(log.build())), eight(&log, None));
    observed(&with, &values(&[]), None, &[]);
    observed(&with, &values(&[4]), None, &["pcr-mismatch"]);
    observed(&with, &values(&[0, 4, 7]), None, &["pcr-mismatch"; 3]);
    let required = values(&[]).with_event_log(EventLogRule::Required);
    observed(&without, &required, None, &["event-log-missing"]);
    let mismatch = eight(&log, Some(log.clone().event(4, EV_IPL, b"more").build()));
    observed(&mismatch, &required, None, &["event-log-mismatch"]);
    observed(&mismatch, &values(&[]), None, &["event-log-mismatch"]);
    let checks = |checked: &[u8]| {
        values(checked)
            .with_boot(vec![Check::SecureBoot, Check::Images, Check::Drivers])
            .unwrap()
    };
    // Each thing once, however many checks it is in the way of.
    observed(&without, &checks(&[]), None, &["event-log-missing"]);
    observed(&mismatch, &checks(&[2]), None, &["pcr-mismatch", "event-log-mismatch"]);
    // What is asked of each event is said for the first that differs.
    let result = judged(&with, &policy(checks(&[7]), None, true)).unwrap();
    let strict = judged(&with, &policy(checks(&[7]), None, false)).unwrap_err();
    let codes: Vec<&str> = result.would_refuse().iter().map(Reject::code).collect();
    assert_eq!(codes.first(), Some(&"pcr-mismatch"));
    assert!(codes.len() > 1 && codes.contains(&"boot-not-accepted"), "{codes:?}");
    assert_eq!(result.would_refuse()[0], strict);
}

/// A condition may restrict which machines may join: it is observed only if it names nothing but the boot.
#[test]
fn observes_only_conditions_on_boot_claims() {
    let log = booted();
    let case = eight(&log, Some(log.build()));
    let code = "condition-not-met";
    for booted in [
        "claims.tpm.pcrs['7'] == 'ab'",
        "claims.tpm.pcrs['7'] in ['ab', 'cd'] || claims.tpm.event_log.events > 10000",
        "claims.tpm.event_log.explained_pcrs.exists(pcr, pcr == 99)",
        "!has(claims.tpm.event_log.events)",
        "claims.tpm.boot.images.exists(image, image == 'ab')",
        "claims.tpm.boot.exit_boot_services == 'success' && claims.tpm.pcrs['7'] == 'ab'",
        "!has(claims.tpm.boot)",
    ] {
        observed(&case, &values(&[]), Some(booted), &[code]);
    }
    observed(
        &case,
        &values(&[]),
        Some("claims.tpm.event_log.problem == 'x'"),
        &["condition-undecided"],
    );
    observed(
        &case,
        &values(&[]),
        Some("claims.tpm.boot.firmware_version == 'x'"),
        &["condition-undecided"],
    );
    observed(
        &eight(&log, None),
        &values(&[]),
        Some("claims.tpm.boot.secure_boot"),
        &["condition-undecided"],
    );
    observed(&case, &values(&[4]), Some("claims.tpm.pcrs['7'] == 'ab'"), &["pcr-mismatch", code]);
    for other in [
        "false",
        "claims.identity == 'tpm:ab'",
        "claims.name == 'worker-1'",
        "claims.tpm.ek_digest == 'ab'",
        "claims.tpm.clock_ms == 1",
        "claims.tpm.boot.images[0] == claims.identity",
        "has(claims.tpm.boot) && claims.pool == 'master'",
        "claims.tpm.reset_count < 1",
        "claims.tpm.pcrs['7'] == 'ab' && claims.pool == 'worker'",
        "claims.tpm.pcrs['7'] == 'ab' || claims.tpm.ek_digest == 'ab'",
        "claims.tpm.pcrs['7'] == claims.identity",
        "claims.kinds.exists(kind, kind == 'x') || claims.tpm.pcrs['7'] == 'ab'",
        "claims.tpm.event_log.explained_pcrs.exists(pcr, claims.identity == 'ab')",
        "claims.tpm.event_log.explained_pcrs.all(pcr, pcr == 99) && claims.tpm != claims.tpm",
        "claims == claims.tpm.pcrs",
        "claims.tpm == claims.tpm.event_log",
        "(claims.tpm.clock_safe ? claims.tpm.pcrs['7'] : claims.identity) == 'ab'",
    ] {
        refused(&case, &values(&[]), Some(other), code);
    }
    // What is no access to a member as it is written is not looked through.
    refused(&case, &values(&[]), Some("claims['tpm'].pcrs['7'] == 'ab'"), code);
    refused(&case, &values(&[]), Some("claims.gcp.key_id == 'ab'"), "condition-undecided");
}

#[test]
fn observe_is_serialized_only_if_set() {
    let strict = policy(values(&[4]), None, false);
    let observing = policy(values(&[4]), None, true);
    let (written, of_observing) = (serde_json::to_value(&strict).unwrap(), serde_json::to_value(&observing).unwrap());
    assert_eq!(written.get("observe"), None);
    assert_eq!(of_observing["observe"], true);
    assert_eq!(serde_json::from_value::<AppraisalPolicy>(written).unwrap(), strict);
    assert_eq!(serde_json::from_value::<AppraisalPolicy>(of_observing).unwrap(), observing);
    assert!(observing.observes() && !strict.observes());
    assert_eq!(observing.strict(), strict);
    let case = eight(&booted(), None);
    let result = judged(&case, &observing).unwrap();
    assert!(
        result.reasons().concat().contains("8 PCRs of sha256 quoted and observed"),
        "{:?}",
        result.reasons()
    );
    let accepted = judged(&case, &policy(values(&[]), None, true)).unwrap();
    assert!(
        accepted.reasons().concat().contains("8 PCRs of sha256 quoted and accepted"),
        "{:?}",
        accepted.reasons()
    );
    let told: Vec<HexDigest> = result.claims().tpm().unwrap().pcrs.values().cloned().collect();
    assert_eq!(told.len(), 8);
}
