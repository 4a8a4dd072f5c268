//! What real machines' logs mean, from the test vectors (`ATTEST_VECTORS`). What is expected was read from the logs by a short script of its own,
//! in Python, that shares nothing with the product; a digest is written by what it begins with.

use std::collections::BTreeMap;

use crate::vectors::{files_under, vector, vectors};
use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{
    AuthorisedBy, DatabaseName, ExitBootServices, Fact, GrubKind, Meaning, MeasuredBoot, NotProven, Proof, SignatureDatabase, UkiSection,
};

/// What a log says in short. Fingerprints and digests are 16 hexadecimal digits long.
struct Expected {
    secure_boot: Option<bool>,
    pk: &'static [&'static str],
    kek: &'static [&'static str],
    db: &'static [&'static str],
    /// Certificates of dbx, how many hashes, the first and the last.
    dbx: (&'static [&'static str], usize, &'static str, &'static str),
    /// Variable and certificate; `None` where Secure Boot is off or not known.
    authorities: Option<&'static [(&'static str, &'static str)]>,
    sbat: &'static [&'static str],
    images: &'static [&'static str],
    drivers: usize,
    version: &'static str,
    grub: usize,
    files: &'static [&'static str],
    mok: usize,
    ended: ExitBootServices,
}

const NOTHING: Expected = Expected {
    secure_boot: None,
    pk: &[],
    kek: &[],
    db: &[],
    dbx: (&[], 0, "", ""),
    authorities: None,
    sbat: &[],
    images: &[],
    drivers: 0,
    version: "",
    grub: 0,
    files: &[],
    mok: 0,
    ended: ExitBootServices::NotCalled,
};

const GOOGLE_PK: &[&str] = &["d1d217acf60ba4e4"];
const MICROSOFT_KEK: &str = "a1117f516a32cefc";
const MICROSOFT_UEFI: &str = "48e99b991f57fc52";
const MICROSOFT_WINDOWS: &str = "e8e95f0733a55e8b";
const COS_DBX: &[&str] = &["8f046d48ced6a58d", "ffd8d34040124848", "8a449fc41dc1df23", "357f9fd7617f7e31"];
const SBAT_2021: &[&str] = &["sbat,1,2021030218\n"];
const DBX_FIRST: &str = "80b4d96931bf0d02";

fn expected() -> [(&'static str, Expected); 14] {
    let ubuntu = Expected {
        secure_boot: Some(false),
        pk: GOOGLE_PK,
        kek: &[MICROSOFT_KEK],
        db: &[MICROSOFT_UEFI, MICROSOFT_WINDOWS],
        version: "GCE Virtual Firmware v1",
        ended: ExitBootServices::Success,
        ..NOTHING
    };
    let cos = Expected {
        secure_boot: Some(true),
        pk: &["7d75af8ed5cea65b"],
        kek: &["7b033db44e666c2e"],
        db: &["a7b8c851deb2acba"],
        dbx: (COS_DBX, 0, "", ""),
        version: "GCE Virtual Firmware v1",
        grub: 15,
        ended: ExitBootServices::Success,
        ..NOTHING
    };
    let ovmf = Expected {
        secure_boot: Some(false),
        images: &["538678bc73e3a12e"],
        files: &["b46c8a80", "28edeff4"],
        ended: ExitBootServices::Success,
        ..NOTHING
    };
    [
        (
            "rhel8-uefi.bin",
            Expected {
                secure_boot: Some(true),
                dbx: (
                    &["90244cc221e00c1f", "20e394d15c6205fa", "f156d24f5d4e775d"],
                    183,
                    DBX_FIRST,
                    "540801dd345dc1c3",
                ),
                authorities: Some(&[("db", MICROSOFT_UEFI), ("Shim", "40175d4c7c5ab4bd")]),
                images: &["40d6cae029737890", "e8a268c431da72ca", "e4c0382f98feaebf"],
                grub: 50,
                files: &["9f2a35ee", "df08d49b"],
                mok: 2,
                ..ubuntu
            },
        ),
        (
            "ubuntu-2404-amd-sevsnp.bin",
            Expected {
                dbx: (&[], 371, DBX_FIRST, "13a1f37bedfb5417"),
                sbat: SBAT_2021,
                images: &["724de6844dd0fe61", "5e8cb75acdf8e09e"],
                version: "GCE Virtual Firmware v2",
                grub: 71,
                files: &[
                    "6790a08b", "6790a08b", "aef69541", "32fc7f5d", "1b766f38", "46f888c5", "10de9656", "f6412285", "f6412285", "c8c09d9d",
                    "a6cdd6ff", "682caa86",
                ],
                mok: 3,
                ..ubuntu
            },
        ),
        (
            "ubuntu-1804-amd-sev.bin",
            Expected {
                dbx: (&[], 77, DBX_FIRST, "45c7c8ae750acfbb"),
                images: &["2ea4cb6a1f1eb1d3", "835f940e97bac2f7"],
                grub: 52,
                files: &[
                    "5420c2c7", "5137257c", "32fc7f5d", "1b766f38", "46f888c5", "fd1197a6", "2e4234c8", "2e4234c8", "f0c88e17", "0b09941d",
                ],
                ..ubuntu
            },
        ),
        (
            "ubuntu-2104-no-dbx.bin",
            Expected {
                sbat: SBAT_2021,
                images: &["d99c93fcb042dbe5", "b0a836fec2faf4a9"],
                grub: 73,
                files: &[
                    "f604450f", "5137257c", "32fc7f5d", "1b766f38", "46f888c5", "60b17900", "2d963f96", "2d963f96", "38c6396e",
                ],
                mok: 2,
                ..ubuntu
            },
        ),
        (
            "cos-85-amd-sev.bin",
            Expected {
                authorities: Some(&[("db", "a7b8c851deb2acba"), ("db", "a7b8c851deb2acba"), ("db", "a7b8c851deb2acba")]),
                images: &["dba8d69ffb244496", "f7bad83f87940312", "6f6afb3caed004e7"],
                files: &["b7ce031d", "e81373f2"],
                ..cos
            },
        ),
        (
            "cos-101-amd-sev.bin",
            Expected {
                authorities: Some(&[("db", "a7b8c851deb2acba"), ("db", "a7b8c851deb2acba")]),
                sbat: SBAT_2021,
                images: &["c7ac5d44444affd8", "c5d3b47de11a9a2a", "af4161084115c9d5", "af4161084115c9d5"],
                files: &["23d10d8a", "c7a02287"],
                mok: 2,
                ..cos
            },
        ),
        (
            "eventlogwithsp800155.bin",
            Expected {
                pk: &["c187832602dbada6"],
                kek: &["e76a7b739876acbb"],
                db: &["2fa7df82773db7ee"],
                authorities: Some(&[("db", "2fa7df82773db7ee"), ("db", "2fa7df82773db7ee")]),
                sbat: SBAT_2021,
                images: &["451bfd03c48b7aa7", "004a191eabfc1d4e", "540bea3e2738039e"],
                version: "GCE Virtual Firmware v2",
                files: &["6cde9bd1"],
                mok: 3,
                ..cos
            },
        ),
        (
            "qemu/ovmf4m-snakeoil-uki.eventlog",
            Expected {
                secure_boot: Some(true),
                pk: &["282e8130b7070f10"],
                kek: &["282e8130b7070f10"],
                db: &["282e8130b7070f10"],
                dbx: (&[], 1, "e3b0c44298fc1c14", "e3b0c44298fc1c14"),
                authorities: Some(&[("db", "282e8130b7070f10")]),
                images: &["f3d19ac5ce7886bf"],
                files: &["204aa628", "28edeff4"],
                ..ovmf
            },
        ),
        ("qemu/ovmf4m-direct.eventlog", ovmf),
        ("qemu/ovmf4m-direct-4banks.eventlog", Expected { ..ovmf_again() }),
        ("qemu/seabios-direct.eventlog", Expected { drivers: 3, ..NOTHING }),
        (
            // SecureBoot has no value there.
            "go-attestation/crypto_agile_eventlog",
            Expected {
                pk: &["9773962c4271cad2"],
                kek: &[MICROSOFT_KEK],
                db: &[MICROSOFT_UEFI, MICROSOFT_WINDOWS, "611c3564ad3520bc"],
                dbx: (&[], 77, DBX_FIRST, "45c7c8ae750acfbb"),
                images: &["81da15d6acdfb786", "28710f04aacfa162"],
                version: "1efb6b540c1d5540a4ad4ef4bf17b83a",
                ..NOTHING
            },
        ),
        (
            "tpm2-tools/event-postcode.bin",
            Expected {
                secure_boot: Some(true),
                pk: &["5fc05b208b7a0c01"],
                kek: &[MICROSOFT_KEK],
                db: &[MICROSOFT_UEFI, MICROSOFT_WINDOWS, "0d6593be52f90c56", "687fa451382278ff"],
                dbx: (&[], 77, DBX_FIRST, "45c7c8ae750acfbb"),
                authorities: Some(&[("db", MICROSOFT_UEFI), ("Shim", "ed1fe72cb9ca31c9"), ("Shim", "ed1fe72cb9ca31c9")]),
                images: &["007f4c95125713b1", "aa1bfb5a9f43668a", "b0a2cdff7294f383"],
                drivers: 4,
                version: "1efb6b540c1d5540a4ad4ef4bf17b83a",
                grub: 12,
                files: &["4bdd31ce", "befbf1d7", "5d8a44f7", "2c9d05e2"],
                ..NOTHING
            },
        ),
        (
            "ibmtss/p511-windows-pcr-ffffffff.bin",
            Expected {
                secure_boot: Some(true),
                pk: &["fbe14729e6a1d72e"],
                kek: &["a9087d1044ad18f7", MICROSOFT_KEK],
                db: &["1101477d21364092", "99abba42419f80cc", MICROSOFT_UEFI, MICROSOFT_WINDOWS],
                dbx: (&[], 83, DBX_FIRST, "10d45fcba396aef3"),
                authorities: Some(&[("db", MICROSOFT_WINDOWS)]),
                images: &["9a53b62e6012dea3"],
                version: "N1UET78W ",
                mok: 4,
                ..NOTHING
            },
        ),
    ]
}

const fn ovmf_again() -> Expected {
    Expected {
        secure_boot: Some(false),
        images: &["538678bc73e3a12e"],
        files: &["b46c8a80", "28edeff4"],
        ended: ExitBootServices::Success,
        ..NOTHING
    }
}

/// Reads a log for the PCR values that it leads to.
fn read_in(bank: HashAlg, bytes: &[u8]) -> MeasuredBoot {
    let log = EventLog::parse(bytes).unwrap();
    let replayed = log.replay(bank, 0..16).unwrap();
    let quoted: BTreeMap<u8, HexDigest> = (0..16)
        .map(|pcr| (pcr, HexDigest::new(replayed.value(pcr).unwrap()).unwrap()))
        .collect();
    MeasuredBoot::of(&log.check_against(bank, &quoted).unwrap())
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
fn logs_of_real_machines_mean_what_another_reading_says() {
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
fn a_uki_is_its_sections() {
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

/// Events that GRUB and the firmware have measured by other bytes than they log are not taken for content.
#[test]
fn content_is_what_the_digests_cover() {
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
fn the_command_line_of_grub_is_read() {
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

/// What is altered in a real log is never believed: each event's data in turn, under its true digest.
#[test]
fn no_real_event_is_believed_with_other_data() {
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
