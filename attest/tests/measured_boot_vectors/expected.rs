//! Expected content of each log.

use attest::tpm::measured_boot::ExitBootServices;

/// Summary of a log. Fingerprints and digests are 16 hexadecimal digits long.
pub struct Expected {
    pub secure_boot: Option<bool>,
    pub pk: &'static [&'static str],
    pub kek: &'static [&'static str],
    pub db: &'static [&'static str],
    /// Certificates of dbx, how many hashes, the first and the last.
    pub dbx: (&'static [&'static str], usize, &'static str, &'static str),
    /// Variable and certificate; `None` where Secure Boot is off or not known.
    pub authorities: Option<&'static [(&'static str, &'static str)]>,
    pub sbat: &'static [&'static str],
    pub images: &'static [&'static str],
    pub drivers: usize,
    pub version: &'static str,
    pub grub: usize,
    pub files: &'static [&'static str],
    pub mok: usize,
    pub ended: ExitBootServices,
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

pub fn expected() -> [(&'static str, Expected); 14] {
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
        ("qemu/ovmf4m-direct-4banks.eventlog", ovmf_again()),
        ("qemu/seabios-direct.eventlog", Expected { drivers: 3, ..NOTHING }),
        (
            // SecureBoot has no value there.
            "go-attestation/crypto_agile_eventlog",
            Expected {
                // Measured with a value of length 0.
                secure_boot: Some(false),
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
