//! Disk of a machine that runs from another one, such as an installer's: its boot filesystems are mounted for the moment.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::partitions::{Partition, partitions};
use super::programs::run;
use crate::apply::system::System;

/// Returns the partitions of a disk that is not mounted.
///
/// # Errors
/// No block device, a partition that is mounted, or what sfdisk says.
pub(super) fn unmounted_partitions(disk: &Path) -> io::Result<Vec<Partition>> {
    if !fs::metadata(disk)?.file_type().is_block_device() {
        let reason = "it is no disk: pass an image with --image, and a mounted boot filesystem with --boot";
        return Err(io::Error::new(ErrorKind::InvalidInput, reason));
    }
    let partitions = partitions(disk)?;
    let mounts = System::new(Path::new("/")).mounts();
    for partition in &partitions {
        let node = partition.node.canonicalize().unwrap_or_else(|_| partition.node.clone());
        if let Some(mount) = mounts.iter().find(|mount| Path::new(&mount.source) == node) {
            let (node, point) = (node.display(), &mount.point);
            let reason = format!("{node} is mounted at {point}: unmount it, or pass the mounted boot filesystem with --boot");
            return Err(io::Error::new(ErrorKind::ResourceBusy, reason));
        }
    }
    Ok(partitions)
}

/// Mounted partition, until it is dropped.
#[derive(Debug)]
pub(super) struct MountedPartition {
    folder: TempDir,
}

impl MountedPartition {
    /// # Errors
    /// What mount(8) says.
    pub(super) fn mount(partition: &Partition) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("attest-node-").tempdir()?;
        let mut mount = Command::new("mount");
        mount
            .args(["-o", "rw,nosuid,nodev,noexec"])
            .args([partition.node.as_path(), folder.path()]);
        run(&mut mount)?;
        Ok(Self { folder })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts the partition, which writes everything to the disk.
    ///
    /// # Errors
    /// What umount(8) says.
    pub(super) fn unmount(self) -> io::Result<()> {
        run(Command::new("umount").arg(self.path())).map(drop)
    }
}

impl Drop for MountedPartition {
    fn drop(&mut self) {
        // After `unmount` it fails. Else the folder is removed only once it is empty.
        let _ = run(Command::new("umount").arg(self.folder.path()));
    }
}
