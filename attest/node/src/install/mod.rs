//! `attest-node install` and `uninstall`: boot entries of an installed system load this program's initrd in addition to their own.
//!
//! The boot filesystem is one that is mounted ([`filesystem`]), a partition of a disk ([`disk`]), or a partition of an image, which is not
//! mounted ([`image`], [`image_filesystem`]). What changes on it is decided in one place ([`boot_menu`]).

mod boot_menu;
mod disk;
mod entry;
mod filesystem;
mod image;
mod image_filesystem;
mod partitions;
mod programs;
mod report;

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flate2::read::GzDecoder;

use self::boot_menu::{BootMenu, BootMenuChange, BootMenuError, ENTRIES};
use self::disk::{MountedPartition, unmounted_partitions};
use self::filesystem::{BootFilesystem, MountedFilesystem};
use self::image::ImageCopy;
use self::image_filesystem::{ExtFilesystem, FatFilesystem};
use self::partitions::{Partition, partitions};
use self::report::{ChangedTarget, InstalledFilesystem};
use crate::console::print_line;
use crate::failure::{Failure, printable};

/// Largest initrd that is installed, compressed and unpacked, in bytes. One with all libraries has 8 MB and 25 MB.
const INITRD_LIMIT_BYTES: u64 = 128 * 1024 * 1024;
/// First bytes of a cpio archive in the form that the kernel reads (initramfs-buffer-format).
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];
/// File that this program's initrd has, and others have not.
const PROGRAM: &[u8] = b"usr/lib/attest-node/attest-node\0";
/// Filesystems that `mount` is tried with on a disk.
const MOUNTABLE: [&str; 6] = ["ext2", "ext3", "ext4", "vfat", "xfs", "btrfs"];
/// Folder of the boot files on a root filesystem.
const BOOT: &str = "boot";

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct InstallOptions {
    pub target: InstallTarget,
    /// Initrd to install, or nothing to remove an installed one.
    pub initrd: Option<PathBuf>,
    /// Set to print JSON.
    pub json: bool,
}

/// System that boots with the initrd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstallTarget {
    /// Block device with a partition table.
    Disk(PathBuf),
    /// Image of a disk.
    Image(PathBuf),
    /// Mount point of a boot filesystem.
    Boot(PathBuf),
}

impl InstallTarget {
    /// Option and value that name the target.
    fn option(&self) -> (&'static str, &Path) {
        match self {
            Self::Disk(path) => ("--disk", path),
            Self::Image(path) => ("--image", path),
            Self::Boot(path) => ("--boot", path),
        }
    }
}

/// Runs, prints the changes on stdout, and returns 0 if the target is as wanted, and 1 if not.
#[must_use]
pub fn run(settings: &InstallOptions) -> ExitCode {
    let changed = initrd(settings).and_then(|initrd| change(&settings.target, initrd.as_deref()));
    let text = match changed {
        Ok(changed) => report::text(settings, &changed),
        Err(mut failure) => {
            let is_installation = settings.initrd.is_some();
            if !is_installation && failure.code == "install-unsupported" {
                "name the disk, image or boot filesystem on which attest-node is installed".clone_into(&mut failure.next_step);
            }
            let done = if is_installation { "not installed" } else { "not removed" };
            print_line(&format!("{done}: {failure}"));
            return ExitCode::FAILURE;
        }
    };
    match report::print(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("stdout: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the initrd, and checks that it is one of this program's.
fn initrd(settings: &InstallOptions) -> Result<Option<Vec<u8>>, Failure> {
    let Some(path) = &settings.initrd else { return Ok(None) };
    let invalid = |reason: &str| {
        let reason = format!("{}: {reason}", printable(&path.display().to_string()));
        Failure::new(
            "install-target",
            reason,
            "make the file with `attest-node-initrd /usr/bin/attest-node FILE`",
        )
    };
    let content = read_limited(path).map_err(|error| invalid(&error.to_string()))?;
    let mut unpacked = Vec::new();
    let mut decoder = GzDecoder::new(content.as_slice()).take(INITRD_LIMIT_BYTES + 1);
    decoder
        .read_to_end(&mut unpacked)
        .map_err(|_| invalid("it is not compressed with gzip, or damaged"))?;
    if u64::try_from(unpacked.len()).is_ok_and(|length| length > INITRD_LIMIT_BYTES) {
        return Err(invalid("it has more than 128 MiB"));
    }
    let is_ours = CPIO.iter().any(|magic| unpacked.starts_with(magic)) && unpacked.windows(PROGRAM.len()).any(|window| window == PROGRAM);
    if is_ours {
        Ok(Some(content))
    } else {
        Err(invalid("it is no initrd of attest-node"))
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(INITRD_LIMIT_BYTES + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|length| length <= INITRD_LIMIT_BYTES) {
        Ok(content)
    } else {
        Err(io::Error::other("it is larger than 128 MiB"))
    }
}

/// Installs the initrd, or removes one.
fn change(target: &InstallTarget, initrd: Option<&[u8]>) -> Result<ChangedTarget, Failure> {
    let mut is_raw_image = false;
    let filesystems = match target {
        InstallTarget::Boot(folder) => {
            if folder.is_file() {
                let error = io::Error::new(ErrorKind::NotADirectory, "it has no boot entries: it is no folder");
                return Err(target_failure(target, &error));
            }
            let filesystem = MountedFilesystem::open(folder).map_err(|error| target_failure(target, &error))?;
            let change = change_filesystem(&filesystem, initrd)?;
            vec![InstalledFilesystem::new(folder, change)]
        }
        InstallTarget::Disk(disk) => {
            let partitions = unmounted_partitions(disk).map_err(|error| target_failure(target, &error))?;
            let supported = partitions
                .iter()
                .filter(|partition| MOUNTABLE.contains(&partition.filesystem.as_str()));
            change_each(supported, |partition| on_disk(partition, initrd))?
        }
        InstallTarget::Image(image) => {
            let copy = ImageCopy::create(image).map_err(|error| target_failure(target, &error))?;
            let mut partitions = partitions(copy.path()).map_err(|error| target_failure(target, &error))?;
            // The copy's name is nothing to tell.
            for (number, partition) in (1_usize..).zip(&mut partitions) {
                partition.node = format!("{}:{number}", image.display()).into();
            }
            let changed = change_each(partitions.iter(), |partition| in_image(image, copy.path(), partition, initrd))?;
            if changed.iter().any(InstalledFilesystem::is_changed) {
                is_raw_image = copy.is_raw();
                copy.replace_original().map_err(|error| target_failure(target, &error))?;
            }
            changed
        }
    };
    Ok(ChangedTarget { filesystems, is_raw_image })
}

/// Changes each filesystem that has boot entries.
fn change_each<'p>(
    partitions: impl Iterator<Item = &'p Partition>,
    change: impl Fn(&Partition) -> Result<BootMenuChange, PartitionFailure>,
) -> Result<Vec<InstalledFilesystem>, Failure> {
    let mut changed = Vec::new();
    let mut reasons = Vec::new();
    for partition in partitions {
        match change(partition) {
            Ok(change) => changed.push(InstalledFilesystem::new(&partition.node, change)),
            Err(PartitionFailure::NoEntries(reason)) => reasons.push(format!("{}: {reason}", partition.node.display())),
            Err(PartitionFailure::Other(failure)) => return Err(failure),
        }
    }
    if !changed.is_empty() {
        return Ok(changed);
    }
    if reasons.is_empty() {
        reasons.push("it has no partition with a filesystem that boot loaders read".to_owned());
    }
    Err(BootMenuError::NoEntries(reasons.join("; ")).into())
}

/// Failure on one of several partitions.
enum PartitionFailure {
    /// Another partition may have boot entries.
    NoEntries(String),
    Other(Failure),
}

impl From<BootMenuError> for PartitionFailure {
    fn from(error: BootMenuError) -> Self {
        match error {
            BootMenuError::NoEntries(reason) => Self::NoEntries(reason),
            other => Self::Other(other.into()),
        }
    }
}

fn on_disk(partition: &Partition, initrd: Option<&[u8]>) -> Result<BootMenuChange, PartitionFailure> {
    let failed = |error: io::Error| {
        let reason = format!("{}: {error}", partition.node.display());
        let next_step = "run the command as root, and see that the partition can be mounted; the system boots as before";
        PartitionFailure::Other(Failure::new("install-failed", printable(&reason), next_step))
    };
    let mounted = MountedPartition::mount(partition).map_err(failed)?;
    let root = boot_folder(mounted.path()).map_err(failed)?;
    let changed = {
        let filesystem = MountedFilesystem::open(&root).map_err(failed)?;
        change_filesystem(&filesystem, initrd)?
    };
    mounted.unmount().map_err(failed)?;
    Ok(changed)
}

/// Returns the folder of the boot files: `/boot` of a root filesystem, else the root of a boot filesystem.
///
/// # Errors
/// A link leads out of the disk, to files of the running system.
fn boot_folder(mounted: &Path) -> io::Result<PathBuf> {
    let root = mounted.canonicalize()?;
    let below = match root.join(BOOT).canonicalize() {
        Ok(below) if !below.starts_with(&root) => {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "its /boot is a link that leads out of the disk",
            ));
        }
        below => below.ok().filter(|below| below.join(ENTRIES).exists()),
    };
    Ok(below.unwrap_or(root))
}

/// Changes a partition of the copy of an image.
fn in_image(original: &Path, copy: &Path, partition: &Partition, initrd: Option<&[u8]>) -> Result<BootMenuChange, PartitionFailure> {
    let failed = |error: io::Error| {
        let reason = format!("{}: {error}", partition.node.display());
        let next_step = "correct this, and run the command again; nothing is changed";
        PartitionFailure::Other(Failure::new("install-target", printable(&reason), next_step))
    };
    match partition.filesystem.as_str() {
        "ext2" | "ext3" | "ext4" => {
            let mut filesystem = ExtFilesystem::open(copy, partition, "").map_err(failed)?;
            if filesystem.names(ENTRIES).map_err(failed)?.is_empty() {
                filesystem = ExtFilesystem::open(copy, partition, "boot/").map_err(failed)?;
            }
            let changed = change_filesystem(&filesystem, initrd)?;
            // What debugfs cannot write right, such as attributes outside of the inode.
            filesystem.check().map_err(|_| {
                failed(io::Error::other(format!(
                    "debugfs cannot change this filesystem without damage: as root, attach the image (qemu-nbd --connect=/dev/nbd0 {}), and \
                     pass --disk /dev/nbd0",
                    original.display()
                )))
            })?;
            Ok(changed)
        }
        "vfat" => {
            let filesystem = FatFilesystem::open(copy, partition).map_err(failed)?;
            Ok(change_filesystem(&filesystem, initrd)?)
        }
        "" => Err(PartitionFailure::NoEntries("no filesystem".to_owned())),
        other => Err(PartitionFailure::NoEntries(format!(
            "{other} in an image cannot be changed without mounting it: as root, attach the image (qemu-nbd --connect=/dev/nbd0 {}), and pass \
             --disk /dev/nbd0",
            original.display()
        ))),
    }
}

fn change_filesystem(filesystem: &impl BootFilesystem, initrd: Option<&[u8]>) -> Result<BootMenuChange, BootMenuError> {
    let menu = BootMenu::read(filesystem)?;
    match initrd {
        Some(initrd) => menu.install(initrd),
        None => menu.uninstall(),
    }
}

/// Builds the failure for a target that cannot be worked on. Nothing is changed.
fn target_failure(target: &InstallTarget, error: &io::Error) -> Failure {
    let (option, path) = target.option();
    let reason = format!("{option} {}: {error}", path.display());
    Failure::new(
        "install-target",
        printable(&reason),
        "correct this, and run the command again; nothing is changed",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn boot_folder_is_on_the_disk() {
        let (disk, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = disk.path().canonicalize().unwrap();
        assert_eq!(boot_folder(disk.path()).unwrap(), root);
        // A boot partition may have a link to itself.
        symlink(".", root.join("boot")).unwrap();
        fs::create_dir_all(root.join("loader/entries")).unwrap();
        assert_eq!(boot_folder(disk.path()).unwrap(), root);
        fs::remove_file(root.join("boot")).unwrap();
        fs::create_dir_all(root.join("boot/loader/entries")).unwrap();
        assert_eq!(boot_folder(disk.path()).unwrap(), root.join("boot"));

        fs::create_dir_all(host.path().join("loader/entries")).unwrap();
        fs::remove_dir_all(root.join("boot")).unwrap();
        symlink(host.path(), root.join("boot")).unwrap();
        assert_eq!(boot_folder(disk.path()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
