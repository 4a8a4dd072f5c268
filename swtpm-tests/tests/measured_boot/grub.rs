//! GRUB, with shim and Secure Boot, and without: predicted, booted, and compared with pools.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use swtpm_tests::firmware::boot_disk::{GrubFiles, KernelOn};
use swtpm_tests::firmware::loaders::{make_grub, make_shim};
use swtpm_tests::firmware::{BootDisk, SecureBootKeys, SelfSignedKey};
use swtpm_tests::{DebianRelease, Images};

use super::predicted::Predicted;
use super::verdicts::{Case, Expect, IMAGE, Judge, not_accepted, not_by, signed_by};
use super::{Booted, Place};

/// Returns GRUB's config, with the kernel's command line.
fn config(kernel_on: KernelOn, line: &str) -> String {
    let root = match kernel_on {
        KernelOn::SystemPartition => "",
        KernelOn::BootPartition => "set root=hd0,gpt2\n",
    };
    format!("# one way, and no menu\nset timeout=0\n{root}\nlinux /vmlinuz {line}\ninitrd /initrd.img\nboot\n")
}

/// Machine that has booted with GRUB.
struct ByGrub {
    files: GrubFiles,
    disk: BootDisk,
    booted: Booted,
}

/// Boots a machine with GRUB.
fn by_grub(place: &Place, release: DebianRelease, kernel_on: KernelOn, keys: Option<&SecureBootKeys>) -> ByGrub {
    let path = |name: &str| place.path().join(name);
    let built = make_grub(release, keys.is_some(), place.path()).unwrap();
    let (shim, grub, kernel) = match keys {
        Some(keys) => {
            let signer = keys.accepted();
            let (grub, kernel) = (path("grub-signed.efi"), path("vmlinuz-signed"));
            signer.sign(&built, &grub).unwrap();
            signer.sign(&place.images.kernel(), &kernel).unwrap();
            (Some(make_shim(signer, place.path()).unwrap()), grub, kernel)
        }
        None => (None, built, place.images.kernel()),
    };
    let files = GrubFiles {
        shim,
        grub,
        config: path("grub.cfg"),
        kernel,
        initrd: place.images.measured_initrd(),
    };
    fs::write(&files.config, config(kernel_on, &place.command_line())).unwrap();
    let name = match (release, keys) {
        (_, Some(_)) => "grub-2.06-shim",
        (DebianRelease::Bookworm, None) => "grub-2.06",
        (DebianRelease::Trixie, None) => "grub-2.12",
    };
    let disk = BootDisk::grub(&files, kernel_on, place.path()).unwrap();
    let booted = place.boot(name, keys, &disk);
    ByGrub { files, disk, booted }
}

/// Number of characters of a command line in each message that names it.
const NAMED_CHARS: usize = 80;

/// SHA-256 of Debian's certificate. The kernel has Debian's signature too, and shim, which knows that certificate, finds it first.
const DEBIAN_SECURE_BOOT_CA: &str = "079646974bce09b1f04da67bd722d1fb0947ae4c4010bccdbba52d5b23cbf1a2";

/// Predicts the values of a boot with GRUB behind shim, with some of its files replaced.
fn grub_values(judge: &Judge, name: &str, files: &GrubFiles, other: &[(&str, &Path)]) -> Value {
    let mut arguments: BTreeMap<&str, &Path> = files.arguments().into_iter().collect();
    arguments.extend(other.iter().copied());
    let arguments: Vec<_> = arguments.into_iter().collect();
    judge.predicted(name, &arguments, "on")
}

/// The kernel is on a file system of its own, like on Fedora CoreOS. There `--disk` predicts which images can be started, but not which one
/// is.
#[test]
fn shim_and_grub_measure_the_predicted_values() {
    let place = Place::new();
    let keys = SecureBootKeys::new(&place.path().join("keys")).unwrap();
    let ByGrub { files, disk, booted } = by_grub(&place, DebianRelease::Bookworm, KernelOn::BootPartition, Some(&keys));
    assert!(booted.measured.log.is_some());
    let prediction = Predicted::new("on", &files.arguments());
    prediction.is(&booted.measured, &[4, 8, 9]);
    let of_disk = Predicted::from_disk(&disk, Some(&keys));
    let whats: Vec<&str> = of_disk.events(4).iter().map(|event| event.what).collect();
    assert_eq!(whats, ["image BOOTX64.EFI", "image grubx64.efi", "image vmlinuz"]);
    of_disk.is_among(&booted.measured, 4, &whats, "the boot loader decides which of these it measures");
    of_disk.is_among(&booted.measured, 9, &["file kernel", "file initrd"], "are not on its file system");
    of_disk.is_among(&booted.measured, 8, &[], "are not on its file system");
    of_disk.is_among(&booted.measured, 7, &[], "shim measures its SBAT level");

    // Pools that accept the same, but for one thing.
    let judge = Judge::new(&place.authority);
    let (kernel, line) = (place.path().join("other-vmlinuz"), place.path().join("other-grub.cfg"));
    keys.accepted()
        .sign(&Images::firmware(DebianRelease::Trixie).unwrap().kernel(), &kernel)
        .unwrap();
    let other_line = format!("{} debug", place.command_line());
    fs::write(&line, config(KernelOn::BootPartition, &other_line)).unwrap();
    let by = |signer: &SelfSignedKey, values: Value| signed_by(values, &[signer.certificate()], &[DEBIAN_SECURE_BOOT_CA]);
    let values = |name: &str, other: &[(&str, &Path)]| by(keys.accepted(), grub_values(&judge, name, &files, other));
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
        Case {
            rules: &["secure-boot", "images"],
            ..case(
                "disk",
                judge.predicted("the disk", &[("--disk", disk.image())], "on"),
                Expect::Trusted,
            )
        },
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
                ["file, initrd or command line", "; the node names it \"/initrd.img\""],
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
        case(
            "key",
            by(keys.other(), grub_values(&judge, "a key", &files, &[])),
            not_by(keys.accepted(), "a key"),
        ),
    ];
    judge.judge(&booted, &cases);
}

#[test]
fn grub_2_06_starts_the_kernel_without_firmware() {
    let place = Place::new();
    let ByGrub { disk, booted, .. } = by_grub(&place, DebianRelease::Bookworm, KernelOn::SystemPartition, None);
    // The kernel never sees the firmware, and so gets no event log from it.
    assert!(booted.measured.log.is_none());
    Predicted::from_disk(&disk, None).is(&booted.measured, &[4, 7, 8, 9]);
    let rules = &["secure-boot"];
    let expect = Expect::Refused {
        code: "event-log-missing",
        said: "the node sent no event log".to_owned(),
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
fn grub_2_12_starts_the_kernel_through_firmware() {
    let place = Place::new();
    let ByGrub { disk, booted, .. } = by_grub(&place, DebianRelease::Trixie, KernelOn::SystemPartition, None);
    assert!(booted.measured.log.is_some());
    Predicted::from_disk(&disk, None).is(&booted.measured, &[4, 7, 8, 9]);
    let judge = Judge::new(&place.authority);
    let values = judge.predicted("this disk", &[("--disk", disk.image())], "off");
    judge.judge_without_secure_boot(&booted, values, &["images", "grub", "files"]);
}
