//! PCR 7: the state of Secure Boot, its databases, and the authorities of the boot.

use super::machine::*;
use super::{boot, empty, inserted, lie, numbers, place, retyped, swapped, verdict, without};
use crate::log_builder::{EV_NO_ACTION, EV_SEPARATOR, LogBuilder, SHA256};
use attest::tpm::event_log::OS_SEPARATOR;
use attest::tpm::measured_boot::{AuthorisedBy, DatabaseName, Meaning, NotProven, Proof, Sha256};

/// Firmware's PCR 7 alone.
fn pcr_7(on: bool) -> LogBuilder {
    LogBuilder::new(&[SHA256]).secure_boot(on)
}

/// PCR 7 with its first event replaced by another one.
fn first(event: LogBuilder) -> LogBuilder {
    inserted(&without(&pcr_7(true), 1), 0, &event).separator(7)
}

fn one(data: &[u8]) -> LogBuilder {
    LogBuilder::new(&[SHA256]).event(7, VARIABLE_DRIVER_CONFIG, data)
}

fn check(log: &LogBuilder, expect: &str) {
    assert_eq!(verdict(&boot(log).secure_boot()), expect, "{:?}", boot(log).events);
}

#[test]
fn secure_boot_is_the_first_pcr_7_event() {
    for on in [true, false] {
        assert_eq!(boot(&grub_machine(on)).secure_boot(), Ok(on));
        assert_eq!(boot(&pcr_7(on).separator(7)).secure_boot(), Ok(on));
        assert_eq!(boot(&pcr_7(on).event(7, EV_SEPARATOR, &[0xff; 4])).secure_boot(), Ok(on));
    }
}

#[test]
fn missing_repeated_or_moved_variable_proves_nothing() {
    let whole = pcr_7(true).separator(7);
    for missing in 1..=5 {
        check(&without(&whole, missing), if missing == 5 { "missing" } else { "unexpected" });
        check(&without(&pcr_7(true), missing), "missing");
    }
    for early in 1..=5 {
        check(&swapped(&whole, early, early + 1), "unexpected");
        check(&swapped(&whole, early, 6), "unexpected");
    }
    // Each of them once more: where it belongs, and at the end of all.
    for (at, (vendor, name, value)) in secure_boot_variables(true).iter().enumerate() {
        let again = one(&variable(vendor, name, value));
        check(&inserted(&whole, at, &again), if at == 4 { "repeated" } else { "unexpected" });
        check(&inserted(&whole, 5, &again), "repeated");
        check(&inserted(&whole, 6, &again), "repeated");
    }
}

#[test]
fn dbt_and_dbr_may_follow_before_the_separator() {
    let list = signature_list(X509, &[&certificate("times")]);
    for (names, expect) in [
        (&["dbt", "dbr"] as &[_], "ok"),
        (&["dbr"], "ok"),
        (&["dbt"], "ok"),
        (&["dbt", "dbt"], "repeated"),
        (&["dbr", "dbr"], "repeated"),
    ] {
        let more = names
            .iter()
            .fold(pcr_7(true), |log, name| log.variable(IMAGE_SECURITY, name, &list));
        check(&more.separator(7), expect);
    }
    let read = boot(&pcr_7(true).variable(IMAGE_SECURITY, "dbt", &list).separator(7));
    assert_eq!(read.database(DatabaseName::Dbt).unwrap().certificates.len(), 1);
    assert_eq!(read.authorities(), Ok(vec![]));
    check(&pcr_7(true).separator(7).variable(IMAGE_SECURITY, "dbt", &list), "repeated");
    // Settings of the firmware's own.
    check(&pcr_7(true).variable(GLOBAL, "DeployedMode", &[1]).separator(7), "ok");
    assert_eq!(
        boot(&pcr_7(true).variable(GLOBAL, "DeployedMode", &[1]).separator(7)).authorities(),
        Ok(vec![])
    );
}

#[test]
fn pcr_7_requires_exactly_one_regular_separator() {
    check(&pcr_7(true), "missing");
    check(&pcr_7(true).separator(7).separator(7), "repeated");
    check(&pcr_7(true).separator(7).event(7, EV_SEPARATOR, &[0xff; 4]), "repeated");
    check(&pcr_7(true).event(7, EV_SEPARATOR, &[1, 0, 0, 0]), "error separator");
    check(&pcr_7(true).separator(7).event(7, EV_SEPARATOR, &[1, 0, 0, 0]), "error separator");
    // The firmware logs the error itself, whose digest is that of the number 1.
    check(
        &pcr_7(true).measured(7, EV_SEPARATOR, &[1, 0, 0, 0], b"no TPM driver"),
        "error separator",
    );
    check(&pcr_7(true).event(7, EV_SEPARATOR, b"WBCL"), "missing");
    check(&pcr_7(true).event(7, EV_SEPARATOR, &[0; 3]), "missing");
    check(&pcr_7(true).event(7, EV_SEPARATOR, &[0; 5]), "missing");
    check(&pcr_7(true).measured(7, EV_SEPARATOR, b"whatever", &[0; 4]), "missing");
    check(&pcr_7(true).event(7, EV_NO_ACTION, &[0; 4]), "missing");
    // In another PCR.
    check(&pcr_7(true).separator(6), "missing");
}

#[test]
fn malformed_secure_boot_variable_proves_nothing() {
    check(&first(one(&variable(GLOBAL, "SecureBoot", &[1]))), "ok");
    for (vendor, name) in [
        (IMAGE_SECURITY, "SecureBoot"),
        (GLOBAL, "Secureboot"),
        (GLOBAL, "SecureBoo"),
        (GLOBAL, "SecureBoot2"),
        (GLOBAL, ""),
    ] {
        check(&first(one(&variable(vendor, name, &[1]))), "unexpected");
    }
    // Values that it cannot have. Whether it is on is not said by them.
    for value in [[2].as_slice(), &[0xff], &[1, 0], &[1, 1]] {
        check(&first(one(&variable(GLOBAL, "SecureBoot", value))), "missing");
    }
    let data = variable(GLOBAL, "SecureBoot", &[1]);
    // Longer and shorter than its own lengths say; the digest covers it all, or only the variable.
    check(&first(one(&[data.as_slice(), &[0]].concat())), "unknown event");
    check(&first(one(&data[..data.len() - 1])), "unknown event");
    let covers = |measured: &[u8], shown: &[u8]| LogBuilder::new(&[SHA256]).measured(7, VARIABLE_DRIVER_CONFIG, measured, shown);
    check(&first(covers(&data, &[data.as_slice(), &[0]].concat())), "unexpected");
    check(&first(covers(&data, &[data.as_slice(), &[0; 9]].concat())), "unknown event");
    check(&first(covers(&[1], &data)), "unknown event");
    check(&first(covers(&data[16..], &data)), "unknown event");
    let mut long_name = data.clone();
    long_name[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    check(&first(one(&long_name)), "unknown event");
    let mut long_value = data;
    long_value[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    check(&first(one(&long_value)), "unknown event");
    check(&first(LogBuilder::new(&[SHA256])), "unexpected");
}

#[test]
fn data_that_mismatches_its_digest_is_not_believed() {
    let off = grub_machine(false);
    let secure_boot = place(&off, 7, 0);
    check(&lie(&off, secure_boot, &variable(GLOBAL, "SecureBoot", &[1])), "unknown event");
    let read = boot(&lie(&off, secure_boot, &variable(GLOBAL, "SecureBoot", &[1])));
    assert_eq!(read.events[secure_boot - 1].proof, Proof::Digest);
    let on = grub_machine(true);
    for (at, (vendor, name, _)) in secure_boot_variables(true).iter().enumerate() {
        let shown = variable(vendor, name, &signature_list(X509, &[&certificate("another")]));
        check(&lie(&on, place(&on, 7, at), &shown), "unknown event");
    }
    // A value that says on, in a log that shows no name: nothing but the whole variable is one.
    check(&lie(&off, secure_boot, &[1]), "unknown event");
}

/// The attack of go-attestation's disclosure: the true events by other types, then the wanted ones.
#[test]
fn attack_24_events_appended_to_the_genuine_prove_nothing() {
    let wanted = LogBuilder::new(&[SHA256]).secure_boot(true).separator(7);
    for event_type in [VARIABLE_DRIVER_CONFIG, 2, EV_SEPARATOR, 0xffff_ffff] {
        for log in [
            inserted(&retyped(&pcr_7(false).separator(7), event_type), 6, &wanted),
            inserted(&retyped(&pcr_7(false), event_type), 5, &wanted),
        ] {
            assert_ne!(boot(&log).secure_boot(), Ok(true));
            assert!(boot(&log).authorities().is_err());
        }
    }
    // Before them he could only be if he were the firmware.
    check(&inserted(&wanted, 0, &one(b"anything")), "unknown event");
    check(&inserted(&wanted, 0, &one(OS_SEPARATOR)), "unexpected");
}

#[test]
fn debug_mode_proves_nothing_and_dma_is_reported() {
    let whole = pcr_7(true).separator(7);
    for at in 0..=6 {
        let with = |text: &str| inserted(&whole, at, &LogBuilder::new(&[SHA256]).action(7, text));
        check(&with("UEFI Debug Mode"), "debug mode");
        check(&with("DMA Protection Disabled"), "ok");
        assert_eq!(boot(&with("DMA Protection Disabled")).dma_protection_disabled(), Ok(true));
        assert_eq!(
            boot(&with("DMA Protection Disabled"))
                .database(DatabaseName::PK)
                .unwrap()
                .certificates
                .len(),
            1
        );
    }
    assert_eq!(boot(&whole).dma_protection_disabled(), Ok(false));
}

#[test]
fn systemd_separator_after_the_boot_changes_nothing() {
    let log = grub_machine(true).event(7, EV_SEPARATOR, OS_SEPARATOR);
    check(&log, "ok");
    assert_eq!(boot(&log).authorities().unwrap().len(), 2);
}

#[test]
fn databases_are_lists_of_certificates_and_hashes() {
    let read = boot(&grub_machine(true));
    let pk = read.database(DatabaseName::PK).unwrap();
    let owner = read.database(DatabaseName::KEK).unwrap().certificates[0].owner.unwrap().to_string();
    assert_eq!(
        (pk.certificates[0].sha256, owner.as_str()),
        (Sha256(sha256(&certificate("platform key"))), OWNER)
    );
    let db = read.database(DatabaseName::Db).unwrap();
    let found: Vec<Sha256> = db.certificates.iter().map(|certificate| certificate.sha256).collect();
    assert_eq!(
        found,
        [Sha256(sha256(&certificate("vendor"))), Sha256(sha256(&certificate("owner")))]
    );
    let dbx = read.database(DatabaseName::Dbx).unwrap();
    assert_eq!(dbx.hashes, hashes(5).map_into());
    assert!(dbx.is_complete() && dbx.certificates.is_empty());
    assert_eq!(dbx.missing(&hashes(5).map_into()), []);
    assert_eq!(dbx.missing(&hashes(6).map_into()), [Sha256(hashes(6)[5])]);
    assert_eq!(verdict(&read.database(DatabaseName::Dbt)), "missing");
}

trait MapInto {
    fn map_into(self) -> Vec<Sha256>;
}

impl MapInto for Vec<[u8; 32]> {
    fn map_into(self) -> Vec<Sha256> {
        self.into_iter().map(Sha256).collect()
    }
}

/// A db of such bytes.
fn with_db(value: &[u8]) -> LogBuilder {
    let mut log = LogBuilder::new(&[SHA256]);
    for (vendor, name, own) in secure_boot_variables(true) {
        log = log.variable(vendor, name, if name == "db" { value } else { &own });
    }
    log.separator(7)
}

#[test]
fn malformed_signature_database_proves_nothing() {
    let list = signature_list(X509, &[&certificate("vendor")]);
    let refused = |value: &[u8]| assert_eq!(verdict(&boot(&with_db(value)).database(DatabaseName::Db)), "unexpected");
    assert_eq!(boot(&with_db(&list)).database(DatabaseName::Db).unwrap().certificates.len(), 1);
    assert!(boot(&with_db(&[])).database(DatabaseName::Db).unwrap().is_empty());
    for cut in [1, 16, 27, 28, list.len() - 1] {
        refused(&list[..cut]);
    }
    refused(&[list.as_slice(), &[0]].concat());
    let altered = |at: usize, bytes: u32| {
        let mut list = list.clone();
        list[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
        list
    };
    let bytes = u32::try_from(list.len()).unwrap();
    for (at, wrong) in [
        (16, [0, 27, bytes - 1, bytes + 1, u32::MAX]),
        (20, [1, 2, bytes, bytes - 27, u32::MAX]),
        (24, [0, 1, 15, bytes, u32::MAX]),
    ] {
        for wrong in wrong {
            refused(&altered(at, wrong));
        }
    }
    // Hashes of another length than SHA-256 has.
    refused(&signature_list(SHA256_LIST, &[&[7; 31]]));
    refused(&signature_list(SHA256_LIST, &[&[7; 48]]));
    // Entries of other kinds are counted, so that nobody takes the rest for all.
    let other = boot(&with_db(&[list.clone(), signature_list(OWNER, &[&[7; 48], &[8; 48]])].concat()));
    let db = other.database(DatabaseName::Db).unwrap();
    assert_eq!((db.certificates.len(), db.others, db.is_complete()), (1, 2, false));
}

#[test]
fn subject_is_read_from_valid_certificates_only() {
    let subject = |certificate: &[u8]| {
        let log = with_db(&signature_list(X509, &[certificate]));
        boot(&log).database(DatabaseName::Db).unwrap().certificates[0].subject.clone()
    };
    let real = real_certificate("Example");
    assert_eq!(subject(&real).as_deref(), Some("C=US, O=A vendor of systems, CN=Example CA"));
    assert_eq!(
        subject(&real_certificate("a\x1b[2Jb")).as_deref(),
        Some("C=US, O=A vendor of systems, CN=a\u{fffd}[2Jb CA")
    );
    assert_eq!(subject(&real[..100]), None);
    assert_eq!(subject(&certificate("x")), None);
    assert_eq!(
        subject(&real_certificate(&"x".repeat(3000))).map(|subject| subject.chars().count()),
        Some(256)
    );
}

#[test]
fn versions_in_dbx_are_no_hashes() {
    let owner = "9d132b6c-59d5-4388-ab1c-185cfcb2eb92";
    let list = |owner: &str, version: u8, major: u8| {
        let mut entry = [
            &[version],
            guid("9d132b61-59d5-4388-ab1c-185c3cb2eb92").as_slice(),
            &[3, 0, major, 0],
            &[0; 11],
        ]
        .concat();
        entry.splice(0..0, guid(owner));
        let mut list = signature_list(SHA256_LIST, &[&[0; 32]]);
        list.truncate(28);
        [list, entry].concat()
    };
    let found = |dbx: &[u8]| {
        let mut log = LogBuilder::new(&[SHA256]);
        for (vendor, name, own) in secure_boot_variables(true) {
            log = log.variable(vendor, name, if name == "dbx" { dbx } else { &own });
        }
        let read = boot(&log.separator(7));
        let database = read.database(DatabaseName::Dbx).unwrap();
        let version = database
            .security_versions
            .first()
            .and_then(|version| database.security_version(version.application));
        (database.hashes.len(), database.security_versions.len(), version)
    };
    assert_eq!(found(&list(owner, 1, 2)), (0, 1, Some((2, 3))));
    assert_eq!(
        found(&[list(owner, 1, 7), list(owner, 1, 5), dbx(&hashes(2))].concat()),
        (2, 2, Some((7, 3)))
    );
    // Anybody else's, and a form that is not known, is a hash.
    assert_eq!(found(&list(OWNER, 1, 2)), (1, 0, None));
    assert_eq!(found(&list(owner, 2, 2)), (1, 0, None));
}

#[test]
fn authorities_are_all_authority_events_of_pcr_7() {
    let log = grub_machine(true);
    let read = boot(&log);
    let found = read.authorities().unwrap();
    let names: Vec<_> = found.iter().map(|found| found.authority.variable.whole().unwrap()).collect();
    assert_eq!(names, ["db", "Shim"]);
    assert!(
        matches!(&found[0].authority.by, AuthorisedBy::Certificate(by) if by.sha256 == Sha256(sha256(&certificate("vendor"))) && by.owner.is_some())
    );
    assert!(
        matches!(&found[1].authority.by, AuthorisedBy::Certificate(by) if by.sha256 == Sha256(sha256(&certificate("distribution"))) && by.owner.is_none())
    );

    // One that is added is one more to be accepted.
    let more = log.clone().event(
        7,
        VARIABLE_AUTHORITY,
        &variable(IMAGE_SECURITY, "db", &signature(&sha256(b"an image"))),
    );
    let read = boot(&more);
    let found = read.authorities().unwrap();
    assert!(matches!(&found[2].authority.by, AuthorisedBy::Hash { sha256: hash, .. } if *hash == Sha256(sha256(b"an image"))));
}

#[test]
fn an_authority_cannot_be_hidden() {
    let log = grub_machine(true);
    let (by_db, by_shim) = (place(&log, 7, 6), place(&log, 7, 9));
    let refused = |log: &LogBuilder, expect: &str| assert_eq!(verdict(&boot(log).authorities()), expect);
    for hidden in [by_db, by_shim] {
        for shown in [
            b"".as_slice(),
            b"DMA Protection Disabled",
            &[0; 4],
            OS_SEPARATOR,
            &variable(SHIM, "SbatLevel", b"sbat,1\n"),
        ] {
            refused(&lie(&log, hidden, shown), "unknown event");
        }
    }
    // Content that may be one in a form that is not known.
    for (vendor, name) in [(IMAGE_SECURITY, "db"), (SHIM, "MokList"), (SHIM, "Shim")] {
        let added = |value: &[u8]| log.clone().event(7, VARIABLE_AUTHORITY, &variable(vendor, name, value));
        refused(&added(&signature(&[7; 48])), "unexpected");
        refused(&added(&[certificate("x"), vec![0]].concat()), "unexpected");
        refused(&added(&[0xff; 16]), "unexpected");
    }
    refused(&log.clone().event(7, VARIABLE_AUTHORITY, b"no variable"), "unknown event");
    // What anybody else measures of his own is none.
    refused(
        &log.clone().event(7, VARIABLE_AUTHORITY, &variable(OWNER, "Vendor", &[0xff; 16])),
        "ok",
    );
    refused(&grub_machine(false), "off");
}

#[test]
fn old_shim_authority_is_parsed_to_its_digest() {
    // One byte more is logged than measured, and five behind the variable are measured (shim before 15.3).
    let value = certificate("distribution");
    let measured = [variable(SHIM, "Shim", &value), vec![0; 5]].concat();
    let shown = |behind: &[u8]| [measured.as_slice(), behind].concat();
    let with = |measured: &[u8], shown: &[u8]| grub_machine(true).measured(7, VARIABLE_AUTHORITY, measured, shown);
    assert_eq!(boot(&with(&measured, &shown(&[0xaf]))).authorities().unwrap().len(), 3);
    for (measured, shown) in [
        (measured.clone(), shown(&[0xaf, 0xaf])),
        ([measured.as_slice(), &[0]].concat(), shown(&[0, 0xaf])),
        (measured[..measured.len() - 6].to_vec(), shown(&[])),
    ] {
        assert_eq!(verdict(&boot(&with(&measured, &shown)).authorities()), "unknown event");
    }
}

#[test]
fn sbat_level_is_the_one_measured_by_shim() {
    let read = boot(&grub_machine(true));
    let levels: Vec<_> = read.sbat_levels().unwrap().iter().map(|level| level.whole().unwrap()).collect();
    assert_eq!(levels, ["sbat,1,2024010900\nshim,4\n"]);
    let log = grub_machine(true);
    let level = place(&log, 7, 7);
    let shown = variable(SHIM, "SbatLevel", b"sbat,1,2099010100\n");
    assert_eq!(verdict(&boot(&lie(&log, level, &shown)).sbat_levels()), "unknown event");
    let elsewhere = variable(GLOBAL, "SbatLevel", b"sbat,1,2099010100\n");
    assert_eq!(boot(&log.event(7, VARIABLE_AUTHORITY, &elsewhere)).sbat_levels().unwrap().len(), 1);
}

#[test]
fn event_numbers_are_positions_in_the_log() {
    let log = grub_machine(true);
    let read = boot(&log);
    let extending = log.events.iter().enumerate().filter(|(_, event)| event.event_type != EV_NO_ACTION);
    assert!(read.events.iter().map(|event| event.number).eq(extending.map(|(at, _)| at + 1)));
    let shifted = inserted(&log, 0, &empty(&log).event(0, EV_NO_ACTION, b"a note"));
    assert_eq!(
        numbers(boot(&shifted).images(4)).unwrap(),
        numbers(read.images(4)).unwrap().iter().map(|number| number + 1).collect::<Vec<_>>()
    );
    assert!(matches!(read.events[0].meaning, Meaning::FirmwareVersion { .. }));
    assert_eq!(
        boot(&LogBuilder::new(&[SHA256])).secure_boot(),
        Err(NotProven::Missing {
            pcr: 7,
            required: "separator"
        })
    );
}
