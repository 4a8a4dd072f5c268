//! Number of the gateway's calls that flush files to the disk, counted by strace.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Gateway, program};

/// System calls that wait for a disk.
const CALLS: &str = "trace=fsync,fdatasync,sync,syncfs,sync_file_range,msync";

/// Output of strace, a line for each call.
pub struct Syncs(PathBuf);

impl Syncs {
    /// Starts the gateway under strace, if that is installed and permitted.
    pub fn watch(gateway: &mut Gateway) -> Option<Self> {
        let tried = Command::new("strace")
            .args(["-f", "--seccomp-bpf", "-e", CALLS, "true"])
            .stderr(Stdio::null())
            .status();
        if !tried.is_ok_and(|status| status.success()) {
            return None;
        }
        let file = gateway.path("syncs");
        let mut command = Command::new("strace");
        // It stands aside (-D), so that the process that is started is the gateway, and sees nothing but these calls.
        command
            .args(["-D", "-q", "-f", "--seccomp-bpf", "-e", CALLS, "-e", "signal=none", "-o"])
            .arg(&file);
        command
            .arg(program().get_program())
            .arg("serve")
            .arg("--config")
            .arg(gateway.path("gateway.toml"));
        gateway.run_as(command);
        Some(Self(file))
    }

    /// Returns the number of calls so far.
    pub fn count(&self) -> u64 {
        let text = fs::read_to_string(&self.0).unwrap();
        // One that another thread's interrupts has two lines.
        let begun = text.lines().filter(|line| line.contains("sync") && !line.contains("resumed>"));
        u64::try_from(begun.count()).unwrap()
    }
}
