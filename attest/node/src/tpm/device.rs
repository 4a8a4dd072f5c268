//! Whether the kernel has a TPM, and whether its device node is there yet.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::TpmError;

/// The kernel's resource manager: it makes room for objects by itself, and cleans up after a process.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";

/// Where the kernel lists the TPMs whose driver is bound.
const TPM_CLASS: &str = "/sys/class/tpm";
/// The drivers of TPMs on a PC's firmware interfaces (TCG PC Client PTP): FIFO and CRB.
const DRIVERS: [&str; 2] = ["tpm_crb", "tpm_tis"];
/// How long a device node may take to appear once the driver is bound: udev and devtmpfs are done in milliseconds.
const DEVICE_NODE_WAIT: Duration = Duration::from_secs(3);
/// How often to look for it.
const DEVICE_NODE_POLL: Duration = Duration::from_millis(50);

/// Returns once the device of a `device:` TCTI is there; loads the drivers if no TPM has one. Other TCTIs are not looked at.
///
/// # Errors
/// [`TpmError::Absent`], [`TpmError::Version12`].
pub fn ready(tcti: &str) -> Result<(), TpmError> {
    let Some(path) = tcti.strip_prefix("device:").map(Path::new) else {
        return Ok(());
    };
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
    let until = Instant::now() + DEVICE_NODE_WAIT;
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

/// Loads a kernel module if it can be loaded; what counts is whether its device is there afterwards.
pub fn load(module: &str) {
    let _ = Command::new("modprobe")
        .args(["-q", module])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
