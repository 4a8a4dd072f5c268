//! GRUB, with shim and Secure Boot, and without: predicted, booted, and held against pools.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::SecureBoot;
use attest::tpm::prediction::grub::{GrubBoot, GrubConfig};
use attest::tpm::prediction::linux::Kernel;
use attest::tpm::prediction::pe::PeImage;
use serde_json::Value;
use swtpm_tests::firmware::boot_disk::{GrubFiles, KernelOn};
use swtpm_tests::firmware::loaders::{make_grub, make_shim};
use swtpm_tests::firmware::{BootDisk, Firmware, SecureBootKeys, Signer};
use swtpm_tests::{Images, Release};

use super::verdicts::{Case, Expect, IMAGE, Judge, not_accepted, not_by, secure_boot_off, signed_by};
use super::{BANKS, Booted, Place, equal};

/// GRUB's config, with the kernel's command line.
fn config(line: &str) -> String {
    format!("# one way, and no menu\nset timeout=0\n\nlinux /vmlinuz {line}\ninitrd /initrd.img\nboot\n")
}

/// A boot by GRUB, and what was predicted of it.
fn by_grub(place: &Place, release: Release, keys: Option<&SecureBootKeys>) -> (Prediction, GrubFiles, Booted) {
    let built = make_grub(release, keys.is_some(), place.path()).unwrap();
    let (shim, grub, kernel) = match keys {
        Some(keys) => {
            let signer = keys.accepted();
            let (grub, kernel) = (place.path().join("grub-signed.efi"), place.path().join("vmlinuz-signed"));
            signer.sign(&built, &grub).unwrap();
            signer.sign(&place.images.kernel(), &kernel).unwrap();
            (Some(make_shim(signer, place.path()).unwrap()), grub, kernel)
        }
        None => (None, built, place.images.kernel()),
    };
    let config = place.path().join("grub.cfg");
    fs::write(&config, self::config(&place.command_line())).unwrap();
    let files = GrubFiles {
        shim,
        grub,
        config,
        kernel,
        initrd: place.images.measured_initrd(),
    };
    let read = |path: &Path| fs::read(path).unwrap();
    let (kernel, initrd, grub) = (read(&files.kernel), read(&files.initrd), read(&files.grub));
    let (config, shim) = (read(&files.config), files.shim.as_deref().map(read));
    let mut prediction = Prediction::new(&BANKS);
    GrubBoot {
        shim: shim.as_ref().map(|shim| PeImage::parse(shim).unwrap()).as_ref(),
        grub: &PeImage::parse(&grub).unwrap(),
        config: (&config, &GrubConfig::parse(&config).unwrap()),
        kernel: (&kernel, &Kernel::parse(&kernel).unwrap()),
        initrds: &[&initrd],
        secure_boot: if keys.is_some() { SecureBoot::On } else { SecureBoot::Off },
    }
    .predict(&mut prediction);

    let firmware = match keys {
        Some(keys) => Firmware::with_secure_boot(keys, place.path()),
        None => Firmware::without_secure_boot(place.path()),
    };
    let disk = BootDisk::grub(&files, KernelOn::SystemPartition, place.path()).unwrap();
    let name = match (release, keys) {
        (_, Some(_)) => "grub-2.06-shim",
        (Release::Bookworm, None) => "grub-2.06",
        (Release::Trixie, None) => "grub-2.12",
    };
    let booted = place.boot(name, &firmware.unwrap(), &disk);
    (prediction, files, booted)
}

/// So much of a command line is in each message that names it.
const NAMED_CHARS: usize = 80;

/// SHA-256 of Debian's certificate. The kernel has Debian's signature too, and shim, which knows that certificate, finds it first.
const DEBIAN_SECURE_BOOT_CA: &str = "079646974bce09b1f04da67bd722d1fb0947ae4c4010bccdbba52d5b23cbf1a2";

/// Values of a boot by GRUB, with some of its files replaced.
fn grub_values(judge: &Judge, name: &str, files: &GrubFiles, secure_boot: &str, other: &[(&str, &Path)]) -> Value {
    let mut arguments: BTreeMap<&str, &Path> = files.arguments().into_iter().collect();
    arguments.extend(other.iter().copied());
    let arguments: Vec<_> = arguments.into_iter().collect();
    judge.predicted(name, &arguments, secure_boot)
}

#[test]
fn grub_behind_shim_measures_what_was_predicted() {
    let place = Place::new();
    let keys = SecureBootKeys::new(&place.path().join("keys")).unwrap();
    let (prediction, files, booted) = by_grub(&place, Release::Bookworm, Some(&keys));
    assert!(booted.measured.log.is_some());
    equal(&prediction, &booted.measured, &[4, 8, 9]);

    // Pools that accept the same, but for one thing.
    let judge = Judge::new(&place.authority);
    let (kernel, line) = (place.path().join("other-vmlinuz"), place.path().join("other-grub.cfg"));
    keys.accepted()
        .sign(&Images::firmware(Release::Trixie).unwrap().kernel(), &kernel)
        .unwrap();
    fs::write(&line, config(&format!("{} debug", place.command_line()))).unwrap();
    let by = |signer: &Signer, values: Value| signed_by(values, &[signer.certificate()], &[DEBIAN_SECURE_BOOT_CA]);
    let values = |name: &str, other: &[(&str, &Path)]| by(keys.accepted(), grub_values(&judge, name, &files, "on", other));
    let rules: &[&str] = &["secure-boot", "authorities", "images", "grub", "files"];
    let case = |pool, values, expect| Case {
        pool,
        rules,
        values: Some(values),
        expect,
    };
    // A refusal names the beginning of a text.
    let begin: String = place.command_line().chars().take(NAMED_CHARS).collect();
    let cases = [
        case("same", values("same", &[]), Expect::Trusted),
        case(
            "kernel",
            values("a kernel", &[("--kernel", &kernel)]),
            not_accepted(&prediction, 4, "image kernel", [IMAGE, ""], "a kernel"),
        ),
        case(
            "initrd",
            values("an initrd", &[("--initrd", &line)]),
            not_accepted(
                &prediction,
                9,
                "file initrd",
                ["file, initrd or command line", "; the node calls it \"/initrd.img\""],
                "an initrd",
            ),
        ),
        case(
            "line",
            values("a line", &[("--grub-config", &line)]),
            not_accepted(
                &prediction,
                8,
                "command \"linux ",
                ["text of GRUB's", &format!(" (\"linux /vmlinuz {begin}")],
                "a line",
            ),
        ),
        case("key", by(keys.other(), values("a key", &[])), not_by(keys.accepted(), "a key")),
    ];
    judge.judge(&booted, &cases);
}

#[test]
fn without_secure_boot_grub_2_06_starts_the_kernel_by_itself() {
    let place = Place::new();
    let (prediction, _, booted) = by_grub(&place, Release::Bookworm, None);
    // The kernel never sees the firmware, and so gets no event log from it.
    assert!(booted.measured.log.is_none());
    equal(&prediction, &booted.measured, &[4, 8, 9]);
    let rules = &["secure-boot"];
    let expect = Expect::Refused {
        code: "event-log-missing",
        said: "no event log was sent".to_owned(),
        accepted: None,
    };
    let case = Case {
        pool: "secure-boot",
        rules,
        values: None,
        expect,
    };
    Judge::new(&place.authority).judge(&booted, &[case]);
}

#[test]
fn grub_2_12_has_the_firmware_start_the_kernel() {
    let place = Place::new();
    let (prediction, files, booted) = by_grub(&place, Release::Trixie, None);
    assert!(booted.measured.log.is_some());
    equal(&prediction, &booted.measured, &[4, 8, 9]);
    let judge = Judge::new(&place.authority);
    let values = grub_values(&judge, "these files", &files, "off", &[]);
    let case = |pool, rules, expect| Case {
        pool,
        rules,
        values: Some(values.clone()),
        expect,
    };
    let cases = [
        case("any-key", &["images", "grub", "files"], Expect::Trusted),
        case("secure-boot", &["images", "grub", "files", "secure-boot"], secure_boot_off()),
    ];
    judge.judge(&booted, &cases);
}
