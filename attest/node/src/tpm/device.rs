//! Checks whether the kernel has a TPM, and whether its device node exists yet.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::TpmError;
use crate::console;
use crate::deadline::{Backoff, Deadline};

/// The kernel's resource manager: it makes room for objects by itself, and cleans up after a process.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// The firmware's table of a TPM, as the kernel shows it (TCG ACPI Specification, "TPM2"). It is there before the driver is bound.
const FIRMWARE_TABLE: &str = "/sys/firmware/acpi/tables/TPM2";
/// Folder in which the kernel lists the TPMs with a bound driver.
const TPM_CLASS: &str = "/sys/class/tpm";
/// The drivers of TPMs on a PC's firmware interfaces (TCG PC Client PTP): FIFO and CRB.
const DRIVERS: [&str; 2] = ["tpm_crb", "tpm_tis"];
/// Time limit for a device node to appear once the driver is bound: udev and devtmpfs are done in milliseconds.
const DEVICE_NODE_WAIT: Duration = Duration::from_secs(3);
/// Interval between checks for it.
const DEVICE_NODE_POLL: Duration = Duration::from_millis(50);

/// Waits for the device of a `device:` TCTI. Loads the drivers if no TPM has one, and waits until the deadline if the firmware announces a
/// TPM. Other TCTIs are not checked.
///
/// # Errors
/// [`TpmError::Absent`], [`TpmError::Version12`], [`TpmError::NoDevice`].
pub fn ready(tcti: &str, deadline: Deadline) -> Result<(), TpmError> {
    match tcti.strip_prefix("device:").map(Path::new) {
        Some(path) => wait(path, Path::new(FIRMWARE_TABLE), deadline, || probe(path, deadline), thread::sleep),
        None => Ok(()),
    }
}

fn wait(
    path: &Path,
    announcement: &Path,
    deadline: Deadline,
    look: impl Fn() -> Result<(), TpmError>,
    mut sleep: impl FnMut(Duration),
) -> Result<(), TpmError> {
    let begun = Instant::now();
    let (mut backoff, mut is_said) = (Backoff::default(), false);
    loop {
        match look() {
            Err(TpmError::Absent { .. }) if path.starts_with("/dev") && announcement.exists() => {}
            result => return result,
        }
        let path = path.display();
        match backoff.pause(deadline) {
            Some(pause) => {
                if !is_said {
                    is_said = true;
                    console::print_line(&format!(
                        "waiting for the TPM for at most {} s: the firmware announces one, but {path} does not exist yet",
                        deadline.remaining().as_secs()
                    ));
                }
                sleep(pause);
            }
            None => {
                return Err(TpmError::NoDevice {
                    path: path.to_string(),
                    waited: begun.elapsed(),
                });
            }
        }
    }
}

/// Looks for a device once, with the time that udev needs and the deadline leaves.
fn probe(path: &Path, deadline: Deadline) -> Result<(), TpmError> {
    if path.exists() {
        return Ok(());
    }
    let absent = || TpmError::Absent {
        path: path.display().to_string(),
    };
    if !path.starts_with("/dev") {
        return Err(absent());
    }
    if !any_tpm() {
        DRIVERS.into_iter().for_each(load);
    }
    let until = Instant::now() + DEVICE_NODE_WAIT.min(deadline.remaining());
    while any_tpm() && Instant::now() < until {
        if path.exists() {
            return Ok(());
        }
        if version_12() {
            return Err(TpmError::Version12);
        }
        thread::sleep(DEVICE_NODE_POLL);
    }
    if path.exists() { Ok(()) } else { Err(absent()) }
}

fn any_tpm() -> bool {
    Path::new(TPM_CLASS).read_dir().is_ok_and(|mut entries| entries.next().is_some())
}

fn version_12() -> bool {
    std::fs::read_to_string(Path::new(TPM_CLASS).join("tpm0/tpm_version_major")).is_ok_and(|major| major.trim() == "1")
}

/// Loads a kernel module, and ignores errors: the caller checks for its device afterwards.
pub fn load(module: &str) {
    let _ = Command::new("modprobe")
        .args(["-q", module])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Waits for a device that appears during the pause of this number, with a firmware that announces a TPM or not. Returns the result and the number of pauses.
    fn check(is_announced: bool, appears_at: Option<usize>, deadline: Duration) -> (Result<(), TpmError>, usize) {
        // `wait` looks for announced devices below /dev only.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (device, announcement) = (folder.path().join("tpmrm0"), folder.path().join("TPM2"));
        if is_announced {
            std::fs::write(&announcement, b"TPM2").unwrap();
        }
        let mut pauses = 0;
        let look = || match device.exists() {
            true => Ok(()),
            false => Err(TpmError::Absent { path: String::new() }),
        };
        let result = wait(&device, &announcement, Deadline::after(deadline), look, |_| {
            pauses += 1;
            if Some(pauses) == appears_at {
                std::fs::write(&device, b"").unwrap();
            }
        });
        (result, pauses)
    }

    #[test]
    fn waits_for_a_device_that_the_firmware_announces() {
        let minute = Duration::from_secs(60);
        assert_eq!(check(true, Some(1), minute), (Ok(()), 1));
        assert_eq!(check(true, Some(3), minute), (Ok(()), 3));
        let (never, pauses) = check(true, None, Duration::ZERO);
        assert!(matches!(never, Err(TpmError::NoDevice { .. })) && pauses == 0, "{never:?}");
        let (absent, pauses) = check(false, Some(1), minute);
        assert!(matches!(absent, Err(TpmError::Absent { .. })) && pauses == 0, "{absent:?}");
    }
}
