//! Log content that the digests do not cover: another content has another fingerprint, and honest firmware has the same at each boot.

use std::collections::BTreeMap;

use super::*;
use attest::tpm::measured_boot::SAID_FORM;

fn claims_digests(log: &LogBuilder) -> BTreeMap<u8, String> {
    let boot = boot(log);
    (0..24)
        .filter_map(|pcr| Some((pcr, data_encoding::HEXLOWER.encode(&boot.claims_digest(pcr)?))))
        .collect()
}

/// Returns the PCRs whose fingerprints differ between two logs of the same measurements.
fn differ(one: &LogBuilder, other: &LogBuilder) -> Vec<u8> {
    let bank = HashAlg::Sha256;
    assert_eq!(one.pcrs(bank), other.pcrs(bank), "the same was measured");
    let (one, other) = (claims_digests(one), claims_digests(other));
    assert!(one.keys().eq(other.keys()));
    one.into_iter()
        .filter(|(pcr, said)| other[pcr] != *said)
        .map(|(pcr, _)| pcr)
        .collect()
}

#[test]
fn altered_unmeasured_data_is_detected_per_pcr() {
    for (log, pcr) in [
        (machine::grub_machine(true), 4),
        (machine::grub_machine(true), 9),
        (machine::grub_machine(true), 14),
        (machine::uki_machine(), 4),
    ] {
        // Behind the firmware's own events.
        let event = log.events.iter().rposition(|event| event.pcr == pcr).unwrap() + 1;
        let text = lie(&log, event, b"(hd0,gpt1)/another\0");
        let path = lie(&log, event, &machine::image_event("\\EFI\\another.efi"));
        let pcr = u8::try_from(pcr).unwrap();
        let found = [differ(&log, &text), differ(&log, &path)];
        assert!(found.contains(&vec![pcr]), "{pcr}: {found:?}");
        assert!(found.iter().flatten().all(|found| *found == pcr), "{found:?}");
    }
    let log = machine::grub_machine(true);
    let all: Vec<u8> = claims_digests(&log)
        .into_keys()
        .filter(|pcr| log.events.iter().any(|event| event.pcr == u32::from(*pcr)))
        .collect();
    assert_eq!(differ(&log, &retyped(&log, 0xdead_beef)), all, "every event's type");
}

#[test]
fn unmeasured_data_that_varies_per_boot_is_ignored() {
    for log in [machine::grub_machine(true), machine::uki_machine()] {
        assert_eq!(differ(&log, &log), [0_u8; 0]);
        let mut sorted = log.clone();
        sorted.events.sort_by_key(|event| event.pcr);
        assert_eq!(differ(&log, &sorted), [0_u8; 0], "the order of different PCRs");
        let mut elsewhere = log.clone();
        for event in &mut elsewhere.events {
            if event.event_type == machine::APPLICATION {
                event.data[..8].copy_from_slice(&0x7b0a_5018_u64.to_le_bytes());
            }
        }
        assert_ne!(elsewhere.events, log.events);
        assert_eq!(differ(&log, &elsewhere), [0_u8; 0], "where an image was in memory");
        let note = LogBuilder::new(&[crate::log_builder::SHA256]).event(0, 3, b"a note that extends nothing");
        assert_eq!(differ(&log, &inserted(&log, 1, &note)), [0_u8; 0]);
    }
}

#[test]
fn unexplained_pcrs_have_no_description_digest() {
    let log = machine::uki_machine();
    let mut pcrs = log.pcrs(HashAlg::Sha256);
    pcrs.insert(11, [1; 32].into());
    pcrs.remove(&12);
    let bytes = log.build();
    let parsed = EventLog::parse(&bytes).unwrap();
    let boot = MeasuredBoot::from_events(&parsed.check_against(HashAlg::Sha256, &pcrs).unwrap());
    assert!(boot.claims_digest(4).is_some());
    for pcr in [11, 12, 24, 255] {
        assert_eq!(boot.claims_digest(pcr), None, "{pcr}");
    }
}

/// Stores keep these values. A change to their input has to raise the form, so that an updated gateway does not report another log.
#[test]
fn description_digest_form_is_stable() {
    assert_eq!(SAID_FORM, 2);
    let grub = claims_digests(&machine::grub_machine(true));
    let uki = claims_digests(&machine::uki_machine());
    let found = [&grub[&4], &grub[&8], &grub[&9], &uki[&4], &uki[&11]].map(String::as_str);
    let kept = [
        "bafaaf214679f87ac702c197c336595a",
        "d9e0cf1a8668193a7040d5ac57603ae8",
        "b508dd2c410950860424854e5f4d25a1",
        "8d442bbac3740dfb7cbdf78bd5fd7c80",
        "d989c866abe413d40e11d9b971c53202",
    ];
    assert_eq!(found, kept);
}
