//! Debian's own Secure Boot chain, as its packages have it: shim that Microsoft has signed, GRUB and a kernel that Debian has signed, under Microsoft's keys.
//! No value is predicted for its images of GRUB. The digests of images, files and commands that are printed are measured, and a pool that lists them takes the
//! machine.

use std::fs;

use swtpm_tests::DebianRelease;
use swtpm_tests::firmware::boot_disk::GrubFiles;
use swtpm_tests::firmware::{BootDisk, Firmware};

use super::predicted::{Predicted, logged};
use super::verdicts::{Case, Expect, Judge};
use super::{BANKS, Booted, Place};

/// Machine that has booted a release's packages.
struct Debian {
    files: GrubFiles,
    disk: BootDisk,
    booted: Booted,
    place: Place,
}

fn boot(release: DebianRelease) -> Debian {
    let place = Place::for_release(release);
    let files = GrubFiles {
        shim: Some(place.images.firmware_file("usr/lib/shim/shimx64.efi.signed")),
        grub: place.images.firmware_file("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"),
        config: place.path().join("grub.cfg"),
        kernel: place.images.signed_kernel(),
        initrd: place.images.measured_initrd(),
    };
    let line = place.command_line();
    fs::write(
        &files.config,
        format!("set timeout=0\nlinux /vmlinuz {line}\ninitrd /initrd.img\nboot\n"),
    )
    .unwrap();
    let disk = BootDisk::debian(&files, place.path()).unwrap();
    let firmware = Firmware::with_microsoft_keys(release, place.path()).unwrap();
    let booted = place.boot_by(&format!("debian-{}", release.name()), &firmware, &disk);
    Debian {
        files,
        disk,
        booted,
        place,
    }
}

impl Debian {
    /// Verifies that each digest that is predicted of the files and of the disk was measured, and that each predicted value is in the TPM.
    #[track_caller]
    fn is_listed(&self, why: &str, stub: bool) -> Predicted {
        let of_files = Predicted::new("on", &self.files.arguments());
        let of_disk = Predicted::from_disk_without_keys("on", &self.disk);
        let commands = [
            "command \"set timeout=0\"",
            "command \"linux /vmlinuz ",
            "command line \"/vmlinuz ",
            "command \"initrd /initrd.img\"",
            "command \"boot\"",
        ];
        let files = ["file grub.cfg", "file kernel", "file initrd"];
        let stubs: &[&str] = if stub {
            &["command line \"BOOT_IMAGE=/vmlinuz ", "initrd"]
        } else {
            &[]
        };
        let measured = &self.booted.measured;
        of_files.is_among(measured, 4, &["image shim", "image GRUB", "image kernel"], why);
        of_files.is_among(measured, 8, &commands, why);
        of_files.is_among(measured, 9, &[&files[..], stubs].concat(), why);
        of_disk.is_among(measured, 4, &["image BOOTX64.EFI", "image grubx64.efi", "image vmlinuz"], why);
        of_disk.is_among(measured, 8, &commands, why);
        of_disk.is_among(measured, 9, &files[..2], why);
        for prediction in [&of_files, &of_disk] {
            prediction.has_no_wrong_value(measured);
        }
        of_files
    }

    /// Verifies that a pool with the predicted values of the files accepts the machine.
    #[track_caller]
    fn is_accepted_by(&self, rules: &[&str]) {
        let judge = Judge::new(&self.place.authority);
        let values = judge.predicted("debian", &self.files.arguments(), "on");
        let case = Case {
            pool: "debian",
            rules,
            values: Some(values),
            expect: Expect::Trusted,
        };
        judge.judge(&self.booted, &[case]);
    }

    /// Returns the measurements of a PCR, the same in both banks, as positions in the predicted list of digests; `None` for any other
    /// digest.
    fn places(&self, pcr: u8, prediction: &Predicted) -> Vec<Option<usize>> {
        let events = prediction.events(pcr);
        let of_bank = BANKS.map(|bank| {
            let measured = logged(&self.booted.measured, pcr, bank).unwrap();
            let place = |digest: &String| events.iter().position(|event| event.digest(bank) == digest);
            measured.iter().map(place).collect::<Vec<_>>()
        });
        let [first, second] = of_bank;
        assert_eq!(first, second);
        first
    }
}

/// The commands of the config in the image come first: therefore PCR 8 has no predicted value.
#[test]
fn debian_12_measures_listed_digests_and_image_commands() {
    let debian = boot(DebianRelease::Bookworm);
    let prediction = debian.is_listed("a memory disk", false);
    let own_config = [None; 4];
    let config = (0..5).map(Some).collect::<Vec<_>>();
    assert_eq!(debian.places(8, &prediction), [&own_config[..], &config].concat());
    // A boot option, a separator; the kernel twice.
    assert_eq!(debian.places(4, &prediction), [None, None, Some(0), Some(1), Some(2), Some(2)]);
    debian.is_accepted_by(&["secure-boot", "images", "files"]);
}

/// Shim measures the kernel once, and the firmware does not.
#[test]
fn debian_13_measures_listed_digests() {
    let debian = boot(DebianRelease::Trixie);
    let prediction = debian.is_listed("a memory disk", true);
    assert_eq!(debian.places(8, &prediction), (0..5).map(Some).collect::<Vec<_>>());
    assert_eq!(debian.places(4, &prediction), [None, None, Some(0), Some(1), Some(2)]);
    debian.is_accepted_by(&["secure-boot", "images", "grub", "files"]);
}
