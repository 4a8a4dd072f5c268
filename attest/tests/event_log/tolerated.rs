//! Deviations of firmware and systems from the specification.

use super::*;

/// An event that extends nothing may have an index that is not a PCR's: an NV index for an SPDM device's message, or one that Windows adds.
/// The other events still lead to the same values.
#[test]
fn no_action_events_may_have_any_index() {
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

/// Returns the PCR values after systemd's word was extended into some of them.
fn separated(pcrs: &BTreeMap<u8, HexDigest>, bank: HashAlg, word: &[u8], which: &[u8]) -> BTreeMap<u8, HexDigest> {
    let hash = |parts: &[&[u8]]| bank.digest(parts);
    let extended = |value: &HexDigest| HexDigest::new(hash(&[value.as_bytes(), hash(&[word]).as_ref()]).as_ref()).unwrap();
    let of = |pcr: &u8, value: &HexDigest| if which.contains(pcr) { extended(value) } else { value.clone() };
    pcrs.iter().map(|(pcr, value)| (*pcr, of(pcr, value))).collect()
}

/// systemd 261 and later, on each boot of a unified kernel image.
#[test]
fn systemd_separator_after_the_firmware_is_explained() {
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

/// The structure has 17 bytes; longer data are padded.
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
