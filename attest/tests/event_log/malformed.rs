//! Bytes that are no log.

use super::*;

/// Row 23: malformed logs. One refusal for each field of the header that can be wrong.
#[test]
fn attack_23_malformed_headers_are_refused() {
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
fn attack_23_malformed_events_are_refused() {
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

#[test]
fn attack_23_invalid_startup_locality_is_refused() {
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
fn attack_23_input_that_is_no_log_is_refused() {
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
fn attack_06_sha1_only_log_is_refused() {
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
fn attack_23_trailing_bytes_are_refused() {
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
