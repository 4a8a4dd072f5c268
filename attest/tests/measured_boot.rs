//! Meaning of a log's events, on generated logs: everything here runs without the vectors.

mod claims_digest;
mod difference;
mod firmware;
mod images;
mod limits;
mod loaders;
pub mod machine;
mod mutations;
mod secure_boot;

use crate::log_builder::{EV_IPL, LogBuilder};
use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{BootEvent, Fact, MeasuredBoot, NotProven};

/// A log with the quote that it leads to, read in one bank.
fn boot_in(bank: HashAlg, log: &LogBuilder) -> MeasuredBoot {
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    MeasuredBoot::from_events(&parsed.check_against(bank, &log.pcrs(bank)).unwrap())
}

fn boot(log: &LogBuilder) -> MeasuredBoot {
    boot_in(HashAlg::Sha256, log)
}

/// Returns the log with another type for every event that extends a PCR: no digest covers the type.
fn retyped(log: &LogBuilder, event_type: u32) -> LogBuilder {
    let mut log = log.clone();
    for event in &mut log.events {
        event.event_type = event_type;
    }
    log
}

/// Returns the number of a PCR's n-th event in the log. Events are counted from 1, `nth` from 0.
fn place(log: &LogBuilder, pcr: u32, nth: usize) -> usize {
    let of_pcr = log.events.iter().enumerate().filter(|(_, event)| event.pcr == pcr);
    of_pcr.map(|(at, _)| at + 1).nth(nth).unwrap()
}

/// Returns the log with other data for an event, under the same digest.
fn lie(log: &LogBuilder, event: usize, data: &[u8]) -> LogBuilder {
    let mut log = log.clone();
    log.events[event - 1].data = data.to_vec();
    log
}

fn without(log: &LogBuilder, event: usize) -> LogBuilder {
    let mut log = log.clone();
    log.events.remove(event - 1);
    log
}

fn swapped(log: &LogBuilder, one: usize, other: usize) -> LogBuilder {
    let mut log = log.clone();
    log.events.swap(one - 1, other - 1);
    log
}

/// An event of a log at another place: behind the first `count` events.
fn inserted(log: &LogBuilder, count: usize, event: &LogBuilder) -> LogBuilder {
    let mut log = log.clone();
    log.events.splice(count..count, event.events.clone());
    log
}

/// Returns a log with the same banks and no events.
fn empty(log: &LogBuilder) -> LogBuilder {
    LogBuilder {
        events: Vec::new(),
        ..log.clone()
    }
}

fn numbers(events: Fact<Vec<&BootEvent>>) -> Result<Vec<usize>, NotProven> {
    events.map(|events| events.iter().map(|event| event.number).collect())
}

/// Describes a fact in a word: `ok`, or the reason against it.
fn verdict<T>(fact: &Fact<T>) -> &'static str {
    match fact {
        Ok(_) => "ok",
        Err(NotProven::PcrNotExplained { .. }) => "not explained",
        Err(NotProven::TooManyEvents { .. }) => "too many",
        Err(NotProven::Missing { .. }) => "missing",
        Err(NotProven::Repeated { .. }) => "repeated",
        Err(NotProven::Unexpected { .. }) => "unexpected",
        Err(NotProven::UnknownEvent { .. }) => "unknown event",
        Err(NotProven::ErrorSeparator { .. }) => "error separator",
        Err(NotProven::SecureBootOff) => "off",
        Err(NotProven::DebugMode { .. }) => "debug mode",
    }
}

#[test]
fn event_types_do_not_affect_the_facts() {
    for log in [machine::grub_machine(true), machine::uki_machine()] {
        let read = boot(&log);
        for event_type in [
            EV_IPL,
            machine::EV_EFI_ACTION,
            machine::VARIABLE_AUTHORITY,
            machine::APPLICATION,
            0xdead_beef,
        ] {
            let retyped = boot(&retyped(&log, event_type));
            assert_eq!(retyped.secure_boot(), read.secure_boot());
            assert_eq!(retyped.authorities(), read.authorities());
            assert_eq!(numbers(retyped.images(4)), numbers(read.images(4)));
            assert_eq!(numbers(retyped.images(2)), numbers(read.images(2)));
            assert_eq!(retyped.uki_sections(), read.uki_sections());
            assert_eq!(retyped.grub_texts(), read.grub_texts());
            assert_eq!(retyped.sbat_levels(), read.sbat_levels());
            assert_eq!(retyped.exit_boot_services(), read.exit_boot_services());
            for (one, other) in retyped.events.iter().zip(&read.events) {
                assert_eq!(one.digest, other.digest);
            }
        }
    }
}

#[test]
fn event_order_across_pcrs_does_not_affect_facts() {
    for log in [machine::grub_machine(true), machine::uki_machine()] {
        let mut sorted = log.clone();
        sorted.events.sort_by_key(|event| event.pcr);
        let facts = |boot: &MeasuredBoot| {
            let authorities = boot
                .authorities()
                .unwrap()
                .iter()
                .map(|found| found.authority.clone())
                .collect::<Vec<_>>();
            let digests =
                |events: Fact<Vec<&BootEvent>>| events.map(|events| events.iter().map(|event| event.digest.clone()).collect::<Vec<_>>());
            (boot.secure_boot(), authorities, digests(boot.images(4)), boot.exit_boot_services())
        };
        assert_eq!(facts(&boot(&sorted)), facts(&boot(&log)));
    }
}

#[test]
fn every_bank_proves_the_same() {
    let (one, other) = (boot(&machine::uki_machine()), boot_in(HashAlg::Sha384, &machine::uki_machine()));
    assert_eq!(other.bank, HashAlg::Sha384);
    assert_eq!(one.secure_boot(), other.secure_boot());
    assert_eq!(one.authorities(), other.authorities());
    for (one, other) in one.events.iter().zip(&other.events) {
        assert_eq!((&one.meaning, one.proof), (&other.meaning, other.proof));
        assert_eq!((one.digest.as_bytes().len(), other.digest.as_bytes().len()), (32, 48));
    }
}

#[test]
fn unexplained_pcrs_yield_no_facts() {
    let log = machine::grub_machine(true);
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    let mut quoted = log.pcrs(HashAlg::Sha256);
    quoted.retain(|pcr, _| [0, 4, 8].contains(pcr));
    quoted.insert(8, machine::sha256(b"something else").into());
    let read = MeasuredBoot::from_events(&parsed.check_against(HashAlg::Sha256, &quoted).unwrap());
    assert_eq!(read.secure_boot(), Err(NotProven::PcrNotExplained { pcr: 7 }));
    assert_eq!(read.grub_texts(), Err(NotProven::PcrNotExplained { pcr: 8 }));
    assert!(read.images(4).is_ok());
    assert!(read.events.iter().all(|event| [0, 4].contains(&event.pcr)));
}
