//! KVM or emulation: decided by running a guest, not by looking at `/dev/kvm`.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;

use crate::images::Images;
use crate::programs::repository;
use crate::qemu::Vm;

/// A guest under working KVM is up in one second. There are machines with a `/dev/kvm` on which it never is.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Executor of the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's processor, through `/dev/kvm`.
    Kvm,
    /// Emulation by QEMU's code generator.
    Tcg,
}

impl Accelerator {
    /// Returns the best accelerator that works here; the probe's result is kept until the machine's next boot.
    pub fn detect(images: &Images) -> Self {
        static DETECTED: OnceLock<Accelerator> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::remembered().unwrap_or_else(|| Self::probe(images)))
    }

    /// Returns QEMU's arguments for this accelerator and the guest's processor.
    #[must_use]
    pub fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // Nothing else taken away from "max": QEMU 7.2 emulates "max,-svm" wrongly, and the guest's programs abort. These two only say
            // that copying and clearing byte by byte is fast ("rep movsb", "rep stosb"), which an emulated processor does byte by byte.
            Self::Tcg => ["-accel", "tcg", "-cpu", "max,-erms,-fsrm"],
        }
    }

    /// Returns the guest kernel's arguments for this accelerator.
    #[must_use]
    pub fn kernel_arguments(self) -> &'static str {
        match self {
            Self::Kvm => "",
            // Emulated, clearing memory costs most where a page held code, because each store looks for it: so it is done in large pieces,
            // and not for what is written anyway. A program and its libraries are at the same addresses each time, so that what was
            // translated once is found again: a quarter of a boot with systemd. And the clock is not the TSC: the kernel finds out how fast
            // that is in some milliseconds, in which a loaded host may not run the guest at all; then all its time runs ten times too fast.
            Self::Tcg => "clearcpuid=rep_good init_on_alloc=0 norandmaps tsc=reliable clocksource=acpi_pm",
        }
    }

    /// Returns the name for people: `KVM` or `TCG`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    fn remembered() -> Option<Self> {
        let text = fs::read_to_string(repository().join("build/accelerator")).ok()?;
        let (boot, name) = text.trim().split_once(' ')?;
        (boot == boot_id()).then_some(())?;
        [Self::Kvm, Self::Tcg].into_iter().find(|accelerator| accelerator.name() == name)
    }

    fn probe(images: &Images) -> Self {
        let works = Path::new("/dev/kvm").exists() && probe_guest(images).is_ok();
        let accelerator = if works { Self::Kvm } else { Self::Tcg };
        // Without the file the next process probes again.
        let _ = fs::write(
            repository().join("build/accelerator"),
            format!("{} {}\n", boot_id(), accelerator.name()),
        );
        accelerator
    }
}

fn probe_guest(images: &Images) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let vm = Vm::builder(&images.kernel(), &images.plain_initrd())
        .accelerator(Accelerator::Kvm)
        .kernel_argument("probe")
        .start(folder.path())?;
    vm.console().wait_line(PROBE_LIMIT, |line| line == "@@ probe").map(|_| ())
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
