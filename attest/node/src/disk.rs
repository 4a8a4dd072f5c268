//! Filesystems by label: found by udev, mounted for a moment by the programs that each initramfs of systemd's has.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::delivery::has_own_mounts;
use crate::failure::printable;

/// Folder in which udev links filesystems by their label.
const BY_LABEL: &str = "/dev/disk/by-label";
/// Time limit for udev, as an argument of `udevadm settle`.
const SETTLE_LIMIT: &str = "--timeout=10";
/// Time limit for a read-only mount by another process, before the write is given up: the kernel refuses to have both.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
/// Interval between attempts to mount.
const POLL: Duration = Duration::from_millis(250);
/// Mount command with a restrictive umask, so that a filesystem without modes (the EFI system partition's) is readable by its owner only.
const MOUNT: &str = "umask 077; exec mount \"$@\"";

/// Files that only the initramfs of a live system has: Fedora CoreOS and RHEL CoreOS (`is-live-image.sh`), and Flatcar
/// (`ignition-generator`).
const LIVE: [&str; 2] = ["/etc/coreos-live-initramfs", "/usr.squashfs"];

/// Operations on the node's disks.
pub trait Disks {
    /// Returns whether this system runs from memory, by itself or by PXE. The disks are then another system's, and no kernel arguments can
    /// be changed.
    fn are_anothers(&self) -> bool;
    /// Returns whether a filesystem with this label exists.
    fn exists(&self, label: &str) -> bool;
    /// Waits until udev has processed pending devices.
    fn settle(&self);
    /// Returns whether this program's mounts are invisible to other processes.
    fn are_its_own(&self) -> bool;
    /// Calls `work` on the filesystem with this label, which is mounted for no longer than that.
    ///
    /// # Errors
    /// The operating system's error.
    fn with<T>(&self, label: &str, at: &Path, read_only: bool, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T>;
}

/// Disk access by `udevadm`, `mount` and `umount`.
#[derive(Debug, Clone, Copy)]
pub struct DiskPrograms;

impl Disks for DiskPrograms {
    fn are_anothers(&self) -> bool {
        LIVE.iter().any(|file| Path::new(file).exists())
    }

    fn exists(&self, label: &str) -> bool {
        device(label).exists()
    }

    fn settle(&self) {
        let mut settle = Command::new("udevadm");
        // Where it is not, there is nothing to wait for.
        let _ = quiet(settle.args(["settle", SETTLE_LIMIT])).status();
    }

    fn are_its_own(&self) -> bool {
        has_own_mounts()
    }

    fn with<T>(&self, label: &str, at: &Path, read_only: bool, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        match DirBuilder::new().mode(0o700).create(at) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let done = mount(&device(label), at, None, read_only).and_then(|()| {
            let done = work(at);
            unmount(at);
            done
        });
        // Stays if something is mounted there still, and so nothing else is removed.
        let _ = fs::remove_dir(at);
        done
    }
}

fn device(label: &str) -> PathBuf {
    Path::new(BY_LABEL).join(label)
}

/// Mounts a device. Without the name of a filesystem, `mount` finds out which one it is.
///
/// # Errors
/// What `mount` says.
pub(crate) fn mount(device: &Path, at: &Path, filesystem: Option<&str>, read_only: bool) -> io::Result<()> {
    let until = Instant::now() + BUSY_LIMIT;
    let mode = if read_only { "ro" } else { "rw" };
    loop {
        let output = Command::new("sh")
            .args(["-c", MOUNT, "mount", "-o", &format!("{mode},nosuid,nodev,noexec")])
            .args(filesystem.iter().flat_map(|name| ["-t", name]))
            .args([device, at])
            .stdin(Stdio::null())
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let is_busy = said.contains("busy") || said.contains("already mounted");
        // Who only wants to look does not wait for who writes.
        if read_only || !is_busy || Instant::now() >= until {
            return Err(io::Error::other(printable(&said)));
        }
        thread::sleep(POLL);
    }
}

/// Unmounts, at the latest with the last process that uses the mount.
pub(crate) fn unmount(at: &Path) {
    // What was written is on the disk. If something holds the mount, it is gone with this program's mounts.
    let unmounted = quiet(Command::new("umount").arg(at)).status();
    if !unmounted.is_ok_and(|status| status.success()) {
        // Not --lazy: busybox knows the short form only.
        let _ = quiet(Command::new("umount").arg("-l").arg(at)).status();
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn missing_label_mounts_nothing_and_leaves_no_directory() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().join("at");
        assert!(!DiskPrograms.exists("attest-node-no-such-label"));
        for read_only in [true, false] {
            let worked = DiskPrograms.with("attest-node-no-such-label", &at, read_only, |_| Ok(()));
            let error = worked.unwrap_err().to_string();
            assert!(!error.is_empty() && !at.exists(), "{error}");
        }
        // What is in the way stays.
        std::fs::write(&at, "x").unwrap();
        DiskPrograms.with("attest-node-no-such-label", &at, true, |_| Ok(())).unwrap_err();
        assert_eq!(std::fs::read(&at).unwrap(), b"x");
    }
}
