//! The event log on generated logs: everything here runs without the vectors.

mod altered;
mod malformed;
mod tolerated;

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
fn every_bank_replays_to_the_pcr_values() {
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
fn only_requested_pcrs_are_replayed() {
    let bytes = typical().build();
    let replayed = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha256, [4, 7]).unwrap();
    assert!(replayed.value(4).is_some() && replayed.value(7).is_some());
    assert_eq!((replayed.value(0), replayed.events(0), replayed.value(24)), (None, 0, None));
}

#[test]
fn rejects_replay_of_a_nonexistent_pcr() {
    let bytes = typical().build();
    let error = EventLog::parse(&bytes).unwrap().replay(HashAlg::Sha256, [24]).unwrap_err();
    assert_eq!(error, EventLogError::NoSuchPcr { index: 24 });
}

#[test]
fn startup_locality_sets_the_initial_pcr_0() {
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
fn events_may_lack_digests_of_unrequested_banks() {
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
fn rejects_replay_of_a_missing_bank() {
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
fn pcrs_above_7_may_be_unexplained() {
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
fn trusted_events_exclude_no_action_events() {
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
    fn built_logs_parse_to_the_same_events(built in any_log()) {
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

    /// Any altered byte leads to no panic, and to no other sequence of digests that matches the quote.
    #[test]
    fn attack_24_altered_byte_never_yields_other_digests(built in any_log(), at in any::<prop::sample::Index>(), xor in 1..=255_u8) {
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
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), behind_a_header in any::<bool>()) {
        let bytes = if behind_a_header { [typical().header(), bytes].concat() } else { bytes };
        if let Ok(log) = EventLog::parse(&bytes) {
            let _ = log.replay(HashAlg::Sha256, 0..24);
        }
    }
}
