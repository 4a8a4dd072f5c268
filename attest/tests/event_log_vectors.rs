//! The event log on logs of real machines, from the test vectors (`ATTEST_VECTORS`): each replays to the PCRs that were read on
//! the same machine, and the malformed ones are refused.

use std::collections::BTreeMap;
use std::path::Path;

use crate::vectors::{files_under, vectors};
use attest::protocol::HexDigest;
use attest::tpm::event_log::{EventLog, EventLogError, EventType};
use attest::tpm::wire::HashAlg;

type Pcrs = BTreeMap<u8, HexDigest>;

/// The log replays to every value given, and the quote of these values explains them all.
fn check(log_file: &Path, bank: HashAlg, pcrs: &Pcrs) {
    let bytes = std::fs::read(log_file).unwrap();
    let log = EventLog::parse(&bytes).unwrap_or_else(|error| panic!("{}: {error}", log_file.display()));
    let replayed = log.replay(bank, 0..24).unwrap();
    for (&pcr, value) in pcrs {
        let replayed = data_encoding::HEXLOWER.encode(replayed.value(pcr).unwrap());
        assert_eq!(replayed, value.to_string(), "PCR {pcr} ({bank}) of {}", log_file.display());
    }
    let trusted = log.check_against(bank, pcrs).unwrap();
    assert_eq!(trusted.explained_pcrs().count(), pcrs.len());
    let events: usize = pcrs.keys().map(|&pcr| trusted.events_of(pcr).unwrap().count()).sum();
    println!(
        "{}: {} events, {events} of them proven by {} PCRs ({bank})",
        log_file.display(),
        log.events().len(),
        pcrs.len()
    );

    // The same log, each event's digest altered in turn: never the same PCRs.
    for event in log.events().iter().filter(|event| event.extends() && pcrs.contains_key(&event.pcr)) {
        let digest = event.digest(bank).unwrap();
        let at = digest.as_ptr().addr() - bytes.as_ptr().addr();
        let mut altered = bytes.clone();
        altered[at] ^= 0x80;
        let altered = EventLog::parse(&altered).unwrap();
        match altered.check_against(bank, pcrs) {
            Err(EventLogError::PcrMismatch { index, .. }) => assert_eq!(index, event.pcr),
            Err(other) => panic!("{other}"),
            Ok(trusted) => assert!(event.pcr > 7 && trusted.events_of(event.pcr).is_none()),
        }
    }
    // Cut anywhere: no panic.
    for length in (0..bytes.len()).step_by(7) {
        if let Ok(log) = EventLog::parse(&bytes[..length]) {
            let _ = log.check_against(bank, pcrs);
        }
    }
}

fn hex(text: &str) -> HexDigest {
    HexDigest::from_hex(text).unwrap()
}

#[test]
fn logs_of_real_machines_replay() {
    let Some(vectors) = vectors() else { return };
    let (mut logs, mut without_sha256) = (0, Vec::new());
    for log in files_under(&vectors.join("eventlogs"), ".bin") {
        let banks = std::fs::read(format!("{}.pcrs.json", log.display())).unwrap();
        let banks: BTreeMap<String, BTreeMap<u8, String>> = serde_json::from_slice(&banks).unwrap();
        match banks.get("sha256") {
            Some(pcrs) => check(&log, HashAlg::Sha256, &pcrs.iter().map(|(&pcr, value)| (pcr, hex(value))).collect()),
            None => without_sha256.push(log),
        }
        logs += 1;
    }
    assert!(logs >= 8, "{logs} logs only");
    // Debian 10 on GCE had a TPM 1.2 log.
    assert_eq!(without_sha256.len(), 1);
    let bytes = std::fs::read(&without_sha256[0]).unwrap();
    assert_eq!(EventLog::parse(&bytes), Err(EventLogError::Sha1Only { first: EventType(8) }));
}

#[test]
fn logs_of_qemu_replay_in_every_bank() {
    let Some(vectors) = vectors() else { return };
    let mut checked = 0;
    for log in files_under(&vectors.join("eventlogs/qemu"), ".eventlog") {
        for bank in [HashAlg::Sha256, HashAlg::Sha384, HashAlg::Sha512] {
            let Ok(pcrs) = std::fs::read_to_string(log.with_extension(format!("pcr-{bank}.txt"))) else {
                continue;
            };
            let pcrs: Pcrs = pcrs
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(pcr, value)| (pcr.parse().unwrap(), hex(value)))
                .collect();
            // 10 is IMA's, 17 to 22 hold ones until a dynamic launch: neither is in a firmware's log.
            let (elsewhere, firmware): (Pcrs, Pcrs) = pcrs.clone().into_iter().partition(|(pcr, _)| matches!(pcr, 10 | 17..=22));
            check(&log, bank, &firmware);
            let bytes = std::fs::read(&log).unwrap();
            let log = EventLog::parse(&bytes).unwrap();
            assert!(
                log.check_against(bank, &pcrs)
                    .unwrap()
                    .unexplained_pcrs()
                    .eq(elsewhere.keys().copied())
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 9);
}

/// tpm2-tools' own parse of the same logs, taken from its YAML line by line.
#[test]
fn tpm2_tools_reads_the_same_events_and_pcrs() {
    let Some(vectors) = vectors() else { return };
    for name in ["event-postcode.bin", "event-uefivar.bin"] {
        let yaml = std::fs::read_to_string(vectors.join(format!("eventlogs/tpm2-tools/expected/{name}.yaml"))).unwrap();
        let (events, pcrs) = yaml.split_once("\npcrs:\n").unwrap();
        let expected: Vec<(u8, String, String, usize)> = events
            .split("- EventNum: ")
            .skip(2) // what precedes the first, and the header
            .map(|event| {
                let field = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| line.trim().strip_prefix(name))
                        .unwrap()
                        .trim_matches([' ', '"'])
                        .to_owned()
                };
                let sha256 = event.split_once("AlgorithmId: sha256").unwrap().1;
                let sha256 = sha256.split_once("Digest: \"").unwrap().1.split_once('"').unwrap().0;
                (
                    field("PCRIndex:").parse().unwrap(),
                    field("EventType:"),
                    sha256.to_owned(),
                    field("EventSize:").parse().unwrap(),
                )
            })
            .collect();

        let log_file = vectors.join("eventlogs/tpm2-tools").join(name);
        let bytes = std::fs::read(&log_file).unwrap();
        let log = EventLog::parse(&bytes).unwrap();
        let found: Vec<_> = log
            .events()
            .iter()
            .map(|event| {
                let digest = data_encoding::HEXLOWER.encode(event.digest(HashAlg::Sha256).unwrap());
                (event.pcr, event.event_type.to_string(), digest, event.data.len())
            })
            .collect();
        assert_eq!(found, expected, "{name}");

        let sha256 = pcrs.split_once("  sha256:\n").unwrap().1;
        let pcrs: Pcrs = sha256
            .lines()
            .filter_map(|line| line.split_once(": 0x"))
            .map(|(pcr, value)| (pcr.trim().parse().unwrap(), hex(value)))
            .collect();
        check(&log_file, HashAlg::Sha256, &pcrs);
    }
}

/// The log inside a whole recorded attestation, and the ones whose machines left no PCR values: they parse and replay.
#[test]
fn other_well_formed_logs_are_parsed() {
    let Some(vectors) = vectors() else { return };
    let logs = [
        ("go-attestation/crypto_agile_eventlog", 26),
        ("tpm2-tools/event.bin", 1),
        // Windows's, of which some are about PCR 0xFFFFFFFF.
        ("ibmtss/p511-windows-pcr-ffffffff.bin", 57),
    ];
    for (name, events) in logs {
        let bytes = std::fs::read(vectors.join("eventlogs").join(name)).unwrap();
        let log = EventLog::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(log.event_count(), events, "{name}");
        assert!(log.replay(HashAlg::Sha256, 0..24).is_ok(), "{name}");
    }
}

#[test]
fn attack_23_malformed_and_legacy_logs_are_refused() {
    let Some(vectors) = vectors() else { return };
    let sha1_only = |first| EventLogError::Sha1Only { first: EventType(first) };
    let expected = [
        (
            "keylime/binary_bios_measurements-empty",
            EventLogError::Truncated {
                field: "the header's pcrIndex",
                offset: 0,
                needed: 4,
                left: 0,
            },
        ),
        (
            "keylime/binary_bios_measurements-bogus",
            EventLogError::NotALog {
                field: "pcrIndex",
                found: "1969712994".to_owned(),
                required: "0",
            },
        ),
        ("go-attestation/short_no_action_eventlog", sha1_only(3)),
        ("go-attestation/option_rom_eventlog", sha1_only(8)),
        ("tpm2-tools/event-uefi-sha1-log.bin", sha1_only(8)),
        // Its vendor information is not counted in the header's size.
        (
            "tpm2-tools/specid-vendordata.bin",
            EventLogError::Truncated {
                field: "vendorInfo",
                offset: 37,
                needed: 4,
                left: 0,
            },
        ),
    ];
    for (name, error) in expected {
        let bytes = std::fs::read(vectors.join("eventlogs").join(name)).unwrap();
        assert_eq!(EventLog::parse(&bytes), Err(error), "{name}");
    }
}
