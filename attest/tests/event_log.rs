//! The event log on generated logs: everything here runs without the vectors.

use std::collections::BTreeMap;

use crate::log_builder;
use crate::log_builder::{EV_IPL, EV_NO_ACTION, EV_POST_CODE, EV_SEPARATOR, LogBuilder, SHA1, SHA256, SHA384, SHA512, SM3, header_around};
use attest::protocol::HexDigest;
use attest::tpm::event_log::{EventLog, EventLogError, EventType, LOG_LIMIT_BYTES, OS_SEPARATOR, OS_SEPARATOR_PCRS};
use attest::tpm::wire::HashAlg;
use proptest::prelude::*;

const BANKS: [(HashAlg, u16); 3] = [(HashAlg::Sha256, SHA256), (HashAlg::Sha384, SHA384), (HashAlg::Sha512, SHA512)];

fn typical() -> LogBuilder {
    LogBuilder::typical(&[SHA1, SHA256, SHA384])
}

/// A sha256 log's check against PCR values.
fn check(log: &LogBuilder, quoted: &BTreeMap<u8, HexDigest>) -> Result<(Vec<u8>, Vec<u8>), EventLogError> {
    let bytes = log.build();
    let log = EventLog::parse(&bytes)?;
    let trusted = log.check_against(HashAlg::Sha256, quoted)?;
    Ok((trusted.explained_pcrs().collect(), trusted.unexplained_pcrs().collect()))
}

fn refused(bytes: &[u8]) -> EventLogError {
    EventLog::parse(bytes).expect_err("the log must be refused")
}

fn mismatch_of(result: Result<(Vec<u8>, Vec<u8>), EventLogError>) -> u8 {
    match result {
        Err(EventLogError::PcrMismatch {
            index,
            bank: HashAlg::Sha256,
            quoted,
            replayed,
            ..
        }) => {
            assert_ne!(quoted, replayed);
            index
        }
        other => panic!("expected a PCR mismatch, got {other:?}"),
    }
}

#[test]
fn every_bank_replays_to_what_a_tpm_would_hold() {
    for (bank, id) in BANKS {
        for algorithms in [vec![id], vec![SHA1, id], vec![SM3, id], vec![SHA512, SM3, SHA384, SHA1, SHA256]] {
            let built = LogBuilder::typical(&algorithms);
            let bytes = built.build();
            let log = EventLog::parse(&bytes).unwrap();
            let replayed = log.replay(bank, 0..24).unwrap();
            for (pcr, value) in built.pcrs(bank) {
                assert_eq!(
                    replayed.value(pcr).unwrap(),
                    value.as_bytes(),
                    "PCR {pcr} in {bank} of {algorithms:x?}"
                );
            }
            assert_eq!(replayed.events(9), 2);
            assert_eq!(log.check_against(bank, &built.pcrs(bank)).unwrap().explained_pcrs().count(), 24);
        }
    }
}

#[test]
fn only_the_pcrs_asked_for_are_replayed() {
    let bytes = typical().build();
    let replayed = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha256, [4, 7]).unwrap();
    assert!(replayed.value(4).is_some() && replayed.value(7).is_some());
    assert_eq!((replayed.value(0), replayed.events(0), replayed.value(24)), (None, 0, None));
}

#[test]
fn a_pcr_that_no_tpm_has_cannot_be_replayed() {
    let bytes = typical().build();
    let error = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha256, [24]).unwrap_err();
    assert_eq!(error, EventLogError::NoSuchPcr { index: 24 });
}

#[test]
fn startup_locality_is_where_pcr_0_begins() {
    for locality in [0, 3, 4] {
        let built = LogBuilder::new(&[SHA256])
            .startup_locality(locality)
            .event(0, EV_POST_CODE, b"code");
        let bytes = built.build();
        let log = EventLog::parse(&bytes).unwrap();
        assert_eq!(log.startup_locality(), locality);
        assert_eq!(
            log.replay(HashAlg::Sha256, [0]).unwrap().value(0).unwrap(),
            built.pcrs(HashAlg::Sha256)[&0].as_bytes()
        );
    }
    // With no event at all, PCR 0 still holds the locality.
    let built = LogBuilder::new(&[SHA384]).startup_locality(3);
    let bytes = built.build();
    let replayed = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha384, [0]).unwrap();
    assert_eq!(replayed.value(0).unwrap(), [[0; 47].as_slice(), &[3]].concat());
}

#[test]
fn no_action_events_extend_nothing() {
    let with = typical().event(4, EV_NO_ACTION, b"SP800-155 Event3").event(6, EV_NO_ACTION, b"");
    assert_eq!(with.pcrs(HashAlg::Sha256), typical().pcrs(HashAlg::Sha256));
    assert!(check(&with, &typical().pcrs(HashAlg::Sha256)).is_ok());
}

#[test]
fn vendor_information_is_skipped() {
    let mut built = typical();
    built.vendor_info = vec![0xa5; 255];
    assert!(check(&built, &built.pcrs(HashAlg::Sha256)).is_ok());
}

#[test]
fn an_event_may_lack_banks_that_are_not_asked_for() {
    let mut built = LogBuilder::typical(&[SHA1, SHA256, SHA512]);
    built.events[3].digests.retain(|(algorithm, _)| *algorithm == SHA256);
    let bytes = built.build();
    let log = EventLog::parse(&bytes).unwrap();
    assert!(log.check_against(HashAlg::Sha256, &built.pcrs(HashAlg::Sha256)).is_ok());
    let error = EventLogError::DigestMissing {
        event: 4,
        index: 1,
        bank: HashAlg::Sha512,
    };
    assert_eq!(log.replay(HashAlg::Sha512, 0..8).unwrap_err(), error);
    assert!(log.replay(HashAlg::Sha512, 2..8).is_ok());
}

#[test]
fn a_bank_that_was_not_logged_is_not_replayed() {
    let bytes = LogBuilder::typical(&[SHA1, SM3]).build();
    let error = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha256, [0]).unwrap_err();
    assert_eq!(
        error,
        EventLogError::BankMissing {
            bank: HashAlg::Sha256,
            declared: vec![SHA1, SM3]
        }
    );
}

#[test]
fn events_are_listed_in_order_with_their_fields() {
    let built = typical();
    let bytes = built.build();
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.event_count(), built.events.len());
    for (event, built) in log.events().iter().zip(&built.events) {
        assert_eq!(
            (u32::from(event.pcr), event.event_type, event.data),
            (built.pcr, EventType(built.event_type), built.data.as_slice())
        );
        assert_eq!(event.digest(HashAlg::Sha256), Some(built.digests[1].1.as_slice()));
        assert_eq!(event.digest(HashAlg::Sha512), None);
    }
    assert_eq!(log.events()[0].event_type.to_string(), "EV_POST_CODE");
    assert_eq!(EventType(0xdead_beef).to_string(), "0xdeadbeef");
}

#[test]
fn pcrs_above_7_that_the_log_does_not_lead_to_are_unexplained() {
    let built = typical();
    let mut quoted = built.pcrs(HashAlg::Sha256);
    let elsewhere = HexDigest::new(&[7; 32]).unwrap();
    quoted.insert(9, elsewhere.clone());
    quoted.insert(10, elsewhere);
    let bytes = built.build();
    let log = EventLog::parse(&bytes).unwrap();
    let trusted = log.check_against(HashAlg::Sha256, &quoted).unwrap();
    assert_eq!(trusted.unexplained_pcrs().collect::<Vec<_>>(), [9, 10]);
    assert!(trusted.events_of(9).is_none() && trusted.events_of(10).is_none());
    assert_eq!(trusted.events_of(8).unwrap().count(), 1);
    assert_eq!(
        trusted.events_of(11).unwrap().count(),
        0,
        "explained: it is zero, and nothing was extended"
    );
}

#[test]
fn trusted_events_are_those_that_extended() {
    let built = typical().event(4, EV_NO_ACTION, b"not measured");
    let bytes = built.build();
    let log = EventLog::parse(&bytes).unwrap();
    let trusted = log.check_against(HashAlg::Sha256, &built.pcrs(HashAlg::Sha256)).unwrap();
    let events: Vec<_> = trusted.events_of(4).unwrap().collect();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2].digest(), log_builder::digest(SHA256, &[0; 4]));
    assert_eq!(
        (events[2].untrusted_type(), events[2].untrusted_data()),
        (EventType(EV_SEPARATOR), [0; 4].as_slice())
    );
}

/// Row 23: malformed logs. One refusal for each field of the header that can be wrong.
#[test]
fn attack_23_headers() {
    let header_with = |alter: fn(&mut LogBuilder)| {
        let mut built = typical();
        alter(&mut built);
        refused(&built.build())
    };
    let not_a_log = |field, found: &str, required| EventLogError::NotALog {
        field,
        found: found.to_owned(),
        required,
    };

    assert_eq!(header_with(|log| log.header_pcr = 24), not_a_log("pcrIndex", "24", "0"));
    assert_eq!(header_with(|log| log.header_pcr = 1), not_a_log("pcrIndex", "1", "0"));
    let digest = "0100000000000000000000000000000000000000";
    assert_eq!(header_with(|log| log.header_digest[0] = 1), not_a_log("digest", digest, "zeros"));
    assert_eq!(
        header_with(|log| log.header_type = EV_SEPARATOR),
        EventLogError::Sha1Only {
            first: EventType(EV_SEPARATOR)
        }
    );
    assert_eq!(
        header_with(|log| log.signature = *b"Spec ID Event02\0"),
        EventLogError::Sha1Only {
            first: EventType::NO_ACTION
        }
    );
    assert_eq!(
        header_with(|log| log.version[1] = 1),
        EventLogError::SpecVersion { major: 1, minor: 0 }
    );
    assert_eq!(
        header_with(|log| log.version[0] = 1),
        EventLogError::SpecVersion { major: 2, minor: 1 }
    );
    assert_eq!(
        header_with(|log| log.algorithms.clear()),
        EventLogError::AlgorithmCount { found: 0 }
    );
    let seventeen = |log: &mut LogBuilder| log.algorithms = (0x100..0x111).map(|algorithm| (algorithm, 32)).collect();
    assert_eq!(header_with(seventeen), EventLogError::AlgorithmCount { found: 17 });
    assert_eq!(
        header_with(|log| log.algorithms.push((SHA1, 20))),
        EventLogError::AlgorithmTwice { algorithm: SHA1 }
    );
    let size = |algorithm, declared, required| EventLogError::AlgorithmSize {
        algorithm,
        declared,
        required,
    };
    assert_eq!(header_with(|log| log.algorithms[0].1 = 32), size(SHA1, 32, "20"));
    assert_eq!(header_with(|log| log.algorithms[1].1 = 31), size(SHA256, 31, "32"));
    assert_eq!(header_with(|log| log.algorithms[2].1 = 0), size(SHA384, 0, "48"));
    assert_eq!(header_with(|log| log.algorithms.push((SHA512, 65535))), size(SHA512, 65535, "64"));
    assert_eq!(header_with(|log| log.algorithms.push((SM3, 0))), size(SM3, 0, "1 to 128"));
    assert_eq!(header_with(|log| log.algorithms.push((SM3, 129))), size(SM3, 129, "1 to 128"));

    let longer = [typical().header_data(), vec![0]].concat();
    assert_eq!(
        refused(&header_around(0, EV_NO_ACTION, [0; 20], &longer)),
        EventLogError::HeaderSize { stated: 42, used: 41 }
    );
    let mut count = typical().header_data();
    count[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        refused(&header_around(0, EV_NO_ACTION, [0; 20], &count)),
        EventLogError::AlgorithmCount { found: u32::MAX }
    );
    let mut vendor = typical().header_data();
    *vendor.last_mut().unwrap() = 4;
    let beyond = EventLogError::Truncated {
        field: "vendorInfo",
        offset: 41,
        needed: 4,
        left: 0,
    };
    assert_eq!(
        refused(&[header_around(0, EV_NO_ACTION, [0; 20], &vendor), vec![0xde; 4]].concat()),
        beyond
    );
}

/// Row 23: one refusal for each field of an event that can be wrong.
#[test]
fn attack_23_events() {
    let event_with = |alter: fn(&mut log_builder::BuiltEvent)| {
        let mut built = typical();
        alter(&mut built.events[4]);
        refused(&built.build())
    };
    assert_eq!(event_with(|event| event.pcr = 24), EventLogError::PcrIndex { event: 5, index: 24 });
    assert_eq!(
        event_with(|event| event.pcr = u32::MAX),
        EventLogError::PcrIndex { event: 5, index: u32::MAX }
    );
    assert_eq!(
        event_with(|event| event.digests.clear()),
        EventLogError::DigestCount {
            event: 5,
            found: 0,
            declared: 3
        }
    );
    let fourth = |event: &mut log_builder::BuiltEvent| event.digests.push((SHA512, vec![0; 64]));
    assert_eq!(
        event_with(fourth),
        EventLogError::DigestCount {
            event: 5,
            found: 4,
            declared: 3
        }
    );
    let undeclared = EventLogError::DigestUndeclared {
        event: 5,
        algorithm: SHA512,
    };
    assert_eq!(event_with(|event| event.digests[2] = (SHA512, vec![0; 64])), undeclared);
    let twice = EventLogError::DigestTwice {
        event: 5,
        algorithm: SHA256,
    };
    assert_eq!(event_with(|event| event.digests[2] = (SHA256, vec![0; 32])), twice);

    let log = typical();
    let (before, event) = (
        LogBuilder {
            events: log.events[..4].to_vec(),
            ..log.clone()
        }
        .build(),
        log.events[4].build(),
    );
    let size_at = event.len() - log.events[4].data.len() - 4;
    let mut huge = [before.clone(), event].concat();
    let size_at = before.len() + size_at;
    huge[size_at..size_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let (offset, left) = (size_at + 4, log.events[4].data.len());
    assert_eq!(
        refused(&huge),
        EventLogError::Truncated {
            field: "event data",
            offset,
            needed: 0xffff_ffff,
            left
        }
    );
}

/// One that extends nothing may be about no PCR: an NV index for what an SPDM device has said, or what Windows adds. The others lead where they led.
#[test]
fn informative_events_about_no_pcr_are_passed_over() {
    let plain = typical();
    let with = |index: u32, event_type: u32| {
        let mut log = plain.clone();
        let added = LogBuilder::new(&[SHA1, SHA256, SHA384])
            .event(index, event_type, b"SPDM Device Sec2")
            .events;
        log.events.splice(5..5, added);
        log
    };
    for index in [24, 0x01c4_0200, 0x01c4_0201, u32::MAX] {
        let bytes = with(index, EV_NO_ACTION).build();
        let log = EventLog::parse(&bytes).unwrap();
        assert_eq!(log.event_count(), plain.events.len());
        let quoted = plain.pcrs(HashAlg::Sha256);
        assert_eq!(
            log.check_against(HashAlg::Sha256, &quoted).unwrap().explained_pcrs().count(),
            quoted.len()
        );
        // What says that it has extended something has to say what.
        for event_type in [EV_POST_CODE, EV_SEPARATOR, 0x8000_00e1] {
            assert_eq!(
                refused(&with(index, event_type).build()),
                EventLogError::PcrIndex { event: 6, index }
            );
        }
        // It has to be an event all the same, and what comes after it is counted on.
        let mut no_digest = with(index, EV_NO_ACTION);
        no_digest.events[5].digests.clear();
        assert!(matches!(refused(&no_digest.build()), EventLogError::DigestCount { event: 6, .. }));
        let mut later = with(index, EV_NO_ACTION);
        later.events[8].pcr = 24;
        assert_eq!(refused(&later.build()), EventLogError::PcrIndex { event: 9, index: 24 });
    }
}

/// PCRs after what systemd does there.
fn separated(pcrs: &BTreeMap<u8, HexDigest>, bank: HashAlg, word: &[u8], which: &[u8]) -> BTreeMap<u8, HexDigest> {
    let hash = |parts: &[&[u8]]| bank.digest(parts);
    let extended = |value: &HexDigest| HexDigest::new(hash(&[value.as_bytes(), hash(&[word]).as_ref()]).as_ref()).unwrap();
    let of = |pcr: &u8, value: &HexDigest| if which.contains(pcr) { extended(value) } else { value.clone() };
    pcrs.iter().map(|(pcr, value)| (*pcr, of(pcr, value))).collect()
}

/// systemd 261 and later, on each boot of a unified kernel image.
#[test]
fn what_systemd_extends_after_the_firmware_is_known() {
    assert_eq!(
        data_encoding::HEXLOWER.encode(HashAlg::Sha256.digest(&[OS_SEPARATOR]).as_ref()),
        "ff5b9d73dad709633ae76adf444012b57e913a12ed7403c3931145862f35f841",
    );
    for (bank, id) in BANKS {
        let built = LogBuilder::typical(&[id]);
        let bytes = built.build();
        let log = EventLog::parse(&bytes).unwrap();
        let pcrs: BTreeMap<u8, HexDigest> = built.pcrs(bank).into_iter().filter(|(pcr, _)| *pcr < 16).collect();
        let check = |quoted: &BTreeMap<u8, HexDigest>| {
            let trusted = log.check_against(bank, quoted)?;
            let explained: Vec<u8> = trusted.explained_pcrs().collect();
            Ok((
                explained,
                trusted.separated_pcrs().collect::<Vec<u8>>(),
                trusted.unexplained_pcrs().collect::<Vec<u8>>(),
            ))
        };
        let all: Vec<u8> = (0..16).collect();
        assert_eq!(check(&pcrs), Ok((all.clone(), vec![], vec![])));
        let after = separated(&pcrs, bank, OS_SEPARATOR, &OS_SEPARATOR_PCRS);
        assert_eq!(check(&after), Ok((all.clone(), OS_SEPARATOR_PCRS.to_vec(), vec![])));
        // In the midst of it.
        let half = separated(&pcrs, bank, OS_SEPARATOR, &[0, 1, 2]);
        assert_eq!(check(&half), Ok((all, vec![0, 1, 2], vec![])));

        let refused = |quoted: &BTreeMap<u8, HexDigest>| {
            let error: Result<_, EventLogError> = check(quoted);
            assert!(matches!(error, Err(EventLogError::PcrMismatch { index: 4, .. })), "{error:?}");
        };
        // Another word, twice, before the last event, with another hash, and after another event.
        for word in ["os-separator\0", "OS-separator", "", "enter-initrd"] {
            refused(&separated(&pcrs, bank, word.as_bytes(), &[4]));
        }
        refused(&separated(&separated(&pcrs, bank, OS_SEPARATOR, &[4]), bank, OS_SEPARATOR, &[4]));
        let mut early = built.clone();
        let last = early.events.iter().rposition(|event| event.pcr == 4).unwrap();
        early
            .events
            .splice(last..last, LogBuilder::new(&[id]).event(4, EV_IPL, OS_SEPARATOR).events);
        refused(&early.pcrs(bank).into_iter().filter(|(pcr, _)| *pcr < 16).collect());
        let mut more = built.clone();
        more.events.extend(LogBuilder::new(&[id]).event(4, EV_IPL, b"more").events);
        let more: BTreeMap<u8, HexDigest> = more.pcrs(bank).into_iter().filter(|(pcr, _)| *pcr < 16).collect();
        refused(&separated(&more, bank, OS_SEPARATOR, &[4]));
        // Where systemd does not extend it, it explains nothing.
        let elsewhere = separated(&pcrs, bank, OS_SEPARATOR, &[8, 10, 11, 15]);
        let (_, separated, unexplained) = check(&elsewhere).unwrap();
        assert_eq!((separated, unexplained), (vec![], vec![8, 10, 11, 15]));
    }
}

/// The structure has 17 bytes; what is longer is padded.
#[test]
fn a_startup_locality_event_may_be_padded() {
    for more in [&[][..], &[0; 3], &[0xff; 15]] {
        let data = [b"StartupLocality\0\x03".as_slice(), more].concat();
        let bytes = LogBuilder::new(&[SHA256])
            .event(0, EV_NO_ACTION, &data)
            .event(0, EV_POST_CODE, b"code")
            .build();
        assert_eq!(EventLog::parse(&bytes).unwrap().startup_locality(), 3);
        // It is one in every respect: where it stands, how often, and what it says.
        let late = LogBuilder::new(&[SHA256])
            .event(0, EV_POST_CODE, b"code")
            .event(0, EV_NO_ACTION, &data)
            .build();
        assert!(matches!(refused(&late), EventLogError::StartupLocalityPlace { event: 2, .. }));
        let wrong = [b"StartupLocality\0\x01".as_slice(), more].concat();
        let wrong = LogBuilder::new(&[SHA256]).event(0, EV_NO_ACTION, &wrong).build();
        assert_eq!(refused(&wrong), EventLogError::StartupLocality { event: 1, found: 1 });
    }
}

#[test]
fn attack_23_startup_locality() {
    let place = |built: LogBuilder| match refused(&built.build()) {
        EventLogError::StartupLocalityPlace { event, pcr, problem } => (event, pcr, problem),
        other => panic!("{other:?}"),
    };
    let log = || LogBuilder::new(&[SHA256]);
    assert_eq!(
        refused(&log().startup_locality(1).build()),
        EventLogError::StartupLocality { event: 1, found: 1 }
    );
    assert_eq!(place(log().startup_locality(3).startup_locality(3)), (2, 0, "for the second time"));
    let late = log().event(0, EV_POST_CODE, b"code").startup_locality(3);
    assert_eq!(place(late), (2, 0, "after PCR 0 was extended"));
    assert_eq!(
        place(log().event(1, EV_NO_ACTION, b"StartupLocality\0\x03")),
        (1, 1, "where only PCR 0 has one")
    );
}

#[test]
fn attack_23_not_logs_at_all() {
    let empty = EventLogError::Truncated {
        field: "the header's pcrIndex",
        offset: 0,
        needed: 4,
        left: 0,
    };
    assert_eq!(refused(b""), empty);
    assert!(matches!(
        refused(b"this is a text and not an event log, honestly"),
        EventLogError::NotALog { field: "pcrIndex", .. }
    ));
    assert_eq!(
        refused(&vec![0; LOG_LIMIT_BYTES + 1]),
        EventLogError::TooLarge {
            bytes: LOG_LIMIT_BYTES + 1
        }
    );
    assert_eq!(refused(&vec![0; LOG_LIMIT_BYTES]), EventLogError::Sha1Only { first: EventType(0) });
}

/// The format of TPM 1.2 has SHA-1 digests only, so nothing can be made of it.
#[test]
fn attack_06_a_sha1_only_log() {
    let event = |pcr, event_type, data: &[u8]| header_around(pcr, event_type, [0x11; 20], data);
    let bare = [event(0, 8, b"version"), event(0, EV_SEPARATOR, &[0; 4])].concat();
    assert_eq!(refused(&bare), EventLogError::Sha1Only { first: EventType(8) });
    let with_spec_id = [
        header_around(0, EV_NO_ACTION, [0; 20], b"Spec ID Event02\0\0\0\0\0\x02\x01\0\x01\0"),
        bare,
    ]
    .concat();
    assert_eq!(
        refused(&with_spec_id),
        EventLogError::Sha1Only {
            first: EventType::NO_ACTION
        }
    );
}

#[test]
fn attack_23_bytes_behind_the_last_event() {
    let bytes = typical().build();
    for garbage in [vec![0; 4], vec![0; 64], vec![0xff; 64], b"x".to_vec()] {
        let error = refused(&[bytes.clone(), garbage].concat());
        let as_expected = matches!(
            error,
            EventLogError::Truncated { .. } | EventLogError::DigestCount { found: 0, .. } | EventLogError::PcrIndex { index: u32::MAX, .. }
        );
        assert!(as_expected, "{error:?}");
    }
}

/// Row 23 and 24: cut anywhere, a log is refused, or it is a shorter log, which the quote refuses.
#[test]
fn attack_24_truncated_anywhere() {
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
fn attack_24_reordered() {
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
fn attack_24_without_one_event() {
    let built = typical();
    for removed in 0..24 {
        let mut altered = built.clone();
        let pcr = altered.events.remove(removed).pcr;
        assert_eq!(u32::from(mismatch_of(check(&altered, &built.pcrs(HashAlg::Sha256)))), pcr);
    }
}

#[test]
fn attack_24_without_any_event_of_a_firmware_pcr() {
    let built = typical();
    let mut altered = built.clone();
    altered.events.retain(|event| event.pcr != 7);
    assert_eq!(mismatch_of(check(&altered, &built.pcrs(HashAlg::Sha256))), 7);
}

#[test]
fn attack_24_extended() {
    for pcr in 0..8_u8 {
        let altered = typical().event(pcr.into(), EV_IPL, b"one more");
        assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), pcr);
    }
}

#[test]
fn attack_24_an_event_moved_to_another_pcr() {
    let mut altered = typical();
    altered.events[8].pcr = 5;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_an_event_declared_informative() {
    let mut altered = typical();
    altered.events[8].event_type = EV_NO_ACTION;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_another_digest() {
    let mut altered = typical();
    altered.events[8].digests[1].1[31] ^= 1;
    assert_eq!(mismatch_of(check(&altered, &typical().pcrs(HashAlg::Sha256))), 4);
}

#[test]
fn attack_24_another_startup_locality() {
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
fn attack_24_a_pcr_value_of_another_bank() {
    let built = LogBuilder::typical(&[SHA256, SHA384]);
    assert_eq!(mismatch_of(check(&built, &built.pcrs(HashAlg::Sha384))), 0);
}

/// Types and data are not measured: a log may lie there, and the types say so. What it cannot do is gain a trusted event.
#[test]
fn attack_24_a_false_description_stays_untrusted() {
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
fn attack_24_events_of_pcrs_that_were_not_quoted() {
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

fn any_log() -> impl Strategy<Value = LogBuilder> {
    let algorithms = proptest::sample::subsequence(vec![SHA1, SHA384, SHA512, SM3], 0..=4).prop_shuffle();
    let event = (
        0..24_u32,
        prop_oneof![0..20_u32, 0x8000_0000..0x8000_0010_u32],
        proptest::collection::vec(any::<u8>(), 0..80),
    );
    (
        algorithms,
        0..5_usize,
        proptest::option::of(prop_oneof![Just(0), Just(3), Just(4)]),
        proptest::collection::vec(event, 0..40),
    )
        .prop_map(|(mut algorithms, sha256_at, locality, events)| {
            algorithms.insert(sha256_at.min(algorithms.len()), SHA256);
            let mut log = LogBuilder::new(&algorithms);
            if let Some(locality) = locality {
                log = log.startup_locality(locality);
            }
            events
                .into_iter()
                .fold(log, |log, (pcr, event_type, data)| log.event(pcr, event_type, &data))
        })
}

proptest! {
    #[test]
    fn what_is_built_is_read(built in any_log()) {
        let bytes = built.build();
        let log = EventLog::parse(&bytes).unwrap();
        prop_assert_eq!(log.event_count(), built.events.len());
        for (event, built) in log.events().iter().zip(&built.events) {
            prop_assert_eq!((u32::from(event.pcr), event.event_type.0, event.data), (built.pcr, built.event_type, built.data.as_slice()));
        }
        for (bank, id) in BANKS {
            if built.algorithms.iter().any(|(algorithm, _)| *algorithm == id) {
                let quoted = built.pcrs(bank);
                prop_assert_eq!(log.check_against(bank, &quoted).unwrap().explained_pcrs().count(), quoted.len());
            }
        }
    }

    /// Whatever byte is altered: no panic, and no other sequence of digests passes for the one that was quoted.
    #[test]
    fn attack_24_any_byte_altered(built in any_log(), at in any::<prop::sample::Index>(), xor in 1..=255_u8) {
        let (mut bytes, quoted) = (built.build(), built.pcrs(HashAlg::Sha256));
        let at = at.index(bytes.len());
        bytes[at] ^= xor;
        let Ok(log) = EventLog::parse(&bytes) else { return Ok(()) };
        let Ok(trusted) = log.check_against(HashAlg::Sha256, &quoted) else { return Ok(()) };
        for pcr in 0..24_u8 {
            let extending = built.events.iter().filter(|event| event.pcr == u32::from(pcr) && event.event_type != EV_NO_ACTION);
            let measured: Vec<&[u8]> = extending.map(|event| event.digests.iter().find(|(id, _)| *id == SHA256).unwrap().1.as_slice()).collect();
            if let Some(events) = trusted.events_of(pcr) {
                prop_assert_eq!(events.map(|event| event.digest()).collect::<Vec<_>>(), measured);
            } else {
                prop_assert!(pcr > 7);
            }
        }
    }

    #[test]
    fn attack_23_no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), behind_a_header in any::<bool>()) {
        let bytes = if behind_a_header { [typical().header(), bytes].concat() } else { bytes };
        if let Ok(log) = EventLog::parse(&bytes) {
            let _ = log.replay(HashAlg::Sha256, 0..24);
        }
    }
}
