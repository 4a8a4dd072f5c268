//! Boots by real firmware. The gateway's own command predicts the measurements from the files, and from their disk; the machine then
//! measures the same, digest by digest, in both banks. Also the verdicts of a gateway that accepts these files, or others.
#[path = "measured_boot/attesting.rs"]
mod attesting;
#[path = "measured_boot/debian.rs"]
mod debian;
#[path = "measured_boot/grub.rs"]
mod grub;
#[path = "measured_boot/installed.rs"]
mod installed;
#[path = "measured_boot/predicted.rs"]
mod predicted;
#[path = "measured_boot/uki.rs"]
mod uki;
#[path = "measured_boot/verdicts.rs"]
mod verdicts;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::HashAlg;
use swtpm_tests::firmware::{BootDisk, Firmware, MachinePcrs, SecureBootKeys};
use swtpm_tests::{Accelerator, DebianRelease, EkAuthority, Images, Swtpm, TestEndorsement, TestFolder, TpmServer, Vm, command_line};

/// Maximum duration of a boot by firmware and a kernel: some 30 s on an idle machine.
const VM_LIMIT: Duration = Duration::from_secs(180);

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];

/// Folder, kernel and initrd for one machine.
struct Place {
    folder: TestFolder,
    images: Images,
    accelerator: Accelerator,
    authority: EkAuthority,
}

/// Booted machine: its report, and its TPM in the final state.
struct Booted {
    measured: MachinePcrs,
    tpm: TpmServer,
}

impl Place {
    fn new() -> Self {
        Self::for_release(DebianRelease::Bookworm)
    }

    /// Creates a place with the kernel and the initrd of a release.
    fn for_release(release: DebianRelease) -> Self {
        let images = Images::firmware(release).unwrap();
        let folder = TestFolder::new().unwrap();
        Self {
            authority: EkAuthority::new(&folder.path().join("manufacturer")).unwrap(),
            folder,
            accelerator: Accelerator::detect(&Images::fast().unwrap()),
            images,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command_line(&self) -> String {
        command_line(self.accelerator, &["quiet"])
    }

    /// Boots a machine with these keys, or without Secure Boot, until its kernel has reported the measurements.
    fn boot(&self, name: &str, keys: Option<&SecureBootKeys>, disk: &BootDisk) -> Booted {
        self.boot_by(name, &firmware(keys, self.path()), disk)
    }

    /// Boots a machine with this firmware.
    fn boot_by(&self, name: &str, firmware: &Firmware, disk: &BootDisk) -> Booted {
        let tpm = Swtpm::start_with_banks(self.path(), TestEndorsement::By(&self.authority), "sha256,sha384").unwrap();
        let vm = Vm::with_firmware(firmware, &[disk]).accelerator(self.accelerator).tpm(&tpm);
        let vm = vm.start(self.path()).unwrap();
        vm.console().wait_line(VM_LIMIT, |line| line == "@@ end").unwrap();
        let measured = MachinePcrs::parse(&vm.console().lines()).unwrap();
        drop(vm);
        if let Some(folder) = record() {
            measured.record(&folder, name).unwrap();
        }
        let tpm = tpm.taken_out().unwrap();
        Booted { measured, tpm }
    }
}

fn firmware(keys: Option<&SecureBootKeys>, folder: &Path) -> Firmware {
    match keys {
        Some(keys) => Firmware::with_secure_boot(keys, folder),
        None => Firmware::without_secure_boot(folder),
    }
    .unwrap()
}

/// Returns the folder in which boots are recorded, if set (`attest/tests/fixtures/boots/README.md`).
fn record() -> Option<PathBuf> {
    env::var_os("ATTEST_RECORD").map(PathBuf::from)
}

/// Records the keys of the machine that has any.
fn record_keys(keys: &SecureBootKeys) {
    let Some(folder) = record().map(|folder| folder.join("keys")) else {
        return;
    };
    fs::create_dir_all(&folder).unwrap();
    for (name, list) in keys.signature_lists() {
        fs::write(folder.join(format!("{name}.esl")), list).unwrap();
    }
    fs::write(folder.join("signer.der"), keys.accepted().certificate()).unwrap();
}
