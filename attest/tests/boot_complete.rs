//! A pool that accepts machines only while they boot: the boot-complete PCR holds the firmware's measurements, and no later extension.

use std::collections::BTreeMap;

use crate::log_builder::{EV_IPL, EV_NO_ACTION, EV_SEPARATOR, LogBuilder, SHA256, SHA384};
use crate::support::{Case, SoftKey, at};
use attest::protocol::HexDigest;
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD};
use attest::tpm::event_log::OS_SEPARATOR;
use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
use attest::tpm::wire::HashAlg;
use attest::{AppraisalPolicy, ReferenceValues, Reject, appraise};

const IS_OVER: &str = "tpm-boot-is-over";
/// Into the door's PCR, whatever the log says.
const DOOR: u32 = BOOT_COMPLETE_PCR as u32;

/// Reference values for PCRs 0 to 7, which are not checked.
fn values(bank: HashAlg) -> ReferenceValues {
    let pcrs = (0..8).map(|pcr| (pcr, AcceptedValues::NotChecked)).collect();
    ReferenceValues::new(bank, pcrs).unwrap().only_while_booting(true)
}

/// Returns the log of a firmware: nothing in the boot-complete PCR, or what systemd-stub measures for system extensions.
fn firmware(extensions: usize) -> LogBuilder {
    let log = LogBuilder::typical(&[SHA256, SHA384]);
    (0..extensions).fold(log, |log, number| log.event(DOOR, EV_IPL, format!("extension {number}").as_bytes()))
}

/// Returns the log with these words extended into the boot-complete PCR.
fn then(log: &LogBuilder, words: &[&[u8]]) -> LogBuilder {
    words.iter().fold(log.clone(), |log, word| log.event(DOOR, EV_IPL, word))
}

/// A machine whose PCRs are those of one log, and that sends another one, or none.
struct Machine {
    is: LogBuilder,
    sends: Option<Vec<u8>>,
}

impl Machine {
    fn is(is: LogBuilder) -> Self {
        Self { is, sends: None }
    }

    fn sending(self, log: &LogBuilder) -> Self {
        self.sending_bytes(log.build())
    }

    fn sending_bytes(self, log: Vec<u8>) -> Self {
        Self { sends: Some(log), ..self }
    }

    fn case(&self, bank: HashAlg) -> Case {
        let all = self.is.pcrs(bank).into_iter();
        let asked: BTreeMap<u8, Vec<u8>> = all
            .filter(|(pcr, _)| *pcr < 8 || *pcr == BOOT_COMPLETE_PCR)
            .map(|(pcr, value)| (pcr, value.as_bytes().to_vec()))
            .collect();
        Case::with_pcrs(SoftKey::p256(), bank, asked).but(|case| case.event_log = self.sends.clone())
    }

    fn judged(&self, values: ReferenceValues) -> Result<(), Reject> {
        let case = self.case(values.bank());
        appraise(case.verify().unwrap(), &AppraisalPolicy::for_tpm(values), at(case.now)).map(drop)
    }

    /// Checks the result in each bank, with different rules for the log.
    #[track_caller]
    fn is_judged(&self, expect: Result<(), &str>) {
        for bank in [HashAlg::Sha256, HashAlg::Sha384] {
            for rule in [EventLogRule::Recorded, EventLogRule::Checked] {
                let judged = self.judged(values(bank).with_event_log(rule));
                assert_eq!(
                    judged.as_ref().map_err(Reject::code).copied(),
                    expect,
                    "{bank} {rule:?}: {judged:?}"
                );
            }
        }
    }

    /// Checks that the boot is over, with this reason in the log's words.
    #[track_caller]
    fn is_over(&self, why: &str) {
        self.is_judged(Err(IS_OVER));
        let reject = self.judged(values(HashAlg::Sha256)).unwrap_err();
        assert!(reject.to_string().contains(why), "{reject}");
    }
}

#[test]
fn attack_47_booted_machine_is_refused() {
    let closed = "attest-node extended it at the end of the boot";
    for extensions in [0, 2] {
        let booted = firmware(extensions);
        for words in [&[CLOSING_WORD][..], &[OS_SEPARATOR, CLOSING_WORD], &[CLOSING_WORD, OS_SEPARATOR]] {
            Machine::is(then(&booted, words)).sending(&booted).is_over(closed);
        }
        // It need not be its word.
        let other = "software extended it after the firmware";
        for words in [
            &[&b"another"[..]][..],
            &[CLOSING_WORD, CLOSING_WORD],
            &[CLOSING_WORD, b"another"],
            &[b"another", OS_SEPARATOR],
            &[OS_SEPARATOR, OS_SEPARATOR],
        ] {
            Machine::is(then(&booted, words)).sending(&booted).is_over(other);
        }
    }
    Machine::is(then(&firmware(0), &[CLOSING_WORD])).is_over(closed);
}

/// An attacker with the log may write into it any event that was extended.
#[test]
fn attack_47_log_with_boot_complete_event_is_refused() {
    for extensions in [0, 2] {
        let booted = firmware(extensions);
        for words in [
            &[CLOSING_WORD][..],
            &[CLOSING_WORD, CLOSING_WORD],
            &[OS_SEPARATOR, CLOSING_WORD],
            &[CLOSING_WORD, b"another"],
            &[b"another", CLOSING_WORD, OS_SEPARATOR],
        ] {
            let closed = then(&booted, words);
            Machine::is(closed.clone()).sending(&closed).is_over("no firmware logs it");
        }
        // As the first, and under another type.
        let mut early = then(&booted, &[CLOSING_WORD]);
        let mut event = early.events.pop().unwrap();
        event.event_type = EV_SEPARATOR;
        event.data = b"Boot phase".to_vec();
        early.events.insert(0, event);
        Machine::is(early.clone()).sending(&early).is_over("event 1 of the log");
        // What extends nothing closes nothing, and takes nothing back.
        let none = booted.clone().event(DOOR, EV_NO_ACTION, CLOSING_WORD);
        Machine::is(booted.clone()).sending(&none).is_judged(Ok(()));
        Machine::is(then(&booted, &[CLOSING_WORD]))
            .sending(&none)
            .is_over("attest-node extended it at the end of the boot");
        // Nor does the word in another PCR.
        let elsewhere = booted.clone().event(12, EV_IPL, CLOSING_WORD);
        Machine::is(elsewhere.clone()).sending(&elsewhere).is_judged(Ok(()));
        // A log of another boot, that had not ended.
        Machine::is(then(&booted, &[CLOSING_WORD]))
            .sending(&firmware(extensions + 1))
            .is_judged(Err(IS_OVER));
    }
}

#[test]
fn booting_machine_is_accepted() {
    for extensions in [0, 2] {
        let booted = firmware(extensions);
        Machine::is(booted.clone()).sending(&booted).is_judged(Ok(()));
        Machine::is(then(&booted, &[OS_SEPARATOR])).sending(&booted).is_judged(Ok(()));
    }
    // Who sends no log that could be read has to have nothing there.
    for words in [&[][..], &[OS_SEPARATOR]] {
        Machine::is(then(&firmware(0), words)).is_judged(Ok(()));
        let unread = Machine::is(then(&firmware(0), words)).sending_bytes(b"no log".to_vec());
        unread
            .judged(values(HashAlg::Sha256).with_event_log(EventLogRule::Recorded))
            .unwrap();
    }
    Machine::is(firmware(1)).is_judged(Err(IS_OVER));
    let unread = Machine::is(firmware(1)).sending_bytes(b"no log".to_vec());
    let reject = unread
        .judged(values(HashAlg::Sha256).with_event_log(EventLogRule::Recorded))
        .unwrap_err();
    assert_eq!(reject.code(), IS_OVER);
}

/// Errors elsewhere in a log do not affect the boot-complete PCR, if no rule depends on them.
#[test]
fn boot_complete_pcr_is_explained_despite_other_errors() {
    let mut other = firmware(2);
    other.events.remove(3);
    let recorded = values(HashAlg::Sha256).with_event_log(EventLogRule::Recorded);
    Machine::is(firmware(2)).sending(&other).judged(recorded.clone()).unwrap();
    let closed = Machine::is(then(&firmware(2), &[CLOSING_WORD])).sending(&other);
    assert_eq!(closed.judged(recorded).unwrap_err().code(), IS_OVER);
    // Of a bank that the log has not.
    let without = LogBuilder::typical(&[SHA256]).event(DOOR, EV_IPL, b"extension");
    let case = Machine::is(firmware(0))
        .case(HashAlg::Sha384)
        .but(|case| case.event_log = Some(without.build()));
    let values = values(HashAlg::Sha384).with_event_log(EventLogRule::Recorded);
    appraise(case.verify().unwrap(), &AppraisalPolicy::for_tpm(values), at(case.now)).unwrap();
}

/// A node may send a forged log, but no choice of events in it undoes an extension of the quoted PCR.
#[test]
fn boot_complete_pcr_must_be_quoted() {
    let case = Case::new(SoftKey::p256());
    let policy = AppraisalPolicy::for_tpm(values(HashAlg::Sha256));
    let reject = appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap_err();
    assert_eq!(reject.code(), "quote-selection");
    let selection = policy.selection().unwrap();
    assert_eq!(
        selection.pcrs().iter().copied().collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6, 7, BOOT_COMPLETE_PCR]
    );
    // Without the rule it is neither asked for nor looked at.
    let policy = AppraisalPolicy::for_tpm(values(HashAlg::Sha256).only_while_booting(false));
    assert!(!policy.selection().unwrap().pcrs().contains(&BOOT_COMPLETE_PCR));
    appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap();
}

/// An administrator may name the PCR: both hold.
#[test]
fn reference_values_also_apply_to_boot_complete_pcr() {
    let named = |accepted: AcceptedValues, only: bool| {
        let pcrs = (0..8)
            .map(|pcr| (pcr, AcceptedValues::NotChecked))
            .chain([(BOOT_COMPLETE_PCR, accepted)]);
        ReferenceValues::new(HashAlg::Sha256, pcrs.collect())
            .unwrap()
            .only_while_booting(only)
    };
    let (booted, closed) = (firmware(0), then(&firmware(0), &[CLOSING_WORD]));
    let value = |log: &LogBuilder| AcceptedValues::AnyOf(vec![log.pcrs(HashAlg::Sha256)[&BOOT_COMPLETE_PCR].clone()]);
    let code = |is: &LogBuilder, values: ReferenceValues| Machine::is(is.clone()).judged(values).map_err(|reject| reject.code());
    assert_eq!(code(&booted, named(AcceptedValues::NotChecked, true)), Ok(()));
    assert_eq!(code(&closed, named(AcceptedValues::NotChecked, true)), Err(IS_OVER));
    assert_eq!(code(&closed, named(AcceptedValues::NotChecked, false)), Ok(()));
    assert_eq!(code(&booted, named(value(&booted), true)), Ok(()));
    assert_eq!(code(&booted, named(value(&closed), true)), Err("pcr-mismatch"));
    assert_eq!(code(&closed, named(value(&closed), true)), Err(IS_OVER));
    assert_eq!(code(&closed, named(value(&closed), false)), Ok(()));
}

#[test]
fn pcr_mismatch_precedes_boot_complete_and_missing_log() {
    let other = AcceptedValues::AnyOf(vec![HexDigest::from([0xab; 32])]);
    let pcrs = (0..7).map(|pcr| (pcr, AcceptedValues::NotChecked)).chain([(7, other)]).collect();
    let mismatch = ReferenceValues::new(HashAlg::Sha256, pcrs).unwrap().only_while_booting(true);
    let closed = Machine::is(then(&firmware(0), &[CLOSING_WORD]));
    assert_eq!(closed.judged(mismatch).unwrap_err().code(), "pcr-mismatch");
    let required = values(HashAlg::Sha256).with_event_log(EventLogRule::Required);
    assert_eq!(closed.judged(required.clone()).unwrap_err().code(), IS_OVER);
    assert_eq!(Machine::is(firmware(0)).judged(required).unwrap_err().code(), "event-log-missing");
}

/// A record is replayed as it was written: one from a release without this rule does not ask for the PCR.
#[test]
fn legacy_policy_does_not_require_boot_complete_pcr() {
    let written = |only: bool| serde_json::to_value(AppraisalPolicy::for_tpm(values(HashAlg::Sha256).only_while_booting(only))).unwrap();
    assert!(written(false)["tpm"].get("only_while_booting").is_none());
    assert_eq!(written(true)["tpm"]["only_while_booting"], true);
    for only in [false, true] {
        let read: AppraisalPolicy = serde_json::from_value(written(only)).unwrap();
        assert_eq!(read.reference_values().unwrap().is_only_while_booting(), only);
    }
}
