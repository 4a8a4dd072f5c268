//! Logs that do not describe the boot.

use super::*;

/// Row 23 and 24: cut anywhere, a log is refused, or it is a shorter log, which the quote refuses.
#[test]
fn attack_24_truncated_log_is_refused() {
    let built = typical();
    let (bytes, quoted) = (built.build(), built.pcrs(HashAlg::Sha256));
    let boundaries: Vec<usize> = built
        .events
        .iter()
        .scan(built.header().len(), |at, event| {
            Some(std::mem::replace(at, *at + event.build().len()))
        })
        .collect();
    for length in 0..bytes.len() {
        match EventLog::parse(&bytes[..length]) {
            Ok(log) => {
                assert!(boundaries.contains(&length), "cut at {length}");
                match log.check_against(HashAlg::Sha256, &quoted) {
                    Err(error) => assert!(matches!(error, EventLogError::PcrMismatch { .. })),
                    Ok(trusted) => assert!(trusted.unexplained_pcrs().any(|pcr| pcr == 9), "the last events are grub's"),
                }
            }
            Err(EventLogError::Truncated { offset, needed, left, .. }) => assert!(offset + left == length && needed > left),
            Err(other) => assert!(length < built.header().len(), "cut at {length}: {other:?}"),
        }
    }
}

#[test]
fn attack_24_reordered_events_of_a_pcr_are_refused() {
    let built = typical();
    let mut altered = built.clone();
    altered.events.swap(8, 9);
    assert_eq!(mismatch_of(check(&altered, &built.pcrs(HashAlg::Sha256))), 4);
    // The order of events of different PCRs is not measured, and nothing may depend on it.
    let mut altered = built.clone();
    altered.events.swap(9, 10);
    assert!(check(&altered, &built.pcrs(HashAlg::Sha256)).is_ok());
}

#[test]
fn attack_24_each_missing_event_is_refused() {
    let built = typical();
    for removed in 0..24 {
        let mut altered = built.clone();
        let pcr = altered.events.remove(removed).pcr;
        assert_eq!(u32::from(mismatch_of(check(&altered, &built.pcrs(HashAlg::Sha256)))), pcr);
    }
}

#[test]
fn attack_24_firmware_pcr_without_events_is_refused() {
    let built = typical();
    let mut altered = built.clone();
    altered.events.retain(|event| event.pcr != 7);
    assert_eq!(mismatch_of(check(&altered, &built.pcrs(HashAlg::Sha256))), 7);
}

#[test]
fn attack_24_additional_event_is_refused() {
    for pcr in 0..8_u8 {
        let altered = typical().event(pcr.into(), EV_IPL, b"one more");
        assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), pcr);
    }
}

#[test]
fn attack_24_event_moved_between_pcrs_is_refused() {
    let mut altered = typical();
    altered.events[8].pcr = 5;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_event_retyped_as_no_action_is_refused() {
    let mut altered = typical();
    altered.events[8].event_type = EV_NO_ACTION;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_altered_digest_is_refused() {
    let mut altered = typical();
    altered.events[8].digests[1].1[31] ^= 1;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_wrong_startup_locality_is_refused() {
    let log = |locality| {
        LogBuilder::new(&[SHA256])
            .startup_locality(locality)
            .event(0, EV_POST_CODE, b"code")
    };
    assert_eq!(mismatch_of(check(&log(0), &log(3).pcrs(HashAlg::Sha256))), 0);
    assert_eq!(
        mismatch_of(check(
            &LogBuilder::new(&[SHA256]).event(0, EV_POST_CODE, b"code"),
            &log(3).pcrs(HashAlg::Sha256)
        )),
        0
    );
}

#[test]
fn attack_24_pcr_value_of_another_bank_is_refused() {
    let built = LogBuilder::typical(&[SHA256, SHA384]);
    assert_eq!(mismatch_of(check(&built, &built.pcrs(HashAlg::Sha384))), 0);
}

/// Types and data are not measured: a log may lie there, and the result marks them as untrusted. But it cannot gain a trusted event.
#[test]
fn attack_24_forged_event_description_stays_untrusted() {
    let mut altered = typical();
    altered.events[8].event_type = EV_IPL;
    altered.events[8].data = b"entirely harmless".to_vec();
    let bytes = altered.build();
    let log = EventLog::parse(&bytes).unwrap();
    let trusted = log.check_against(HashAlg::Sha256, &typical().pcrs(HashAlg::Sha256)).unwrap();
    let event = trusted.events_of(4).unwrap().next().unwrap();
    assert_eq!(event.digest(), log_builder::digest(SHA256, b"firmware volume 4"));
    assert_eq!(event.untrusted_data(), b"entirely harmless");
}

#[test]
fn attack_24_events_of_unquoted_pcrs_are_ignored() {
    let built = typical().event(16, EV_IPL, b"anybody can do this");
    let mut quoted = built.pcrs(HashAlg::Sha256);
    quoted.retain(|pcr, _| [4, 7].contains(pcr));
    let bytes = built.build();
    let log = EventLog::parse(&bytes).unwrap();
    let trusted = log.check_against(HashAlg::Sha256, &quoted).unwrap();
    assert_eq!(trusted.explained_pcrs().collect::<Vec<_>>(), [4, 7]);
    for pcr in (0..=255).filter(|pcr| ![4, 7].contains(pcr)) {
        assert!(trusted.events_of(pcr).is_none(), "PCR {pcr}");
    }
}
