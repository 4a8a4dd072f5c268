//! `RUSTC_BOOTSTRAP=1 cargo fuzz run measured_boot` in `attest/`: whatever events are made of, reading them does not panic, keeps to its limits, and
//! takes for content only what the digest is the hash of.
#![no_main]

use std::collections::BTreeMap;

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{
    BOOT_OPTIONS_LIMIT, BootValue, CERTIFICATES_LIMIT, DatabaseName, EVENTS_LIMIT, HASHES_LIMIT, LogText, Meaning, MeasuredBoot,
    PARTITIONS_LIMIT, SecureBootVariable, TEXT_LIMIT_BYTES,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A log as it is, whose digests are what they are; and events that have right digests, since the fuzzer cannot guess any.
    read(bytes);
    read(&log(bytes));
});

fn read(log: &[u8]) {
    let Ok(log) = EventLog::parse(log) else { return };
    let Ok(replayed) = log.replay(HashAlg::Sha256, 0..16) else { return };
    let quoted: BTreeMap<u8, HexDigest> = (0..16)
        .map(|pcr| (pcr, HexDigest::new(replayed.value(pcr).unwrap()).unwrap()))
        .collect();
    let boot = MeasuredBoot::of(&log.check_against(HashAlg::Sha256, &quoted).unwrap());
    assert!(boot.events.len() <= EVENTS_LIMIT);
    for event in &boot.events {
        let shown = log.events().iter().find(|shown| shown.number == event.number).unwrap();
        match &event.meaning {
            Meaning::SecureBootVariable { variable } | Meaning::MisplacedVariable { variable } => {
                // Never by anything but the whole variable.
                assert!(event.is_content() && event.pcr == 7);
                assert!(event.is_of(HashAlg::Sha256, shown.data) || event.is_of(HashAlg::Sha256, &shown.data[..shown.data.len() - 1]));
                if let SecureBootVariable::Signatures { database, .. } = variable {
                    assert!(database.certificates.len() <= CERTIFICATES_LIMIT && database.hashes.len() <= HASHES_LIMIT);
                }
            }
            Meaning::Data { bytes, .. } => assert!(event.is_of(HashAlg::Sha256, &shown.data[..*bytes])),
            // With the zero at its end, or without.
            Meaning::GrubText {
                text: LogText::Whole(text),
                ..
            } => assert!(
                [text.clone(), format!("{text}\0")]
                    .iter()
                    .any(|text| event.is_of(HashAlg::Sha256, text.as_bytes()))
            ),
            Meaning::PartitionTable { table } => {
                assert!(event.is_of(HashAlg::Sha256, shown.data) && table.partitions.len() <= PARTITIONS_LIMIT);
            }
            Meaning::BootVariable {
                value: BootValue::Order(order),
                ..
            } => assert!(event.is_content() && order.len() <= BOOT_OPTIONS_LIMIT),
            Meaning::Image { .. } | Meaning::File { .. } | Meaning::UkiSection { .. } | Meaning::Unknown { .. } => {
                assert!(!event.is_content())
            }
            _ => {}
        }
    }
    // A text escaped in JSON takes six bytes for one, at most.
    let json = serde_json::to_vec(&boot.events).unwrap().len();
    assert!(
        json <= 512
            + boot.events.len() * (1024 + 4 * 6 * TEXT_LIMIT_BYTES)
            + 80 * log.events().iter().map(|event| event.data.len()).sum::<usize>()
    );
    let _ = format!("{boot:?}");
    let secure_boot = boot.secure_boot();
    if boot.authorities().is_ok() {
        assert_eq!(secure_boot, Ok(true));
    }
    let _ = (
        boot.database(DatabaseName::Dbx),
        boot.images(2),
        boot.uki_sections(),
        boot.grub_texts(),
        boot.exit_boot_services(),
    );
    if let Ok(images) = boot.images(4) {
        let words = boot.events.iter().filter(|event| event.pcr == 4 && event.is_content()).count();
        assert_eq!(images.len() + words, boot.events.iter().filter(|event| event.pcr == 4).count());
    }
}

/// A log of events that the bytes describe: PCR and type, what the digest is of, length, data.
fn log(mut bytes: &[u8]) -> Vec<u8> {
    let mut log = [[0; 4], 3_u32.to_le_bytes()].concat();
    log.extend([0; 20]);
    log.extend(33_u32.to_le_bytes());
    log.extend(b"Spec ID Event03\0\0\0\0\0\0\x02\0\x02\x01\0\0\0\x0b\0\x20\0\0");
    const TYPES: [u32; 12] = [
        1,
        3,
        4,
        6,
        8,
        13,
        0x8000_0001,
        0x8000_0002,
        0x8000_0003,
        0x8000_0006,
        0x8000_000a,
        0x8000_00e0,
    ];
    while let [what, how, length, rest @ ..] = bytes {
        let data = &rest[..rest.len().min(usize::from(*length) * 4)];
        bytes = &rest[data.len()..];
        let value = data.get(32..).unwrap_or_default();
        let covered = match how >> 4 {
            0 => &[0; 4],
            1 => b".linux\0".as_slice(),
            2 => b"Exit Boot Services Invocation",
            3 => data.strip_suffix(&[0]).unwrap_or(data),
            4 => data.get(10..).unwrap_or_default(),
            5 => value,
            _ => data,
        };
        log.extend(u32::from(what & 15).to_le_bytes());
        log.extend(TYPES[usize::from(how & 15) % TYPES.len()].to_le_bytes());
        log.extend(1_u32.to_le_bytes());
        log.extend(0x000b_u16.to_le_bytes());
        log.extend(HashAlg::Sha256.digest(&[covered]).as_ref());
        log.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        log.extend(data);
    }
    log
}
