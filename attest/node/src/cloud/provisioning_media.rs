//! Azure's custom data: a file on the virtual CD that each virtual machine has at its first boot.
//!
//! Ignition reads it there if the machine has no user data. So does this program ([`crate::disk`]).

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::deadline::Deadline;
use crate::disk;
use crate::failure::printable;
use crate::pointer::POINTER_LIMIT_BYTES;
use crate::tpm::device;

use super::CloudError;

/// The optical drives as the kernel names them. A virtual machine has one, of Hyper-V's or of a later generation.
const DRIVES: [&str; 2] = ["/dev/sr0", "/dev/sr1"];
/// The file system of the CD, and the kernel's module for it.
const FILE_SYSTEM: &str = "udf";
/// The module of the drives.
const DRIVE_MODULE: &str = "sr_mod";
/// File that identifies the provisioning CD.
const MARK: &str = "ovf-env.xml";
/// The custom data on it.
const CUSTOM_DATA: &str = "CustomData.bin";
/// Path of the temporary mount.
const MOUNT_POINT: &str = "/run/attest-node-provisioning";
/// Time limit for the drive to appear. Ignition waits for ever; this program's user must not.
const APPEAR_LIMIT: Duration = Duration::from_secs(10);
/// Interval between checks for the drive.
const POLL: Duration = Duration::from_millis(500);

/// The custom data; `None` if the CD has none.
///
/// # Errors
/// [`CloudError::ProvisioningMedia`].
pub fn custom_data(deadline: Deadline) -> Result<Option<Zeroizing<Vec<u8>>>, CloudError> {
    [DRIVE_MODULE, FILE_SYSTEM].into_iter().for_each(device::load);
    let until = deadline.at_most(APPEAR_LIMIT);
    let drives = DRIVES.map(PathBuf::from);
    loop {
        let found = first(&drives, Path::new(MOUNT_POINT), &MountPrograms);
        match found {
            Ok(custom_data) => return Ok(custom_data),
            Err(_) if until.remaining() > POLL => thread::sleep(POLL),
            Err(problem) => return Err(CloudError::ProvisioningMedia(printable(&problem))),
        }
    }
}

/// Mounts and unmounts a drive.
trait Mounts {
    fn mount(&self, drive: &Path, at: &Path) -> io::Result<()>;
    fn unmount(&self, at: &Path);
}

struct MountPrograms;

impl Mounts for MountPrograms {
    fn mount(&self, drive: &Path, at: &Path) -> io::Result<()> {
        disk::mount(drive, at, Some(FILE_SYSTEM), true)
    }

    fn unmount(&self, at: &Path) {
        disk::unmount(at);
    }
}

/// The custom data on the first drive that has the provisioning CD.
fn first(drives: &[PathBuf], mount_point: &Path, mounts: &impl Mounts) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
    let mut problems = Vec::new();
    for drive in drives {
        if !drive.exists() {
            problems.push(format!("{} does not exist", drive.display()));
            continue;
        }
        match on_drive(drive, mount_point, mounts) {
            Ok(custom_data) => return Ok(custom_data),
            Err(error) => problems.push(format!("{}: {error}", drive.display())),
        }
    }
    Err(problems.join("; "))
}

fn on_drive(drive: &Path, mount_point: &Path, mounts: &impl Mounts) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    match DirBuilder::new().mode(0o700).create(mount_point) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let read = mounts.mount(drive, mount_point).and_then(|()| {
        let read = custom_data_in(mount_point);
        mounts.unmount(mount_point);
        read
    });
    // Stays if something is mounted there still.
    let _ = fs::remove_dir(mount_point);
    read
}

fn custom_data_in(folder: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    if !folder.join(MARK).is_file() {
        return Err(io::Error::new(ErrorKind::NotFound, format!("it has no {MARK}")));
    }
    let file = match File::open(folder.join(CUSTOM_DATA)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let limit = u64::try_from(POINTER_LIMIT_BYTES).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    // A pointer that is too long is said to be so where pointers are read.
    Ok((!bytes.trim_ascii().is_empty()).then_some(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Puts files into the mount point in place of a file system, and removes them.
    struct Files(&'static [(&'static str, &'static str)]);

    impl Mounts for Files {
        fn mount(&self, _: &Path, at: &Path) -> io::Result<()> {
            if self.0.is_empty() {
                return Err(io::Error::other("no medium"));
            }
            self.0.iter().for_each(|(name, content)| fs::write(at.join(name), content).unwrap());
            Ok(())
        }

        fn unmount(&self, at: &Path) {
            self.0.iter().for_each(|(name, _)| fs::remove_file(at.join(name)).unwrap());
        }
    }

    fn check(drives: &[&str], files: &'static [(&'static str, &'static str)], expect: Result<Option<&str>, &str>) {
        let folder = tempfile::tempdir().unwrap();
        let drives: Vec<PathBuf> = drives.iter().map(|name| folder.path().join(name)).collect();
        fs::write(folder.path().join("sr0"), "").unwrap();
        let mount_point = folder.path().join("mnt");
        let found = first(&drives, &mount_point, &Files(files));
        match expect {
            Ok(text) => assert_eq!(
                found.unwrap().map(|bytes| bytes.to_vec()),
                text.map(|text| text.as_bytes().to_vec())
            ),
            Err(part) => assert!(found.unwrap_err().contains(part)),
        }
        assert!(!mount_point.exists());
    }

    #[test]
    fn custom_data_is_on_the_provisioning_cd() {
        check(&["sr0"], &[(MARK, "<x/>"), (CUSTOM_DATA, "{}")], Ok(Some("{}")));
        check(&["none", "sr0"], &[(MARK, "<x/>"), (CUSTOM_DATA, "{}")], Ok(Some("{}")));
        check(&["sr0"], &[(MARK, "<x/>")], Ok(None));
        check(&["sr0"], &[(MARK, "<x/>"), (CUSTOM_DATA, "\n")], Ok(None));
        check(&["sr0"], &[(CUSTOM_DATA, "{}")], Err("sr0: it has no ovf-env.xml"));
        check(&["sr0"], &[], Err("sr0: no medium"));
        check(&["none"], &[(MARK, "<x/>")], Err("none does not exist"));
        check(&[], &[], Err(""));
    }
}
