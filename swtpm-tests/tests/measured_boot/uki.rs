//! Unified kernel images, started by systemd-boot of two releases, with Secure Boot and without: predicted, booted, and compared with
//! pools.

use std::path::{Path, PathBuf};
use std::process::Command;

use attest::HashAlg;
use swtpm_tests::firmware::loaders::{make_uki, systemd_boot};
use swtpm_tests::firmware::{BootDisk, SecureBootKeys};
use swtpm_tests::{DebianRelease, Images, run};

use super::predicted::{Predicted, with_keys};
use super::verdicts::{Case, Expect, IMAGE, Judge, SECTION, not_accepted, not_by, signed_by};
use super::{Booted, Place, record_keys};

impl Place {
    /// Makes a unified kernel image of that release's stub and kernel.
    fn uki(&self, release: DebianRelease) -> PathBuf {
        let kernel = Images::firmware(release).unwrap().kernel();
        make_uki(release, &kernel, &self.images.measured_initrd(), &self.command_line(), self.path()).unwrap()
    }
}

fn predict_uki(image: &Path, secure_boot: &str) -> Predicted {
    Predicted::new(secure_boot, &[("--uki", image)])
}

#[test]
fn a_signed_uki_measures_the_predicted_values() {
    let place = Place::new();
    let keys = SecureBootKeys::new(&place.path().join("keys")).unwrap();
    let path = |name: &str| place.path().join(name);
    let (image, signed, loader) = (place.uki(DebianRelease::Bookworm), path("signed.efi"), path("systemd-bootx64.efi"));
    keys.accepted().sign(&image, &signed).unwrap();
    keys.accepted()
        .sign(&systemd_boot(DebianRelease::Bookworm).unwrap(), &loader)
        .unwrap();
    let disk = BootDisk::systemd_boot(&loader, &signed, place.path()).unwrap();
    let prediction = Predicted::from_disk(&disk, Some(&keys));
    let booted = place.boot("systemd-boot-252-secure-boot", Some(&keys), &disk);
    record_keys(&keys);
    prediction.is(&booted.measured, &[4, 7, 9, 11, 12, 13]);

    // What is changed in the image is seen in the digest of that part, and in the image's. (That differs anyway: objcopy writes the time into it.)
    let before = predict_uki(&image, "on");
    let changed = |kernel: &Path, initrd: &Path, line: &str, expected: &[(u64, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let image = make_uki(DebianRelease::Bookworm, kernel, initrd, line, folder.path()).unwrap();
        assert_eq!(before.differences(&predict_uki(&image, "on")), expected);
    };
    let (kernel, initrd, line) = (place.images.kernel(), place.images.measured_initrd(), place.command_line());
    let image = (4, "image unified kernel image");
    let other = Images::firmware(DebianRelease::Trixie).unwrap().kernel();
    changed(&other, &initrd, &line, &[image, (11, "section .linux")]);
    changed(&kernel, &other, &line, &[image, (11, "section .initrd"), (9, "initrd")]);
    let before = format!("command line \"{line}\"");
    changed(
        &kernel,
        &initrd,
        &format!("{line} debug"),
        &[image, (11, "section .cmdline"), (9, &before)],
    );
    verdicts(&place, &keys, [&loader, &signed], &prediction, &booted);
}

/// Returns pools that accept the image that was booted, or the same with one difference.
fn verdicts(place: &Place, keys: &SecureBootKeys, [loader, signed]: [&Path; 2], prediction: &Predicted, booted: &Booted) {
    let judge = Judge::new(&place.authority);
    let values = |name: &str, image: &Path| {
        let keys = keys.arguments();
        let files = [with_keys(("--uki", image), &keys), vec![("--loader", loader)]].concat();
        judge.predicted(name, &files, "on")
    };
    // Another image, and its values.
    let other = |name: &str, kernel: &Path, initrd: &Path, line: &str| {
        let folder = tempfile::tempdir().unwrap();
        let image = make_uki(DebianRelease::Bookworm, kernel, initrd, line, folder.path()).unwrap();
        values(name, &image)
    };
    let (kernel, initrd, line) = (place.images.kernel(), place.images.measured_initrd(), place.command_line());
    let other_kernel = Images::firmware(DebianRelease::Trixie).unwrap().kernel();
    let (by_image, by_section): (&[&str], &[&str]) = (
        &["secure-boot", "authorities", "images", "uki-sections", "kernel-config", "files"],
        &["secure-boot", "authorities", "uki-sections", "kernel-config", "files"],
    );
    let case = |pool, rules, values, expect| Case {
        pool,
        rules,
        values: Some(values),
        expect,
    };
    let another_kernel = other("a kernel", &other_kernel, &initrd, &line);
    let cases = [
        case("same", by_image, values("same", signed), Expect::Trusted),
        case(
            "image",
            by_image,
            another_kernel.clone(),
            not_accepted(prediction, 4, "image unified", [IMAGE, ""], "a kernel"),
        ),
        case(
            "kernel",
            by_section,
            another_kernel,
            not_accepted(prediction, 11, "section .linux", [SECTION, " (.linux)"], "a kernel"),
        ),
        case(
            "initrd",
            by_section,
            other("an initrd", &kernel, &other_kernel, &line),
            not_accepted(prediction, 11, "section .initrd", [SECTION, " (.initrd)"], "an initrd"),
        ),
        case(
            "line",
            by_section,
            other("a line", &kernel, &initrd, &format!("{line} debug")),
            not_accepted(prediction, 11, "section .cmdline", [SECTION, " (.cmdline)"], "a line"),
        ),
        case(
            "key",
            by_section,
            signed_by(values("a key", signed), &[keys.other().certificate()], &[]),
            not_by(keys.accepted(), "a key"),
        ),
    ];
    judge.judge(booted, &cases);
}

#[test]
fn a_uki_without_secure_boot_measures_its_kernel() {
    let place = Place::new();
    let loader = systemd_boot(DebianRelease::Trixie).unwrap();
    let disk = BootDisk::systemd_boot(&loader, &place.uki(DebianRelease::Trixie), place.path()).unwrap();
    let prediction = Predicted::from_disk(&disk, None);
    let booted = place.boot("systemd-boot-257", None, &disk);
    prediction.is(&booted.measured, &[4, 7, 9, 11, 12, 13]);
    let judge = Judge::new(&place.authority);
    let values = judge.predicted("this image", &[("--disk", disk.image())], "off");
    judge.judge_without_secure_boot(&booted, values, &["images", "uki-sections", "kernel-config", "files"]);
}

/// Compares with systemd's own program, for the same sections.
fn by_systemd_measure(release: DebianRelease) {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::firmware(release).unwrap();
    let image = make_uki(release, &images.kernel(), &images.measured_initrd(), "quiet", folder.path()).unwrap();
    let mut measure = images.systemd_measure();
    measure.args(["calculate", "--bank=sha256"]);
    for (section, file) in [
        ("linux", images.kernel()),
        ("initrd", images.measured_initrd()),
        ("cmdline", folder.path().join("cmdline")),
        ("osrel", folder.path().join("os-release")),
    ] {
        measure.arg(format!("--{section}={}", file.display()));
    }
    if release == DebianRelease::Trixie {
        // Of the stub itself, and measured by this release.
        let sbat = folder.path().join("sbat");
        let mut objcopy = Command::new("objcopy");
        run(objcopy
            .args(["--output-target=binary", "--only-section=.sbat"])
            .args([&image, &sbat]))
        .unwrap();
        measure.arg(format!("--sbat={}", sbat.display()));
    }
    let said = run(&mut measure).unwrap();
    let found: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("11:sha256=")).collect();
    let prediction = predict_uki(&image, "on");
    let after = prediction
        .values(11, HashAlg::Sha256)
        .filter(|(when, _)| when.starts_with("after "));
    let expected: Vec<&str> = after.map(|(_, value)| value).collect();
    assert_eq!(found, expected, "{said}");
}

#[test]
fn pcr_11_prediction_matches_systemd_measure() {
    by_systemd_measure(DebianRelease::Bookworm);
    by_systemd_measure(DebianRelease::Trixie);
}
