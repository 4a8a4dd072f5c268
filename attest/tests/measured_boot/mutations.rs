//! Bounded runs of the fuzz target: no alteration leads to a panic or to an unproven result.

use super::machine::{
    IMAGE_SECURITY, Parts, VARIABLE_AUTHORITY, X509, grub_machine, real_certificate, sha256, signature, signature_list, uki_machine,
    variable,
};
use crate::log_builder::{LogBuilder, SHA256};
use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{BootPart, EVENTS_LIMIT, MeasuredBoot, Proof};
use proptest::prelude::*;
use std::sync::LazyLock;

static REAL: LazyLock<Vec<u8>> = LazyLock::new(|| real_certificate("Example"));

/// Reads a log for whatever it leads to.
fn read(bytes: &[u8]) -> Option<MeasuredBoot> {
    let log = EventLog::parse(bytes).ok()?;
    let replayed = log.replay(HashAlg::Sha256, 0..16).ok()?;
    let quoted = (0..16)
        .map(|pcr| (pcr, attest::protocol::HexDigest::new(replayed.value(pcr).unwrap()).unwrap()))
        .collect();
    let boot = MeasuredBoot::from_events(&log.check_against(HashAlg::Sha256, &quoted).unwrap());
    assert!(boot.events.len() <= EVENTS_LIMIT);
    // No content but under a digest that is the hash of something that the log shows, or of a word.
    for event in boot.events.iter().filter(|event| event.proof == Proof::Content) {
        let shown = log.events().iter().find(|shown| shown.number == event.number).unwrap();
        let covered = candidates(shown.data).iter().any(|part| sha256(part) == event.digest.as_bytes());
        assert!(covered || is_word(event.digest.as_bytes()), "{event:?}");
    }
    let _ = (serde_json::to_string(&boot).unwrap(), format!("{boot:?}"));
    let _ = (
        boot.secure_boot(),
        boot.authorities(),
        boot.images(4),
        boot.images(2),
        boot.uki_sections(),
        boot.grub_texts(),
    );
    for part in BootPart::ALL {
        // What says that it is not there is all that there is otherwise.
        match boot.part(part, PART_LIMIT) {
            Ok(serde_json::Value::Array(all)) => assert!(all.len() <= PART_LIMIT, "{part:?}"),
            Ok(value) => assert!(!value.is_null(), "{part:?}"),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
    Some(boot)
}

const PART_LIMIT: usize = 2;

/// Returns the parts of an event's data that its digest may cover, implemented independently of the product: the data without a short end,
/// behind a label, or a variable's value.
fn candidates(data: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    for end in [0, 1, 2] {
        let Some(data) = data.get(..data.len().saturating_sub(end)) else {
            continue;
        };
        found.push(data);
        let labels = [
            b"grub_cmd: ".as_slice(),
            b"grub_cmd ",
            b"kernel_cmdline: ",
            b"kernel_cmdline ",
            b"grub_kernel_cmdline ",
            b"module_cmdline: ",
        ];
        found.extend(labels.iter().filter_map(|label| data.strip_prefix(*label)));
    }
    let length = |at: usize| {
        data.get(at..at + 8)
            .map(|bytes| usize::try_from(u64::from_le_bytes(bytes.try_into().unwrap())).unwrap())
    };
    if let (Some(name), Some(value)) = (length(16), length(24)) {
        let start = name.saturating_mul(2).saturating_add(32);
        found.extend(data.get(start..start.saturating_add(value)));
    }
    found
}

fn is_word(digest: &[u8]) -> bool {
    let words: [&[u8]; 12] = [
        &[0; 4],
        &[0xff; 4],
        &[1, 0, 0, 0],
        b"WBCL",
        b"os-separator",
        b"Calling EFI Application from Boot Option",
        b"Exit Boot Services Invocation",
        b"Exit Boot Services Returned with Success",
        b".linux\0",
        b".osrel\0",
        b".cmdline\0",
        b".initrd\0",
    ];
    words.iter().any(|word| sha256(word) == digest)
}

fn machines() -> [LogBuilder; 2] {
    [grub_machine(true), uki_machine()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attack_23_altered_bytes_never_panic(which in 0..2_usize, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = machines()[which].build();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = read(&bytes);
    }

    /// Adds an event of any data at any place, with its digest, like software that can extend a PCR.
    #[test]
    fn attack_24_added_event_is_listed_or_breaks_proof(
        which in 0..2_usize,
        at in any::<prop::sample::Index>(),
        pcr in 0..16_u32,
        event_type in any::<u32>(),
        data in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut log = machines()[which].clone();
        let added = LogBuilder { events: Vec::new(), ..log.clone() }.event(pcr, if event_type == 3 { 4 } else { event_type }, &data);
        let at = at.index(log.events.len() + 1);
        log.events.splice(at..at, added.events);
        let before = read(&machines()[which].build()).unwrap();
        let after = read(&log.build()).unwrap();
        // Of every list that is about all events, what was added is a part, or the list is not proven any more.
        if pcr == 4 {
            prop_assert!(after.images(4).is_err() || after.images(4).unwrap().len() == before.images(4).unwrap().len() + 1);
        }
        if pcr == 8 {
            prop_assert!(after.grub_texts().is_err() || after.grub_texts().unwrap().len() == before.grub_texts().unwrap().len() + 1);
        }
        if pcr == 11 {
            prop_assert!(after.uki_sections().is_err());
        }
        if pcr == 7 {
            prop_assert!(after.secure_boot() == Ok(true) || after.secure_boot().is_err());
            prop_assert!(after.authorities().is_err() || after.authorities().unwrap().len() >= before.authorities().unwrap().len());
        }
    }

    #[test]
    fn attack_23_altered_certificate_never_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5), cut in any::<prop::sample::Index>()) {
        let mut certificate = REAL.clone();
        for (at, value) in changes {
            let at = at.index(certificate.len());
            certificate[at] = value;
        }
        certificate.truncate(cut.index(2 * certificate.len()));
        let log = LogBuilder::new(&[SHA256]).secure_boot(true).separator(7);
        let list = signature_list(X509, &[&certificate]);
        let log = log.event(7, VARIABLE_AUTHORITY, &variable(IMAGE_SECURITY, "db", &signature(&certificate))).variable(IMAGE_SECURITY, "dbt", &list);
        prop_assert!(read(&log.build()).is_some());
    }

    #[test]
    fn attack_23_arbitrary_variable_data_never_panics(data in proptest::collection::vec(any::<u8>(), 0..300), pcr in 0..16_u32, event_type in prop_oneof![
        Just(0x8000_0001_u32), Just(0x8000_0002), Just(0x8000_0003), Just(0x8000_0006), Just(0x8000_000a), Just(8), Just(6), Just(13)]) {
        let _ = read(&LogBuilder::new(&[SHA256]).event(pcr, event_type, &data).measured(pcr, event_type, b"x", &data).build());
        let valued = super::machine::variable(super::machine::GLOBAL, "Boot0001", &data);
        let _ = read(&LogBuilder::new(&[SHA256]).measured(pcr, event_type, &data, &valued).build());
    }
}
