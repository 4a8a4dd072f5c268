//! Firmware that measures values of its own into PCR 7, or in SHA-1 only: the refusals, and the administrator's options.

use super::*;
use crate::log_builder::{SHA1, SHA256, SHA384};
use attest::tpm::rules::RecordedValues;

const OF_PCR_7: [Check; 3] = [Check::SecureBoot, Check::Dbx, Check::Authorities];

fn recording(log: &LogBuilder, lists_unknown: bool) -> RecordedValues {
    let (_, claims) = claims(log);
    let tpm = claims.tpm().unwrap();
    let boot = tpm.event_log.as_ref().unwrap().boot.as_ref().unwrap();
    RecordedValues::from_boot(boot, &BTreeMap::new(), lists_unknown)
}

/// A machine whose firmware measures an event that only its digest identifies.
fn unknown(content: &[u8]) -> LogBuilder {
    grub_machine(true).measured(7, 0x8401, content, &[1])
}

#[test]
fn unknown_pcr_7_event_is_accepted_by_digest() {
    let log = unknown(b"the maker's own");
    let without = recording(&log, false);
    assert_eq!(without.unknown_pcr_7_events.len(), 1);
    assert!(without.values.pcr_7_events.is_empty() && without.values.authorities.is_empty() && without.values.dbx.is_empty());
    for check in OF_PCR_7 {
        let why = without.left_out[&check].to_string();
        let digest = data_encoding::HEXLOWER.encode(&sha256(b"the maker's own"));
        assert!(why.contains("is not known") && why.contains(&digest), "{why}");
    }
    assert!(!without.left_out.contains_key(&Check::Images));

    let with = recording(&log, true);
    assert_eq!((with.values.pcr_7_events.len(), with.values.authorities.len()), (1, 2));
    let left: Vec<_> = with.left_out.keys().collect();
    assert_eq!(left, [&Check::UkiSections]);
    assert_eq!(judged(&log, &OF_PCR_7, &with.values).map_err(|reject| reject.detail()), Ok(()));
    // It is accepted from a machine without it, too; from one with another it is not.
    assert!(judged(&grub_machine(true), &OF_PCR_7, &with.values).is_ok());
    for other in [unknown(b"another"), log.clone().event(7, 0x8401, b"UEFI Debug Mode\0")] {
        for check in OF_PCR_7 {
            let reject = judged(&other, &[check], &with.values).unwrap_err();
            assert_eq!(reject.code(), "boot-not-proven", "{}", reject.detail());
        }
    }
    let reject = judged(&unknown(b"another"), &[Check::Authorities], &with.values).unwrap_err();
    assert!(
        reject.advice().next_step.contains("--pcr-7-events"),
        "{}",
        reject.advice().next_step
    );
    let (case, claims) = claims(&log);
    let lapsed = sets(vec![
        generation("authorities", 1, None, values_of(&grub_machine(true))),
        generation("its event", 1, Some(2), with.values),
    ]);
    let reject = appraise(claims, &policy(&OF_PCR_7, &lapsed), at(case.now)).unwrap_err();
    assert_eq!(reject.code(), "boot-not-proven");
}

/// An event of unknown meaning is not offered as a new value: only an administrator can list it.
#[test]
fn unknown_pcr_7_event_is_no_new_value() {
    let log = unknown(b"the maker's own");
    let (case, claims) = claims(&log);
    let accepted = sets(vec![generation("this one", 1, None, values_of(&grub_machine(true)))]);
    assert_eq!(
        attest::new_values::new_values(&claims, &policy(&OF_PCR_7, &accepted), at(case.now)),
        None
    );
}

#[test]
fn attack_50_a_printable_authority_is_neither_accepted_nor_recorded() {
    let printable = b"Owner of an entrya hash by SHA-1....";
    let log = grub_machine(true).event(7, VARIABLE_AUTHORITY, &variable(IMAGE_SECURITY, "db", printable));
    let accepted = values_of(&grub_machine(true));
    let reject = judged(&log, &[Check::Authorities], &accepted).unwrap_err();
    assert_eq!(reject.code(), "boot-not-proven");
    assert!(
        reject.detail().contains("is not an authority that can be read"),
        "{}",
        reject.detail()
    );
    let recorded = recording(&log, true);
    assert!(recorded.values.authorities.is_empty());
    assert!(recorded.left_out.contains_key(&Check::Authorities));
    // Nor is it if somebody lists its digest among the events whose meaning is not known: its meaning is.
    let digest = HashAlg::Sha256.digest(&[&variable(IMAGE_SECURITY, "db", printable)]);
    let listed = attest::reference_sets::EventValue {
        digests: [(BANK, attest::protocol::HexDigest::new(digest.as_ref()).unwrap())].into(),
        name: None,
    };
    let accepted = Values {
        pcr_7_events: vec![listed],
        ..accepted
    };
    assert_eq!(
        judged(&log, &[Check::Authorities], &accepted).unwrap_err().code(),
        "boot-not-proven"
    );
}

#[test]
fn advice_says_that_firmware_measures_in_sha_1_only() {
    let nothing = LogBuilder::new(&[SHA256]);
    let policy = policy(&[Check::SecureBoot], &Arc::default());
    for (sent, code, words) in [
        (LogBuilder::typical(&[SHA1]), "event-log-sha1-only", "SHA-1 digests only"),
        (LogBuilder::typical(&[SHA1, SHA384]), "event-log-mismatch", "000c sha384"),
    ] {
        let case = machine(&nothing, Some(&sent));
        let reject = appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap_err();
        assert_eq!(reject.code(), code, "{}", reject.detail());
        assert!(reject.advice().next_step.contains(words), "{}", reject.advice().next_step);
    }
    // A whole PCR is compared before the log is looked at.
    let case = machine(&nothing, Some(&LogBuilder::typical(&[SHA1])));
    let accepted = AcceptedValues::AnyOf(vec![[7; 32].into()]);
    let policy = AppraisalPolicy::for_tpm(values(&[], [(4, accepted)].into()));
    let reject = appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap_err();
    assert_eq!(reject.code(), "pcr-mismatch");
    assert!(reject.advice().next_step.contains("SHA-1 only"), "{}", reject.advice().next_step);
}

#[test]
fn advice_for_an_unproven_boot_names_the_cause() {
    let advice = |log: &LogBuilder, check: Check| {
        let reject = judged(log, &[check], &values_of(&grub_machine(true))).unwrap_err();
        assert_eq!(reject.code(), "boot-not-proven", "{}", reject.detail());
        reject.advice().next_step
    };
    let good = grub_machine(true);
    let debug = advice(&good.clone().event(7, 0x8000_0007, b"UEFI Debug Mode"), Check::SecureBoot);
    let error = advice(&good.clone().event(7, EV_SEPARATOR, &[1, 0, 0, 0]), Check::SecureBoot);
    let twice = advice(&good.clone().event(7, EV_SEPARATOR, &[0; 4]), Check::SecureBoot);
    let unknown = advice(&unknown(b"x"), Check::SecureBoot);
    assert!(debug.contains("debugger") && error.contains("could not measure"), "{debug} {error}");
    assert!(
        twice.contains("compare-boots") && unknown.contains("pcr_7_events"),
        "{twice} {unknown}"
    );
}

/// The name comes from the node, so the content is compared with the values like any file's; the refusal has further advice.
#[test]
fn grub_environment_block_has_its_own_advice() {
    let log = |content: &[u8], name: &[u8]| with(&grub_machine(true), 9, content, name);
    let first = log(b"boot_success=0", b"(hd0,gpt2)/grub2/grubenv\0");
    let recorded = recording(&first, false);
    assert_eq!(recorded.grub_environments, [first.events.len()]);
    assert!(judged(&first, &[Check::Files], &recorded.values).is_ok());
    let next_step = |log: &LogBuilder| {
        let reject = judged(log, &[Check::Files], &recorded.values).unwrap_err();
        assert_eq!(reject.code(), "boot-not-accepted");
        reject.advice().next_step
    };
    assert!(next_step(&log(b"boot_success=1", b"(hd0,gpt2)/grub2/grubenv\0")).contains("environment block"));
    assert!(!next_step(&log(b"boot_success=1", b"(hd0,gpt2)/grub2/grub.cfg\0")).contains("environment block"));
}
