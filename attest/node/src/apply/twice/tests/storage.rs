//! Disks, arrays, volumes and filesystems.

use serde_json::{Value, json};

use super::{ABLE, check};

#[test]
fn existing_filesystems_are_never_wiped() {
    let filesystems = |list: &Value, expect: &[&str]| check(ABLE, "storage.filesystems", list, expect);
    let root = |more: &Value| {
        let mut filesystem = json!({"device": "/dev/disk/by-label/root", "format": "ext4"});
        filesystem.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([filesystem])
    };
    filesystems(&root(&json!({})), &[]);
    filesystems(&root(&json!({"label": "the root", "uuid": "ab-CD", "path": "/var"})), &[]);
    let at = "storage.filesystems[0] (/dev/disk/by-label/root): it has ext4 with the label";
    filesystems(
        &root(&json!({"wipeFilesystem": true})),
        &[&format!("{at} … wipeFilesystem would have Ignition destroy it")],
    );
    filesystems(&root(&json!({"label": "data"})), &[&format!("{at} … Ignition would stop")]);
    filesystems(&root(&json!({"format": "xfs"})), &[at]);
    filesystems(&root(&json!({"format": "none"})), &[at]);
    filesystems(
        &root(&json!({"path": "/etc/to-full/x"})),
        &["storage.filesystems[0] … is not a folder"],
    );
    filesystems(
        &json!([{"device": "/dev/vdb", "format": "xfs", "wipeFilesystem": true}, {"device": "share", "format": "virtiofs"}]),
        &[],
    );
    filesystems(&json!([{"device": "/dev/vda2", "format": "xfs", "path": "/srv/new"}]), &[]);
    filesystems(
        &json!([{"device": "/dev/vda", "format": "xfs"}]),
        &["storage.filesystems[0] (/dev/vda): it has partitions"],
    );
    filesystems(
        &json!([{"device": "/dev/vdc", "format": "xfs"}]),
        &["storage.filesystems[0] (/dev/vdc): it is in use"],
    );
    filesystems(
        &json!([{"device": "/dev/vde", "format": "xfs"}]),
        &["storage.filesystems[0] (/dev/vde): its content is unknown"],
    );
    filesystems(
        &json!([{"device": "/dev/none", "format": "xfs"}]),
        &["storage.filesystems[0] (/dev/none): it does not exist"],
    );
}

#[test]
fn disks_arrays_and_volumes_require_empty_devices() {
    let disks = |list: &Value, expect: &[&str]| check(ABLE, "storage.disks", list, expect);
    disks(
        &json!([{"device": "/dev/vdb", "wipeTable": true, "partitions": [{"label": "data", "sizeMiB": 0}]}]),
        &[],
    );
    disks(
        &json!([{"device": "/dev/vda", "wipeTable": true}]),
        &["storage.disks[0] (/dev/vda): it has partitions: wipeTable"],
    );
    disks(
        &json!([{"device": "/dev/none"}]),
        &["storage.disks[0] (/dev/none): it does not exist"],
    );
    let partition = |partition: &Value, expect: &[&str]| disks(&json!([{"device": "/dev/vda", "partitions": [partition]}]), expect);
    partition(
        &json!({"number": 1, "label": "root", "startMiB": 1, "sizeMiB": 2, "guid": "GUID", "typeGuid": "Kind"}),
        &[],
    );
    partition(&json!({"number": 1, "sizeMiB": 0}), &[]);
    partition(&json!({"number": 9, "shouldExist": false}), &[]);
    let at = "storage.disks[0].partitions[0] (/dev/vda, number";
    partition(&json!({"number": 1, "label": "other"}), &[&format!("{at} 1): its label")]);
    partition(
        &json!({"number": 1, "sizeMiB": 3, "resize": true}),
        &[&format!("{at} 1): its size")],
    );
    partition(
        &json!({"number": 1, "shouldExist": false, "wipePartitionEntry": true}),
        &[&format!("{at} 1): it exists")],
    );
    partition(
        &json!({"number": 1, "wipePartitionEntry": true}),
        &[&format!("{at} 1): the config does not fix its position")],
    );
    partition(&json!({"number": 1, "startMiB": 1, "sizeMiB": 2, "wipePartitionEntry": true}), &[]);
    partition(&json!({"label": "more"}), &[&format!("{at} 0): it does not exist")]);
    let raid = |devices: &Value, expect: &[&str]| check(ABLE, "storage.raid", &json!([{"name": "md", "devices": devices}]), expect);
    raid(&json!(["/dev/vdb", "/dev/vda2"]), &[]);
    raid(&json!(["/dev/vdb", "/dev/vda1"]), &["storage.raid[0] (md): /dev/vda1: it has ext4"]);
    let luks = |device: &str, expect: &[&str]| check(ABLE, "storage.luks", &json!([{"name": "x", "device": device}]), expect);
    luks("/dev/vdb", &[]);
    luks("/dev/vdd", &["storage.luks[0] (/dev/vdd): it has crypto_LUKS: Ignition would stop"]);
}

#[test]
fn devices_created_by_the_config_may_be_absent() {
    let storage = json!({
        "disks": [{"device": "/dev/vdb", "partitions": [{"label": "data", "number": 1}]}],
        "raid": [{"name": "md", "devices": ["/dev/vdb"]}],
        "luks": [{"name": "crypt", "device": "/dev/md/md"}],
        "filesystems": [
            {"device": "/dev/mapper/crypt", "format": "xfs"}, {"device": "/dev/disk/by-partlabel/data", "format": "xfs"},
            {"device": "/dev/disk/by-partlabel/other", "format": "xfs"},
        ],
    });
    check(ABLE, "storage", &storage, &["storage.filesystems[2]"]);
}

#[test]
fn new_filesystem_must_not_hide_existing_files() {
    let filesystems = |list: &Value, expect: &[&str]| check(ABLE, "storage.filesystems", list, expect);
    let at = |device: &str, path: &str| json!([{"device": device, "format": "ext4", "path": path}]);
    let hides = "is not empty, and the mount would hide its content";
    filesystems(
        &at("/dev/vdb", "/etc/full"),
        &[&format!("storage.filesystems[0] (/dev/vdb): /etc/full {hides}")],
    );
    filesystems(
        &at("/dev/vdb", "/etc/full/"),
        &[hides]
            .map(|hides| format!("storage.filesystems[0] … {hides}"))
            .each_ref()
            .map(String::as_str),
    );
    filesystems(&at("/dev/vdb", "/etc/empty"), &[]);
    filesystems(&at("/dev/vdb", "/etc/new"), &[]);
    // One that is there already, but not mounted there.
    filesystems(&at("/dev/vda1", "/etc/full"), &[&format!("storage.filesystems[0] … {hides}")]);
    filesystems(&at("/dev/vda1", "/"), &[]);
    filesystems(&json!([{"device": "/dev/vdb", "format": "swap"}]), &[]);
}
