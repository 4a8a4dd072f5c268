//! Partitions of a disk or of a raw image, by sfdisk(8) and blkid(8).

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::programs::run;

/// Partition with a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partition {
    /// Device of the partition; for an image, its path with a number.
    pub node: PathBuf,
    /// Start in the disk, in bytes.
    pub offset: u64,
    /// Length of the partition, in bytes.
    pub length: u64,
    /// Filesystem as blkid names it: `ext4`, `vfat`, `xfs`; empty if there is none.
    pub filesystem: String,
}

#[derive(Deserialize)]
struct SfdiskOutput {
    partitiontable: SfdiskTable,
}

#[derive(Deserialize)]
struct SfdiskTable {
    #[serde(default = "sector_size")]
    sectorsize: u64,
    #[serde(default)]
    partitions: Vec<TableEntry>,
}

#[derive(Deserialize)]
struct TableEntry {
    node: PathBuf,
    start: u64,
    size: u64,
}

/// Sector size that sfdisk of util-linux before 2.35 does not print.
fn sector_size() -> u64 {
    512
}

/// Returns the partitions of a disk or of a raw image.
///
/// # Errors
/// What sfdisk says of a file without a partition table.
pub(super) fn partitions(disk: &Path) -> io::Result<Vec<Partition>> {
    let output = run(Command::new("sfdisk").arg("--json").arg(disk)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => error,
        _ => io::Error::new(
            ErrorKind::InvalidData,
            "it has no partition table: pass the image of a whole disk, or mount the filesystem and pass --boot",
        ),
    })?;
    let SfdiskOutput { partitiontable: table } = serde_json::from_slice(&output)?;
    let partitions = table.partitions.into_iter().map(|entry| {
        let (offset, length) = (entry.start.checked_mul(table.sectorsize), entry.size.checked_mul(table.sectorsize));
        let (Some(offset), Some(length)) = (offset, length) else {
            return Err(io::Error::other("the partition table is damaged"));
        };
        Ok(Partition {
            filesystem: filesystem(disk, offset)?,
            node: entry.node,
            offset,
            length,
        })
    });
    partitions.collect()
}

/// Returns the filesystem at an offset; an empty text if blkid knows none.
fn filesystem(disk: &Path, offset: u64) -> io::Result<String> {
    let mut blkid = Command::new("blkid");
    blkid.args([
        "--probe",
        "--match-tag",
        "TYPE",
        "--output",
        "value",
        "--offset",
        &offset.to_string(),
    ]);
    match run(blkid.arg(disk)) {
        Ok(output) => Ok(String::from_utf8_lossy(&output).trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
        // Its exit code says that it has found nothing.
        Err(_) => Ok(String::new()),
    }
}
