//! Events that real firmware measures into PCR 7 in addition to Secure Boot's variables: sentences in several forms, values of its maker,
//! separators of another length.

use super::machine::*;
use super::{boot, inserted, verdict};
use crate::log_builder::{EV_SEPARATOR, LogBuilder, SHA1, SHA256, SHA384};
use attest::protocol::HexDigest;
use attest::tpm::measured_boot::{Action, AuthorisedBy, DatabaseName, Meaning, MeasuredBoot, NotProven, Sha256};

/// Type of AMD's event.
const VENDOR_EVENT: u32 = 0x8401;

fn empty() -> LogBuilder {
    LogBuilder::new(&[SHA1, SHA256, SHA384])
}

/// A machine's log with one more event behind so many of PCR 7.
fn with(pcr_7_events: usize, event: &LogBuilder) -> LogBuilder {
    let log = grub_machine(true);
    let of_pcr_7 = log.events.iter().enumerate().filter(|(_, event)| event.pcr == 7);
    let at = of_pcr_7.map(|(at, _)| at).nth(pcr_7_events).unwrap_or(log.events.len());
    inserted(&log, at, event)
}

/// Returns the positions at which an event can be inserted among the machine's events of PCR 7.
fn places() -> std::ops::RangeInclusive<usize> {
    0..=grub_machine(true).events.iter().filter(|event| event.pcr == 7).count()
}

/// A sentence as firmware has hashed it: as the profile has it, with a terminating zero, and in UTF-16.
fn forms(sentence: &str) -> [Vec<u8>; 4] {
    let terminated = format!("{sentence}\0");
    [sentence.into(), terminated.clone().into(), utf16(sentence), utf16(&terminated)]
}

/// Asserts that each fact of PCR 7 is proven.
fn proven(boot: &MeasuredBoot) {
    assert_eq!(boot.secure_boot(), Ok(true), "{:?}", boot.events);
    assert_eq!(boot.authorities().unwrap().len(), 2);
    assert_eq!(boot.database(DatabaseName::Dbx).unwrap().hashes.len(), 5);
    assert_eq!(boot.sbat_levels().unwrap().len(), 1);
}

/// Asserts that no fact of PCR 7 is proven, each for the reason `why`.
fn unproven(boot: &MeasuredBoot, why: &str) {
    assert_eq!(verdict(&boot.secure_boot()), why, "{:?}", boot.events);
    assert_eq!(verdict(&boot.authorities()), why);
    assert_eq!(verdict(&boot.database(DatabaseName::Dbx)), why);
    assert_eq!(verdict(&boot.sbat_levels()), why);
}

#[test]
fn attack_51_pcr_7_actions_match_in_each_encoding() {
    for place in places() {
        for form in forms("DMA Protection Disabled") {
            for shown in [form.as_slice(), b"DMA Protection Disabled", b"something else"] {
                let read = boot(&with(place, &empty().measured(7, EV_EFI_ACTION, &form, shown)));
                assert_eq!(read.dma_protection_disabled(), Ok(true), "{form:?}");
                proven(&read);
            }
        }
        for form in forms("UEFI Debug Mode") {
            unproven(&boot(&with(place, &empty().event(7, EV_EFI_ACTION, &form))), "debug mode");
        }
    }
    // Nearly one of them is not known, so nothing is proven, and DMA protection is not said to be on.
    for other in [
        "DMA Protection Disabled\n",
        "DMA protection disabled",
        "DMA Protection Disabled\0\0",
        "UEFI Debug Mode ",
        "Debug",
        "Debug\0",
    ] {
        for data in [other.as_bytes().to_vec(), utf16(other)] {
            let read = boot(&with(3, &empty().event(7, EV_EFI_ACTION, &data)));
            unproven(&read, "unknown event");
            assert_eq!(verdict(&read.dma_protection_disabled()), "unknown event", "{other:?}");
        }
    }
}

#[test]
fn actions_of_other_pcrs_match_in_each_encoding() {
    for form in forms("Exit Boot Services Returned with Success") {
        let log = empty().event(5, EV_EFI_ACTION, &form);
        let meaning = &boot(&log).events[0].meaning;
        assert!(
            matches!(
                meaning,
                Meaning::Action {
                    action: Action::ExitBootServicesSuccess
                }
            ),
            "{meaning:?}"
        );
    }
    // It is no image.
    let log = grub_machine(true);
    let images = boot(&log).images(4).unwrap().len();
    for form in forms("Returning from EFI Application from Boot Option") {
        let more = log.clone().event(4, EV_EFI_ACTION, &form);
        assert_eq!(boot(&more).images(4).unwrap().len(), images);
    }
}

#[test]
fn unknown_pcr_7_event_proves_nothing_unless_listed() {
    let digest = |log: &LogBuilder| HexDigest::new(&log.events[0].digests[1].1).unwrap();
    let long = [0x81; 16];
    let unknown = [
        empty().measured(7, VENDOR_EVENT, b"what nobody shows", &[1]),
        empty().measured(7, VARIABLE_AUTHORITY, &variable(IMAGE_SECURITY, "db", &[7; 52]), &[]),
        empty().event(7, EV_EFI_ACTION, b"SVM: on"),
        empty().event(7, VENDOR_EVENT, &long),
        // A variable with a byte behind it.
        empty().event(7, VENDOR_EVENT, &[variable(IMAGE_SECURITY, "db", &[1]), vec![0]].concat()),
    ];
    for event in &unknown {
        for place in places() {
            let log = with(place, event);
            let read = boot(&log);
            unproven(&read, "unknown event");
            assert_eq!(verdict(&read.dma_protection_disabled()), "unknown event");
            let Err(NotProven::UnknownEvent {
                event: number,
                digest: found,
                ..
            }) = read.secure_boot()
            else {
                panic!("{:?}", read.secure_boot())
            };
            assert_eq!(found, digest(event));
            assert_eq!(read.unknown_pcr_7_events().unwrap()[0].number, number);

            let is_listed = |listed: &HexDigest| *listed == digest(event);
            let pcr_7 = read.pcr_7(&is_listed);
            assert_eq!(pcr_7.secure_boot(), Ok(true));
            assert_eq!(pcr_7.authorities().unwrap().len(), 2);
            assert_eq!(pcr_7.dma_protection_disabled(), Ok(false));
            assert_eq!(pcr_7.database(DatabaseName::Dbx).unwrap().hashes.len(), 5);
            // Another one's digest does not do.
            let is_other = |listed: &HexDigest| *listed != digest(event);
            assert_eq!(verdict(&read.pcr_7(&is_other).secure_boot()), "unknown event");
        }
    }
    // What is known keeps its meaning, whatever is listed.
    let all = |_: &HexDigest| true;
    let debug = boot(&with(2, &empty().event(7, EV_EFI_ACTION, b"UEFI Debug Mode\0")));
    assert_eq!(verdict(&debug.pcr_7(&all).secure_boot()), "debug mode");
    let off = boot(&grub_machine(false));
    assert_eq!(off.pcr_7(&all).secure_boot(), Ok(false));
    let more = boot(&grub_machine(true).event(
        7,
        VARIABLE_AUTHORITY,
        &variable(IMAGE_SECURITY, "db", &signature(&certificate("x"))),
    ));
    assert_eq!(more.pcr_7(&all).authorities().unwrap().len(), 3);
    // That devices could write is said, whatever else is there.
    let log = with(2, &unknown[0].clone().event(7, EV_EFI_ACTION, b"DMA Protection Disabled\0"));
    assert_eq!(boot(&log).dma_protection_disabled(), Ok(true));
}

#[test]
fn dma_protection_is_unproven_without_a_separator() {
    assert_eq!(verdict(&boot(&empty()).dma_protection_disabled()), "missing");
    assert_eq!(verdict(&boot(&empty().secure_boot(true)).dma_protection_disabled()), "missing");
    let error = empty().secure_boot(true).event(7, EV_SEPARATOR, &[1, 0, 0, 0]);
    assert_eq!(verdict(&boot(&error).dma_protection_disabled()), "error separator");
}

/// AMD's value: one byte, by an event type of its own. Data shorter than a GUID are neither a variable nor an entry of a database.
#[test]
fn short_vendor_value_in_pcr_7_is_accepted() {
    for value in [&[1][..], &[0x41], &[], &[1, 0, 0, 0x80], &[0x80; 15]] {
        for place in places() {
            let log = with(place, &empty().event(7, VENDOR_EVENT, value));
            let read = boot(&log);
            proven(&read);
            assert_eq!(read.dma_protection_disabled(), Ok(false));
            assert_eq!(read.unknown_pcr_7_events().unwrap().len(), 0);
        }
    }
    let log = with(0, &empty().event(7, VENDOR_EVENT, &[1]));
    let shown = boot(&log).events.iter().find(|event| event.pcr == 7).unwrap().summary();
    assert_eq!(shown, "value 01 of the firmware's maker");
    // Shown for another digest it is nothing.
    unproven(&boot(&with(0, &empty().measured(7, VENDOR_EVENT, &[2; 20], &[1]))), "unknown event");
}

/// Intel's: authorities stay provable, and devices could write.
#[test]
fn downgraded_thunderbolt_security_level_is_recognised() {
    for place in places() {
        for form in forms("Security Level is Downgraded to 0") {
            let read = boot(&with(place, &empty().event(7, EV_EFI_ACTION, &form)));
            proven(&read);
            assert_eq!(read.dma_protection_disabled(), Ok(true));
        }
        let other = with(place, &empty().action(7, "Security Level is Downgraded to 1"));
        unproven(&boot(&other), "unknown event");
    }
}

/// coreboot's: separators were hashed with the zeros that fill the place of the event's data.
#[test]
fn separator_hashed_over_50_bytes_is_accepted() {
    let padded = |bytes: &[u8], length: usize| {
        let mut data = bytes.to_vec();
        data.resize(length, 0);
        data
    };
    let log = |separator: &[u8]| empty().secure_boot(true).event(7, EV_SEPARATOR, separator);
    for bytes in [[0; 4], [0xff; 4]] {
        let read = boot(&log(&padded(&bytes, 50)));
        assert_eq!(read.secure_boot(), Ok(true));
        for length in [5, 49, 51] {
            assert!(boot(&log(&padded(&bytes, length))).secure_boot().is_err(), "{length}");
        }
    }
    assert_eq!(verdict(&boot(&log(&padded(&[1, 0, 0, 0], 50))).secure_boot()), "error separator");
    let twice = log(&[0; 50]).separator(7);
    assert_eq!(verdict(&boot(&twice).secure_boot()), "repeated");
    // Of the other PCRs, too: images are told from what stands before them.
    let images = empty().event(4, EV_SEPARATOR, &[0; 50]).image("shim", "\\x.efi");
    assert_eq!(boot(&images).images(4).unwrap().len(), 1);
    // What somebody adds behind it is behind it.
    let added = empty().secure_boot(false).event(7, EV_SEPARATOR, &[0; 50]).secure_boot(true);
    assert_ne!(boot(&added).secure_boot(), Ok(true));
}

/// A variable that is not there is measured with a value of no length.
#[test]
fn absent_secure_boot_variable_means_off() {
    let log = |value: &[u8]| {
        let mut log = empty();
        for (vendor, name, own) in secure_boot_variables(true) {
            log = log.variable(vendor, name, if name == "SecureBoot" { value } else { &own });
        }
        log.separator(7)
    };
    assert_eq!(boot(&log(&[])).secure_boot(), Ok(false));
    assert_eq!(verdict(&boot(&log(&[])).authorities()), "off");
    assert_eq!(boot(&log(&[1])).secure_boot(), Ok(true));
    assert_eq!(verdict(&boot(&log(&[0, 0])).secure_boot()), "missing");
}

/// An entry of db by a hash other than SHA-256, whose owner and hash are readable characters: the author of the entry chooses the owner,
/// and tries images until the hash is readable.
#[test]
fn attack_50_printable_authority_is_not_skipped() {
    let printable = |length: usize| -> Vec<u8> { b"Printable0Owner!".iter().copied().cycle().take(length).collect() };
    let added =
        |vendor: &str, name: &str, value: &[u8]| boot(&grub_machine(true).event(7, VARIABLE_AUTHORITY, &variable(vendor, name, value)));
    for (vendor, name) in [
        (IMAGE_SECURITY, "db"),
        (SHIM, "MokList"),
        (SHIM, "Shim"),
        (IMAGE_SECURITY, "SbatLevel"),
    ] {
        // With an owner: SHA-1, SHA-224, SHA-384, SHA-512. And what is no entry at all.
        for length in [16 + 20, 16 + 28, 16 + 48, 16 + 64, 2, 16, 100] {
            let read = added(vendor, name, &printable(length));
            assert_eq!(verdict(&read.authorities()), "unexpected", "{name} {length}");
            assert_eq!(read.secure_boot(), Ok(true));
        }
        // By SHA-256 it is one that can be read, and has to be accepted.
        let read = added(vendor, name, &printable(16 + 32));
        let found = read.authorities().unwrap();
        let hash: [u8; 32] = printable(48)[16..].try_into().unwrap();
        assert!(matches!(&found[2].authority.by, AuthorisedBy::Hash { sha256, .. } if *sha256 == Sha256(hash)));
        // A setting is one byte.
        assert_eq!(added(vendor, name, &[1]).authorities().unwrap().len(), 2);
    }
    // The level that shim enforces is a text.
    assert_eq!(added(SHIM, "SbatLevel", b"sbat,1,2025010100\n").authorities().unwrap().len(), 2);
}
