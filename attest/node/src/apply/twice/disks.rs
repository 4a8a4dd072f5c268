//! Disks, arrays, volumes and filesystems: `partitionDisk`, `createRaids`, `createLuks` and `createFilesystem` of the stage disks, `mountFs` of
//! the stage mount.

use std::fs;

use serde_json::Value;

use super::device::{Device, DeviceContent, DiskPartition};
use super::{Refusals, is_false, is_true, list, number, text};
use crate::apply::system::{SYSROOT, System};

/// A MiB, in the sectors that the kernel counts.
const SECTORS_OF_A_MIB: u64 = 2048;
/// Formats that Ignition neither checks nor creates.
const NO_FILESYSTEM: [&str; 2] = ["", "none"];

pub(crate) fn check(config: &Value, system: &System, found: &mut Refusals) {
    for (index, disk) in list(config, "/storage/disks") {
        check_disk(disk, &format!("storage.disks[{index}]"), system, found);
    }
    for (index, array) in list(config, "/storage/raid") {
        let (at, name) = (format!("storage.raid[{index}]"), text(array, "name").unwrap_or_default());
        for device in array.get("devices").and_then(Value::as_array).into_iter().flatten() {
            let why = |what: String| {
                format!(
                    "{}: {what}: Ignition would create the array again",
                    device.as_str().unwrap_or_default()
                )
            };
            if let Some(what) = device.as_str().and_then(|device| occupied(config, system, device)) {
                found.refuse(&at, name, why(what));
            }
        }
    }
    for (index, volume) in list(config, "/storage/luks") {
        let (at, device) = (format!("storage.luks[{index}]"), text(volume, "device").unwrap_or_default());
        if let Some(what) = occupied(config, system, device) {
            let then = match is_true(volume, "wipeVolume") {
                true => "wipeVolume would have Ignition destroy it",
                false => "Ignition would stop the boot",
            };
            found.refuse(&at, device, format!("{what}: {then}"));
        }
    }
    for (index, filesystem) in list(config, "/storage/filesystems") {
        let at = format!("storage.filesystems[{index}]");
        let device = text(filesystem, "device").unwrap_or_default();
        let why = filesystem_mismatch(filesystem, config, system, device)
            .or_else(|| mounted_below_no_folder(filesystem, system))
            .or_else(|| hides(filesystem, system, device));
        if let Some(why) = why {
            found.refuse(&at, device, why);
        }
    }
}

fn check_disk(disk: &Value, at: &str, system: &System, found: &mut Refusals) {
    let path = text(disk, "device").unwrap_or_default();
    let Some(device) = Device::find(system, path) else {
        return found.refuse(
            at,
            path,
            "it does not exist on this system: Ignition would wait for it, and stop the boot",
        );
    };
    let content = device.content(system);
    // As on a first boot.
    if content == DeviceContent::Nothing {
        return;
    }
    if is_true(disk, "wipeTable") {
        found.refuse(at, path, format!("{}: wipeTable would have Ignition destroy it", what(&content)));
    }
    let there = device.partitions(system);
    for (index, partition) in list(disk, "/partitions") {
        let wanted = number(partition, "number").unwrap_or_default();
        if let Some(why) = partition_mismatch(partition, there.get(&wanted)) {
            found.refuse(&format!("{at}.partitions[{index}]"), &format!("{path}, number {wanted}"), why);
        }
    }
}

/// Returns why a partition of a disk in use cannot be changed to match the config. An existing partition that matches is left alone.
fn partition_mismatch(wanted: &Value, there: Option<&DiskPartition>) -> Option<String> {
    let Some(there) = there else {
        return (!is_false(wanted, "shouldExist")).then(|| {
            "it does not exist: Ignition would create it on a disk that is in use, and stop the boot if there is no room".to_owned()
        });
    };
    if is_false(wanted, "shouldExist") {
        return Some(
            "it exists, and the config says that it must not: Ignition would stop the boot, or with wipePartitionEntry destroy it"
                .to_owned(),
        );
    }
    let is_open = |name: &str| number(wanted, name).unwrap_or_default() == 0;
    if is_true(wanted, "wipePartitionEntry") && (is_open("startMiB") || is_open("sizeMiB")) {
        return Some(
            "the config does not fix its position, and with wipePartitionEntry Ignition would destroy it to create it at another position"
                .to_owned(),
        );
    }
    let sectors = |name: &str| {
        number(wanted, name)
            .filter(|mib| *mib > 0)
            .map(|mib| mib.saturating_mul(SECTORS_OF_A_MIB))
    };
    let same = |name: &str, known: &str| text(wanted, name).is_none_or(|wanted| wanted.eq_ignore_ascii_case(known));
    let differing = [
        ("its start", sectors("startMiB").is_none_or(|start| start == there.start)),
        ("its size", sectors("sizeMiB").is_none_or(|size| size == there.size)),
        ("its label", text(wanted, "label").is_none_or(|label| label == there.label)),
        ("its GUID", same("guid", &there.guid)),
        ("its type", same("typeGuid", &there.kind)),
    ];
    let (differs, _) = differing.into_iter().find(|(_, is_so)| !is_so)?;
    Some(format!(
        "{differs} differs: Ignition would stop the boot, or with wipePartitionEntry or resize change a disk that is in use"
    ))
}

fn filesystem_mismatch(filesystem: &Value, config: &Value, system: &System, device: &str) -> Option<String> {
    let format = text(filesystem, "format")?;
    // Not on a block device.
    if format == "virtiofs" {
        return None;
    }
    let what_there_is = occupied(config, system, device)?;
    if is_true(filesystem, "wipeFilesystem") {
        return Some(format!("{what_there_is}: wipeFilesystem would have Ignition destroy it"));
    }
    let content = Device::find(system, device).map(|device| device.content(system));
    let same = match content {
        Some(DeviceContent::Filesystem { kind, label, uuid }) => {
            kind == format
                && text(filesystem, "label").is_none_or(|wanted| wanted == label)
                && text(filesystem, "uuid").is_none_or(|wanted| canonical(wanted) == canonical(&uuid))
        }
        _ => false,
    };
    let wanted = if NO_FILESYSTEM.contains(&format) { "nothing" } else { format };
    (!same).then(|| format!("{what_there_is}, and not {wanted} with the label and UUID of the config: Ignition would stop the boot"))
}

/// A FAT's UUID has a dash or none.
fn canonical(uuid: &str) -> String {
    let lower = uuid.to_ascii_lowercase();
    if lower.len() <= "a1b2-c3d4".len() {
        lower.replace('-', "")
    } else {
        lower
    }
}

/// Describes the device's current content; `None` if it is empty, or is made by this config.
fn occupied(config: &Value, system: &System, device: &str) -> Option<String> {
    match Device::find(system, device) {
        Some(found) => match found.content(system) {
            DeviceContent::Nothing => None,
            content => Some(what(&content)),
        },
        None if is_made(config, device) => None,
        None => Some("it does not exist on this system".to_owned()),
    }
}

/// Returns whether another part of the config makes this device.
fn is_made(config: &Value, device: &str) -> bool {
    let named = |pointer: &str, folders: &[&str]| {
        list(config, pointer).any(|(_, made)| {
            let name = text(made, "name").unwrap_or_default();
            folders.iter().any(|folder| device.strip_prefix(folder) == Some(name))
        })
    };
    let mut labels = list(config, "/storage/disks").flat_map(|(_, disk)| list(disk, "/partitions"));
    named("/storage/raid", &["/dev/md/", ""])
        || named("/storage/luks", &["/dev/mapper/", "/dev/disk/by-id/dm-name-"])
        || labels.any(|(_, partition)| {
            text(partition, "label").is_some_and(|label| device.strip_prefix("/dev/disk/by-partlabel/") == Some(label))
        })
}

fn what(content: &DeviceContent) -> String {
    match content {
        DeviceContent::Nothing => "it is empty".to_owned(),
        DeviceContent::Filesystem { kind, label, .. } if label.is_empty() => format!("it has {kind}"),
        DeviceContent::Filesystem { kind, label, .. } => format!("it has {kind} with the label {label:?}"),
        DeviceContent::Partitions => "it has partitions".to_owned(),
        DeviceContent::Held => "it is in use".to_owned(),
        DeviceContent::Unknown => "its content is unknown".to_owned(),
    }
}

/// Applies Ignition's `checkForNonDirectories`, which rejects links, too.
fn mounted_below_no_folder(filesystem: &Value, system: &System) -> Option<String> {
    let path = text(filesystem, "path")?;
    let format = text(filesystem, "format")?;
    if NO_FILESYSTEM.contains(&format) || format == "swap" {
        return None;
    }
    let mut below = String::new();
    let no_folder = path.split('/').filter(|part| !part.is_empty()).find(|part| {
        below = format!("{below}/{part}");
        system.path(&below).symlink_metadata().is_ok_and(|metadata| !metadata.is_dir())
    });
    no_folder.map(|_| format!("a component of its path {path} is not a folder: Ignition would stop the boot"))
}

/// Returns a refusal if the mount would hide the folder's contents from the node: the kubelet's certificate in `/var`, say.
fn hides(filesystem: &Value, system: &System, device: &str) -> Option<String> {
    let format = text(filesystem, "format")?;
    let path = text(filesystem, "path").filter(|_| !NO_FILESYSTEM.contains(&format) && format != "swap")?;
    let point = match path.trim_end_matches('/') {
        // With OSTree the root is mounted there, and what it has of a system is `/`.
        "" if system.is_mount_point(SYSROOT) => SYSROOT,
        "" => "/",
        point => point,
    };
    let is_there = match Device::find(system, device) {
        Some(found) => found.is_mounted_at(system, point),
        // Not on a block device.
        None => system.mounts().iter().any(|mount| mount.point == point && mount.source == device),
    };
    let has_something = fs::read_dir(system.path(point)).is_ok_and(|mut entries| entries.next().is_some());
    (!is_there && has_something).then(|| format!("{path} is not empty, and the mount would hide its content"))
}
