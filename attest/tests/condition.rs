//! A pool's condition, over claims that were verified.

mod booted;
mod bounded;

use attest::appraisal::Rules;
use attest::condition::Condition;
use attest::{AppraisalPolicy, Kind, ReferenceValues, Reject, appraise};

use crate::support::{self, Case, SoftKey, at};

fn policy(case: &Case, condition: &str) -> AppraisalPolicy {
    let accepting = support::accepting(&case.selection);
    let rules = Rules {
        tpm: accepting.reference_values().cloned(),
        condition: Some(Condition::parse(condition).unwrap()),
        ..Rules::default()
    };
    AppraisalPolicy::new(vec![Kind::Tpm.into()], rules).unwrap()
}

fn judged(condition: &str) -> Result<(), Reject> {
    let case = Case::new(SoftKey::p256());
    appraise(case.verify().unwrap(), &policy(&case, condition), at(case.now)).map(drop)
}

#[test]
fn condition_must_hold_for_the_verified_claims() {
    let check = |condition: &str, expect: Result<(), &str>| {
        assert_eq!(judged(condition).map_err(|reject| reject.code()), expect, "{condition}");
    };
    check("claims.pool == 'worker' && claims.kinds == ['tpm']", Ok(()));
    check(
        "claims.tpm.reset_count == 7 && claims.tpm.clock_ms == 123456 && claims.tpm.clock_safe",
        Ok(()),
    );
    check(
        "claims.identity.startsWith('tpm:') && claims.tpm.endorsed_by == 'allowlist'",
        Ok(()),
    );
    check("claims.tpm.reset_count == 8", Err("condition-not-met"));
    check("claims.pool == 'master'", Err("condition-not-met"));
    check("claims.gcp.instance == 'i'", Err("condition-undecided"));
    check("claims.pool", Err("condition-undecided"));
    check("claims.tpm", Err("condition-undecided"));
}

#[test]
fn condition_text_is_logged_but_never_disclosed() {
    for condition in ["claims.pool == 'secret-word'", "claims.gcp.instance.zone == 'secret-word'"] {
        let reject = judged(condition).unwrap_err();
        assert!(!reject.client_message().contains("secret"), "{}", reject.client_message());
        assert!(reject.detail().contains(condition), "{}", reject.detail());
    }
}

/// Reference values are checked first: a condition is evaluated only if everything else is accepted.
#[test]
fn condition_is_evaluated_after_reference_values() {
    let case = Case::new(SoftKey::p256());
    let other = case
        .pcrs
        .keys()
        .map(|pcr| (*pcr, attest::tpm::reference_values::AcceptedValues::AnyOf(vec![[0xab; 32].into()])));
    let rules = Rules {
        tpm: Some(ReferenceValues::new(case.selection.bank(), other.collect()).unwrap()),
        condition: Some(Condition::parse("false").unwrap()),
        ..Rules::default()
    };
    let policy = AppraisalPolicy::new(vec![Kind::Tpm.into()], rules).unwrap();
    let reject = appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap_err();
    assert_eq!(reject.code(), "pcr-mismatch");
}

#[test]
fn policy_with_condition_round_trips() {
    let case = Case::new(SoftKey::p256());
    let written = serde_json::to_value(policy(&case, "claims.pool == 'worker'")).unwrap();
    assert_eq!(written["condition"], "claims.pool == 'worker'");
    let read: AppraisalPolicy = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(read, policy(&case, "claims.pool == 'worker'"));
    // One of before there were conditions.
    let mut older = written.clone();
    older.as_object_mut().unwrap().remove("condition");
    assert_eq!(serde_json::from_value::<AppraisalPolicy>(older).unwrap().condition(), None);
    let mut wrong = written;
    wrong["condition"] = "claims.pool ==".into();
    assert!(serde_json::from_value::<AppraisalPolicy>(wrong).is_err());
}
