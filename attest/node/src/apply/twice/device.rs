//! Current content of a block device, according to the kernel's sysfs and udev's database.

use std::collections::BTreeMap;
use std::fs;

use crate::apply::system::{Mount, System};

/// Folder of the kernel's block devices.
const BLOCK: &str = "/sys/class/block";
/// udev's database: `b` and the device's numbers.
const UDEV: &str = "/run/udev/data";

/// A block device that is there.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    /// The kernel's name: `vda1`.
    name: String,
    /// Device number, major and minor: `254:1`.
    numbers: String,
    /// Properties in udev's database; `None` if udev has no record of the device.
    properties: Option<BTreeMap<String, String>>,
}

/// Content of a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceContent {
    Nothing,
    /// A filesystem, or anything that blkid(8) reports as one.
    Filesystem {
        /// `ext4`, `crypto_LUKS`, `linux_raid_member`, …
        kind: String,
        label: String,
        uuid: String,
    },
    Partitions,
    /// Other devices are built on it: an array, a volume.
    Held,
    /// The content cannot be determined.
    Unknown,
}

impl Device {
    /// Finds a device by its path, which may be a link.
    pub(crate) fn find(system: &System, path: &str) -> Option<Self> {
        let real = system.path(path).canonicalize().ok()?;
        let name = real.file_name()?.to_str()?.to_owned();
        let numbers = system.text(&format!("{BLOCK}/{name}/dev"))?.trim().to_owned();
        let known = system.text(&format!("{UDEV}/b{numbers}"));
        let properties = known.map(|text| {
            let lines = text.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        });
        Some(Self { name, numbers, properties })
    }

    /// Returns whether this device is mounted there. btrfs has device numbers of its own, but names the device.
    pub(crate) fn is_mounted_at(&self, system: &System, point: &str) -> bool {
        let is_it =
            |mount: &Mount| mount.device == self.numbers || Self::find(system, &mount.source).is_some_and(|other| other.name == self.name);
        system.mounts().iter().any(|mount| mount.point == point && is_it(mount))
    }

    /// Returns the content of the device.
    pub(crate) fn content(&self, system: &System) -> DeviceContent {
        let Some(properties) = &self.properties else {
            return DeviceContent::Unknown;
        };
        let holders = fs::read_dir(system.path(&format!("{BLOCK}/{}/holders", self.name)));
        let is_held = holders.is_ok_and(|mut holders| holders.next().is_some());
        let property = |name: &str| properties.get(name).cloned().unwrap_or_default();
        match properties.get("ID_FS_TYPE").filter(|kind| !kind.is_empty()) {
            Some(kind) => DeviceContent::Filesystem {
                kind: kind.clone(),
                label: unescaped(&property("ID_FS_LABEL_ENC")),
                uuid: property("ID_FS_UUID"),
            },
            None if self.has_table(system, properties) => DeviceContent::Partitions,
            None if is_held || system.mounts().iter().any(|mount| mount.device == self.numbers) => DeviceContent::Held,
            None => DeviceContent::Nothing,
        }
    }

    /// udev gives a partition the properties of its disk, too.
    fn has_table(&self, system: &System, properties: &BTreeMap<String, String>) -> bool {
        let is_partition = system.path(&format!("{BLOCK}/{}/partition", self.name)).exists();
        !is_partition && properties.contains_key("ID_PART_TABLE_TYPE") || !self.partitions(system).is_empty()
    }

    /// Its partitions, by number.
    pub(crate) fn partitions(&self, system: &System) -> BTreeMap<u64, DiskPartition> {
        let folder = format!("{BLOCK}/{}", self.name);
        let entries = fs::read_dir(system.path(&folder)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let partitions = names.filter_map(|name| {
            let value = |file: &str| system.text(&format!("{folder}/{name}/{file}"))?.trim().parse().ok();
            let (number, start, size): (u64, u64, u64) = (value("partition")?, value("start")?, value("size")?);
            let properties = Self::find(system, &format!("/dev/{name}")).and_then(|partition| partition.properties);
            let property = |name: &str| properties.as_ref()?.get(name).cloned();
            Some((
                number,
                DiskPartition {
                    start,
                    size,
                    label: unescaped(&property("ID_PART_ENTRY_NAME").unwrap_or_default()),
                    guid: property("ID_PART_ENTRY_UUID").unwrap_or_default(),
                    kind: property("ID_PART_ENTRY_TYPE").unwrap_or_default(),
                },
            ))
        });
        partitions.collect()
    }
}

/// A partition that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskPartition {
    /// Its first sector, of 512 bytes.
    pub start: u64,
    /// Size in sectors of 512 bytes.
    pub size: u64,
    pub label: String,
    pub guid: String,
    /// The GUID of its kind.
    pub kind: String,
}

/// Decodes `\x20`, as udev escapes special characters.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => return String::from_utf8_lossy(&bytes).into_owned(),
            [b'\\', b'x', high, low, after @ ..] => {
                let digits = [*high, *low];
                let byte = std::str::from_utf8(&digits)
                    .ok()
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(byte.unwrap_or(b'?'));
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}
