//! Meaning of real machines' logs, from the test vectors (`ATTEST_VECTORS`). The expected values were read from the logs by a short Python
//! script that shares nothing with the product. Digests are given by their first digits.

mod expected;

use std::collections::BTreeMap;

use crate::vectors::{files_under, vector, vectors};
use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{
    AuthorisedBy, DatabaseName, Fact, GrubKind, Meaning, MeasuredBoot, NotProven, Proof, SignatureDatabase, UkiSection,
};
use expected::expected;

/// Reads a log for the PCR values that it leads to.
fn read_in(bank: HashAlg, bytes: &[u8]) -> MeasuredBoot {
    let log = EventLog::parse(bytes).unwrap();
    let replayed = log.replay(bank, 0..16).unwrap();
    let quoted: BTreeMap<u8, HexDigest> = (0..16)
        .map(|pcr| (pcr, HexDigest::new(replayed.value(pcr).unwrap()).unwrap()))
        .collect();
    MeasuredBoot::from_events(&log.check_against(bank, &quoted).unwrap())
}

fn read(bytes: &[u8]) -> MeasuredBoot {
    read_in(HashAlg::Sha256, bytes)
}

fn short(digest: &impl ToString, digits: usize) -> String {
    digest.to_string()[..digits].to_owned()
}

fn certificates(database: Fact<&SignatureDatabase>) -> Vec<String> {
    let found = database.map(|database| {
        database
            .certificates
            .iter()
            .map(|certificate| short(&certificate.sha256, 16))
            .collect()
    });
    found.unwrap_or_default()
}

#[test]
fn real_logs_match_an_independent_interpretation() {
    let Some(vectors) = vectors() else { return };
    for (name, expected) in expected() {
        let boot = read(&std::fs::read(vectors.join("eventlogs").join(name)).unwrap());
        assert_eq!(boot.secure_boot().ok(), expected.secure_boot, "{name}");
        assert_eq!(certificates(boot.database(DatabaseName::PK)), expected.pk, "{name}");
        assert_eq!(certificates(boot.database(DatabaseName::KEK)), expected.kek, "{name}");
        assert_eq!(certificates(boot.database(DatabaseName::Db)), expected.db, "{name}");
        let dbx = boot.database(DatabaseName::Dbx);
        let hash = |hash: Option<&attest::tpm::measured_boot::Sha256>| hash.map(|hash| short(hash, 16)).unwrap_or_default();
        let hashes = dbx.as_ref().map_or((0, String::new(), String::new()), |dbx| {
            (dbx.hashes.len(), hash(dbx.hashes.first()), hash(dbx.hashes.last()))
        });
        let (in_dbx, count, first, last) = expected.dbx;
        assert_eq!(hashes, (count, first.to_owned(), last.to_owned()), "{name}");
        assert!(dbx.as_ref().map_or(true, |dbx| dbx.is_complete()), "{name}");
        assert_eq!(certificates(dbx), in_dbx, "{name}");

        let authorities = boot.authorities().ok().map(|found| {
            let by = |by: &AuthorisedBy| match by {
                AuthorisedBy::Certificate(certificate) => short(&certificate.sha256, 16),
                AuthorisedBy::Hash { sha256, .. } => short(sha256, 16),
            };
            let found = found
                .iter()
                .map(|found| (found.authority.variable.to_string(), by(&found.authority.by)));
            found.collect::<Vec<_>>()
        });
        let expected_authorities = expected.authorities.map(|all| {
            all.iter()
                .map(|(variable, by)| ((*variable).to_owned(), (*by).to_owned()))
                .collect::<Vec<_>>()
        });
        assert_eq!(authorities, expected_authorities, "{name}");

        let sbat: Vec<&str> = boot
            .sbat_levels()
            .map(|levels| levels.iter().filter_map(|level| level.whole()).collect())
            .unwrap_or_default();
        assert_eq!(sbat, expected.sbat, "{name}");
        let images: Vec<String> = boot.images(4).unwrap().iter().map(|event| short(&event.digest, 16)).collect();
        assert_eq!(images, expected.images, "{name}");
        assert_eq!(
            boot.images(2).unwrap().len() + usize::from(name.contains("seabios")),
            expected.drivers,
            "{name}"
        );
        assert_eq!(
            boot.firmware_version().map_or("", |version| version.whole().unwrap()),
            expected.version,
            "{name}"
        );
        assert_eq!(boot.grub_texts().map_or(0, |texts| texts.len()), expected.grub, "{name}");
        let files: Vec<String> = boot.files().unwrap().iter().map(|event| short(&event.digest, 8)).collect();
        assert_eq!(files, expected.files, "{name}");
        let windows = |event: &&attest::tpm::measured_boot::BootEvent| matches!(event.meaning, Meaning::Separator { .. });
        assert_eq!(
            boot.mok_variables().unwrap().iter().filter(|event| !windows(event)).count() + usize::from(name.contains("windows")),
            expected.mok,
            "{name}"
        );
        assert_eq!(boot.exit_boot_services(), Ok(expected.ended), "{name}");
        let json = serde_json::to_vec(&boot).unwrap().len();
        println!("{name}: {} events, {json} bytes of JSON", boot.events.len());
    }
}

/// A log of PCR 7's first event alone.
#[test]
fn a_log_of_one_event_proves_nothing() {
    let Some(bytes) = vector("eventlogs/tpm2-tools/event-uefivar.bin") else {
        return;
    };
    let boot = read(&bytes);
    assert!(matches!(boot.events[0].meaning, Meaning::SecureBootVariable { .. }));
    assert_eq!(
        boot.secure_boot(),
        Err(NotProven::Missing {
            pcr: 7,
            required: "separator"
        })
    );
}

#[test]
fn every_bank_of_a_log_means_the_same() {
    let Some(vectors) = vectors() else { return };
    let bytes = std::fs::read(vectors.join("eventlogs/qemu/ovmf4m-direct-4banks.eventlog")).unwrap();
    let one = read(&bytes);
    for bank in [HashAlg::Sha384, HashAlg::Sha512] {
        let other = read_in(bank, &bytes);
        assert!(
            one.events
                .iter()
                .zip(&other.events)
                .all(|(one, other)| (&one.meaning, one.proof) == (&other.meaning, other.proof))
        );
        assert_eq!(other.secure_boot(), Ok(false));
    }
}

#[test]
fn uki_log_yields_its_sections() {
    let Some(bytes) = vector("eventlogs/qemu/ovmf4m-snakeoil-uki.eventlog") else {
        return;
    };
    let boot = read(&bytes);
    let sections: Vec<_> = boot
        .uki_sections()
        .unwrap()
        .iter()
        .map(|found| (found.section, short(found.digest, 8)))
        .collect();
    let expected = [
        (UkiSection::Linux, "51349501".to_owned()),
        (UkiSection::Osrel, "e296d80c".to_owned()),
        (UkiSection::Cmdline, "f5ca43c4".to_owned()),
        (UkiSection::Initrd, "28edeff4".to_owned()),
    ];
    assert_eq!(sections, expected);
    // The kernel measures the same initrd again.
    assert!(matches!(boot.files().unwrap()[1].meaning, Meaning::Initrd));
    assert_eq!(boot.files().unwrap()[1].digest, *boot.uki_sections().unwrap()[3].digest);
}

/// Events that GRUB and the firmware have measured by other bytes than they log do not count as content.
#[test]
fn content_proof_requires_matching_digests() {
    let Some(vectors) = vectors() else { return };
    for (name, content, digest) in [
        ("rhel8-uefi.bin", 75, 7),
        ("ubuntu-2404-amd-sevsnp.bin", 96, 20),
        ("qemu/ovmf4m-snakeoil-uki.eventlog", 26, 9),
        ("go-attestation/crypto_agile_eventlog", 22, 4),
        ("ibmtss/p511-windows-pcr-ffffffff.bin", 48, 9),
    ] {
        let boot = read(&std::fs::read(vectors.join("eventlogs").join(name)).unwrap());
        let count = |proof| boot.events.iter().filter(|event| event.proof == proof).count();
        assert_eq!((count(Proof::Content), count(Proof::Digest)), (content, digest), "{name}");
    }
}

/// tpm2-tools' own parse of the same log: Secure Boot's lists and the authorities.
#[test]
fn tpm2_tools_reads_the_same_databases() {
    let Some(vectors) = vectors() else { return };
    let yaml = std::fs::read_to_string(vectors.join("eventlogs/tpm2-tools/expected/event-postcode.bin.yaml")).unwrap();
    let boot = read(&std::fs::read(vectors.join("eventlogs/tpm2-tools/event-postcode.bin")).unwrap());
    let dbx = boot.database(DatabaseName::Dbx).unwrap();
    let value = yaml.split("UnicodeName: dbx").nth(1).unwrap().split('"').nth(1).unwrap();
    // One EFI_SIGNATURE_LIST: 28 bytes, and then an owner of 16 before each hash of 32.
    let entries: Vec<&str> = value.as_bytes()[56..]
        .chunks(96)
        .map(|entry| std::str::from_utf8(&entry[32..]).unwrap())
        .collect();
    assert_eq!(entries.len(), 77);
    assert!(dbx.hashes.iter().map(ToString::to_string).eq(entries));
    assert!(yaml.contains("Enabled: 'Yes'") || yaml.contains("VariableDataLength: 1"));
}

/// The command line that GRUB has measured, in each of its forms.
#[test]
fn kernel_command_line_of_grub_is_parsed() {
    let Some(vectors) = vectors() else { return };
    for (name, begins, bytes) in [
        (
            "rhel8-uefi.bin",
            "(hd0,gpt2)/boot/vmlinuz-4.18.0-240.22.1.el8_3.x86_64 root=UUID=",
            191,
        ),
        (
            "ubuntu-1804-amd-sev.bin",
            "/boot/vmlinuz-5.4.0-1046-gcp root=LABEL=cloudimg-rootfs ro console=ttyS0",
            72,
        ),
        (
            "eventlogwithsp800155.bin",
            "/syslinux/vmlinuz.B init=/usr/lib/systemd/systemd rootwait ro",
            1181,
        ),
    ] {
        let boot = read(&std::fs::read(vectors.join("eventlogs").join(name)).unwrap());
        let texts = boot.grub_texts().unwrap();
        let lines: Vec<&str> = texts
            .iter()
            .filter(|text| text.said_kind == GrubKind::KernelCommandLine)
            .filter_map(|text| text.text.whole())
            .collect();
        assert_eq!(lines.len(), 1, "{name}");
        assert!(lines[0].starts_with(begins), "{name}: {}", lines[0]);
        assert_eq!(lines[0].len(), bytes, "{name}");
    }
}

/// Altered data in a real log are never believed: each event's data in turn, under its true digest.
#[test]
fn real_events_with_altered_data_are_not_believed() {
    let Some(vectors) = vectors() else { return };
    for log_file in files_under(&vectors.join("eventlogs/qemu"), ".eventlog") {
        let bytes = std::fs::read(&log_file).unwrap();
        let whole = read(&bytes);
        let parsed = EventLog::parse(&bytes).unwrap();
        for event in parsed.events().iter().filter(|event| event.extends() && !event.data.is_empty()) {
            let at = event.data.as_ptr().addr() - bytes.as_ptr().addr();
            for offset in [0, event.data.len() / 2, event.data.len() - 1] {
                let mut altered = bytes.clone();
                altered[at + offset] ^= 0x20;
                let altered = read(&altered);
                for (one, other) in whole.events.iter().zip(&altered.events) {
                    assert_eq!(one.digest, other.digest);
                    if other.number == event.number && other.is_content() {
                        // Words are known by their digests, whatever stands beside them; a value by itself, whatever its name is.
                        let same = one.meaning == other.meaning || matches!(other.meaning, Meaning::BootVariable { .. });
                        assert!(same, "{} {other:?}", log_file.display());
                    }
                }
                assert!(altered.secure_boot().is_err() || altered.secure_boot() == whole.secure_boot());
                assert_eq!(altered.images(4).map(|all| all.len()), whole.images(4).map(|all| all.len()));
            }
        }
    }
}

/// Subjects are for people; other parts of a certificate are skipped.
#[test]
fn certificate_subjects_are_parsed() {
    let Some(bytes) = vector("eventlogs/rhel8-uefi.bin") else { return };
    let boot = read(&bytes);
    let subjects = |name| {
        let database = boot.database(name).unwrap();
        database
            .certificates
            .iter()
            .map(|certificate| certificate.subject.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(subjects(DatabaseName::PK), ["CN=newpk"]);
    let microsoft = "C=US, ST=Washington, L=Redmond, O=Microsoft Corporation, CN=Microsoft";
    assert_eq!(
        subjects(DatabaseName::Db),
        [
            format!("{microsoft} Corporation UEFI CA 2011"),
            format!("{microsoft} Windows Production PCA 2011")
        ]
    );
}

/// No machine boots twice among the vectors. But machines with the same value of a PCR report the same for it: data that differ at each
/// boot do not count.
#[test]
fn real_logs_agree_for_equal_pcr_values() {
    let Some(vectors) = vectors() else { return };
    let mut all = BTreeMap::new();
    let mut compared = 0;
    let folders = ["", "qemu", "go-attestation", "ibmtss", "tpm2-tools"].map(|folder| vectors.join("eventlogs").join(folder));
    for path in folders.iter().flat_map(|folder| files_under(folder, "")) {
        let bytes = std::fs::read(&path).unwrap();
        let Ok(log) = EventLog::parse(&bytes) else { continue };
        let Ok(replayed) = log.replay(HashAlg::Sha256, 0..16) else {
            continue;
        };
        let boot = read(&bytes);
        for pcr in 0..16 {
            let value = HexDigest::new(replayed.value(pcr).unwrap()).unwrap().to_string();
            let found = (boot.claims_digest(pcr).unwrap(), path.display().to_string());
            let first = all.entry((pcr, value)).or_insert_with(|| found.clone());
            assert_eq!(first.0, found.0, "PCR {pcr}: {} {}", first.1, found.1);
            compared += usize::from(first.1 != found.1);
        }
    }
    assert!(compared > 20, "{compared}");
}

fn from_hex(lines: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = lines.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    data_encoding::HEXLOWER.decode(&digits).unwrap()
}

/// A log that was made for a fault, and the values that it leads to.
fn fault(name: &str) -> Option<MeasuredBoot> {
    let hex = vector(&format!("faults/firmware/{name}.log.hex"))?;
    let bytes = from_hex(&hex);
    let pcrs: BTreeMap<u8, HexDigest> = serde_json::from_slice(&vector(&format!("faults/firmware/{name}.pcrs.json"))?).unwrap();
    let log = EventLog::parse(&bytes).unwrap();
    Some(MeasuredBoot::from_events(&log.check_against(HashAlg::Sha256, &pcrs).unwrap()))
}

/// Real firmware's events in PCR 7: the sentences with a terminating zero, and AMD's event.
#[test]
fn attack_51_real_firmware_events_in_pcr_7_are_parsed() {
    for (name, dma) in [
        ("action-with-zero/dma-before", true),
        ("action-with-zero/dma-after-separator", true),
        ("pcr7-vendor-event/before-config", false),
        ("pcr7-vendor-event/after-separator", false),
    ] {
        let Some(boot) = fault(name) else { return };
        assert_eq!(boot.secure_boot(), Ok(true), "{name}");
        assert_eq!(boot.dma_protection_disabled(), Ok(dma), "{name}");
        assert_eq!(boot.authorities().unwrap().len(), 2, "{name}");
        assert_eq!(boot.database(DatabaseName::Dbx).unwrap().hashes.len(), 1, "{name}");
    }
    for name in [
        "action-with-zero/debug-after-config",
        "action-with-zero/debug-without-zero-after-separator",
    ] {
        let Some(boot) = fault(name) else { return };
        assert!(matches!(boot.secure_boot(), Err(NotProven::DebugMode { .. })), "{name}");
        assert!(boot.authorities().is_err() && boot.database(DatabaseName::Dbx).is_err(), "{name}");
    }
}

#[test]
fn sha1_only_log_differs_from_a_broken_one() {
    let Some(hex) = vector("faults/firmware/sha1-only-firmware/sha1.log.hex") else {
        return;
    };
    let bytes = from_hex(&hex);
    let log = EventLog::parse(&bytes).unwrap();
    let quoted: BTreeMap<u8, HexDigest> = (0..8).map(|pcr| (pcr, HexDigest::from([0; 32]))).collect();
    let error = log.check_against(HashAlg::Sha256, &quoted).unwrap_err();
    assert!(error.is_of_sha1_only(), "{error}");
}
