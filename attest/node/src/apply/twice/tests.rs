//! Tests of each rule on a folder in place of the running system.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::*;

mod base;
mod storage;

const ABLE: Abilities = Abilities {
    ignition: (2, 27),
    changes_kernel_arguments: true,
    heeds_presets: true,
};
const OLD: Abilities = Abilities {
    ignition: (2, 14),
    changes_kernel_arguments: false,
    heeds_presets: false,
};

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A partition or a disk, as the kernel and udev show it.
fn device(root: &Path, folder: &str, name: &str, minor: u32, partition: Option<[u64; 3]>, properties: &str) {
    write(root, &format!("sys/class/block/{name}/dev"), &format!("254:{minor}\n"));
    write(root, &format!("run/udev/data/b254:{minor}"), properties);
    write(root, &format!("dev/{name}"), "");
    fs::create_dir_all(root.join(format!("sys/class/block/{name}/holders"))).unwrap();
    for (file, number) in ["partition", "start", "size"].iter().zip(partition.into_iter().flatten()) {
        write(root, &format!("sys/class/block/{name}/{file}"), &number.to_string());
        write(root, &format!("{folder}/{name}/{file}"), &number.to_string());
    }
}

fn system() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, "etc/file", "content");
    write(root, "etc/full/inside", "x");
    fs::create_dir_all(root.join("etc/empty")).unwrap();
    symlink("/usr/target", root.join("etc/link")).unwrap();
    fs::hard_link(root.join("etc/file"), root.join("etc/same")).unwrap();
    symlink("full", root.join("etc/to-full")).unwrap();
    write(root, "run/there", "");
    write(
        root,
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\ncore:x:1000:1000::/var/home/core:/bin/sh\n",
    );
    write(root, "etc/group", "root:x:0:\ncore:x:1000:\nspare:x:1001:\n");
    fs::create_dir_all(root.join("home/other")).unwrap();
    write(
        root,
        "etc/systemd/system-preset/20-ignition.preset",
        "enable on.service\ndisable off.service\ndisable at@.service a\n",
    );
    write(root, "etc/systemd/system/multi-user.target.wants/linked.service", "");
    write(
        root,
        "proc/self/mountinfo",
        "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n23 1 254:17 / /srv rw - ext4 x rw\n",
    );
    let disk = "sys/class/block/vda";
    device(root, "", "vda", 0, None, "E:ID_PART_TABLE_TYPE=gpt\n");
    let first = "E:ID_PART_TABLE_TYPE=gpt\nE:ID_FS_TYPE=ext4\nE:ID_FS_LABEL_ENC=the\\x20root\nE:ID_FS_UUID=AB-cd\n\
                 E:ID_PART_ENTRY_NAME=root\nE:ID_PART_ENTRY_TYPE=kind\nE:ID_PART_ENTRY_UUID=guid\n";
    device(root, disk, "vda1", 1, Some([1, 2048, 4096]), first);
    device(
        root,
        disk,
        "vda2",
        2,
        Some([2, 8192, 2048]),
        "E:ID_PART_TABLE_TYPE=gpt\nE:ID_PART_ENTRY_NAME=spare\n",
    );
    device(root, "", "vdb", 16, None, "I:1\n");
    device(root, "", "vdc", 17, None, "I:1\n");
    device(root, "", "vdd", 18, None, "E:ID_FS_TYPE=crypto_LUKS\n");
    write(root, "sys/class/block/vde/dev", "254:19\n");
    write(root, "dev/vde", "");
    fs::create_dir_all(root.join("dev/disk/by-label")).unwrap();
    symlink("../../vda1", root.join("dev/disk/by-label/root")).unwrap();
    folder
}

/// Checks the refusals for one member of the config: `expect` has the beginning of each line.
fn check(abilities: Abilities, section: &str, config: &Value, expect: &[&str]) {
    let root = system();
    let mut whole = json!({"ignition": {"version": "3.5.0"}});
    let mut place = &mut whole;
    for part in section.split('.') {
        place = place.as_object_mut().unwrap().entry(part).or_insert_with(|| json!({}));
    }
    *place = config.clone();
    let found = refusals(&whole, &[], &System::new(root.path()), abilities);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), expect.len(), "{config}: {lines:#?}");
    for (line, expect) in lines.iter().zip(expect) {
        let (at, why) = expect.split_once(" … ").unwrap_or((expect, ""));
        assert!(line.starts_with(at) && line.contains(why), "{config}: {line:?}, not {expect:?}");
    }
}

fn files(list: &Value, expect: &[&str]) {
    check(ABLE, "storage.files", list, expect);
}

#[test]
fn existing_file_requires_overwrite() {
    let contents = json!({"source": "data:,content"});
    files(&json!([{"path": "/etc/new/below", "contents": contents}]), &[]);
    files(&json!([{"path": "/etc/file", "overwrite": true, "contents": contents}]), &[]);
    files(&json!([{"path": "/etc/link", "overwrite": true, "contents": contents}]), &[]);
    files(&json!([{"path": "/etc/empty", "overwrite": true, "contents": contents}]), &[]);
    // Only its mode.
    files(&json!([{"path": "/etc/file", "mode": 384}]), &[]);
    // Not even if it is the same.
    let stop = "storage.files[1] (/etc/file): it exists, and overwrite is not true";
    files(&json!([{"path": "/a"}, {"path": "/etc/file", "contents": contents}]), &[stop]);
    files(
        &json!([{"path": "/etc/file", "overwrite": false, "contents": {"source": ""}}]),
        &["storage.files[0]"],
    );
    files(
        &json!([{"path": "/etc/link"}]),
        &["storage.files[0] (/etc/link): it exists and is not a file"],
    );
    files(
        &json!([{"path": "/etc/full", "overwrite": true}]),
        &["storage.files[0] (/etc/full): it is a folder, and with overwrite"],
    );
    files(
        &json!([{"path": "/etc/file/below"}]),
        &["storage.files[0] (/etc/file/below): a component of its path"],
    );
    files(&json!([{"path": "/etc/to-full/new"}]), &[]);
    // What Ignition finds there is on the disk, below what is mounted there now.
    let unseen = "storage.files[0] (/run/there): this path cannot be inspected from here";
    files(&json!([{"path": "/run/there", "contents": contents}]), &[unseen]);
    files(
        &json!([{"path": "/run/there"}, {"path": "/tmp/x", "contents": contents, "overwrite": true}]),
        &[],
    );
    check(
        ABLE,
        "storage.links",
        &json!([{"path": "/tmp/x", "target": "/y"}]),
        &["storage.links[0] (/tmp/x)"],
    );
    // A console shows no more than a line.
    files(
        &json!([{"path": "/etc/file\n\u{1b}[2J/x"}]),
        &["storage.files[0] (/etc/file  [2J/x)"][..0],
    );
}

#[test]
fn rejects_paths_below_a_foreign_mount() {
    let below = "(/srv/new): it is on the filesystem mounted at /srv";
    for kind in ["files", "directories", "links"] {
        let expect = format!("storage.{kind}[0] {below}");
        check(
            ABLE,
            &format!("storage.{kind}"),
            &json!([{"path": "/srv/new", "target": "/x"}]),
            &[&expect],
        );
    }
    let filesystem = json!({"device": "/dev/vdc", "format": "none", "path": "/srv"});
    let storage = json!({"files": [{"path": "/srv/new"}], "filesystems": [filesystem]});
    check(ABLE, "storage", &storage, &["storage.filesystems[0] (/dev/vdc): it is in use"]);
    let root = system();
    symlink("../srv", root.path().join("etc/elsewhere")).unwrap();
    fs::create_dir_all(root.path().join("srv")).unwrap();
    let config = json!({"storage": {"files": [{"path": "/etc/elsewhere/new"}]}});
    assert_eq!(refusals(&config, &[], &System::new(root.path()), ABLE).len(), 1);
    // With OSTree the root is another filesystem than what lies in /etc.
    let mounts =
        "1 0 0:33 / / ro - overlay composefs ro\n2 1 254:1 / /sysroot rw - ext4 /dev/vda1 rw\n3 1 254:1 /x /etc rw - ext4 /dev/vda1 rw\n";
    write(root.path(), "proc/self/mountinfo", mounts);
    assert_eq!(refusals(&config, &[], &System::new(root.path()), ABLE), []);
}

#[test]
fn overwrite_is_set_on_files_with_contents() {
    let mut config = json!({"storage": {"files": [
        {"path": "/a", "contents": {"source": ""}}, {"path": "/b", "overwrite": false, "contents": {"source": "data:,"}}, {"path": "/c"},
        {"path": "/d", "contents": {"source": null}},
    ]}});
    overwrite(&mut config);
    let said: Vec<Option<bool>> = list(&config, "/storage/files")
        .map(|(_, file)| file.get("overwrite").and_then(Value::as_bool))
        .collect();
    // Without contents Ignition takes overwrite for an error.
    assert_eq!(said, [Some(true), Some(true), None, None]);
    overwrite(&mut json!({}));
}

#[test]
fn rejects_a_second_append_of_the_same_content() {
    let append = |source: &str| json!([{"path": "/etc/file", "append": [{"source": source}]}]);
    files(&append("data:,more"), &[]);
    files(
        &append("data:,tent"),
        &["storage.files[0] (/etc/file): the appended content is already present"],
    );
    files(&append("data:;base64,dGVudA=="), &["storage.files[0]"]);
    files(&append("data:,"), &[]);
    files(&append("https://a/b"), &[]);
    files(
        &json!([{"path": "/etc/file", "overwrite": true, "append": [{"source": "data:,tent"}]}]),
        &[],
    );
}

#[test]
fn existing_directories_and_links_must_match() {
    let folders = |list: &Value, expect: &[&str]| check(ABLE, "storage.directories", list, expect);
    folders(&json!([{"path": "/etc/full"}, {"path": "/etc/new"}]), &[]);
    folders(
        &json!([{"path": "/etc/file"}]),
        &["storage.directories[0] (/etc/file): it exists and is not a folder"],
    );
    folders(
        &json!([{"path": "/etc/full", "overwrite": true}]),
        &["storage.directories[0] (/etc/full): it is a folder"],
    );
    let links = |list: &Value, expect: &[&str]| check(ABLE, "storage.links", list, expect);
    links(
        &json!([{"path": "/etc/link", "target": "/usr/target"}, {"path": "/etc/new", "target": "x"}]),
        &[],
    );
    links(&json!([{"path": "/etc/link", "target": "/usr/./other/../target/"}]), &[]);
    links(&json!([{"path": "/etc/link", "target": "/usr/other", "overwrite": true}]), &[]);
    links(
        &json!([{"path": "/etc/link", "target": "/usr/other"}]),
        &["storage.links[0] (/etc/link): it exists and is not this link"],
    );
    links(
        &json!([{"path": "/etc/file", "target": "/usr/target"}]),
        &["storage.links[0] (/etc/file)"],
    );
    links(&json!([{"path": "/etc/same", "target": "/etc/file", "hard": true}]), &[]);
    links(
        &json!([{"path": "/etc/link", "target": "/etc/file", "hard": true}]),
        &["storage.links[0] (/etc/link): it exists and is not the same"],
    );
    links(
        &json!([{"path": "/etc/full", "target": "/x", "overwrite": true}]),
        &["storage.links[0] (/etc/full): it is a folder"],
    );
}

#[test]
fn existing_users_and_groups_are_modified_not_created() {
    let users = |list: &Value, expect: &[&str]| check(OLD, "passwd.users", list, expect);
    users(
        &json!([{"name": "core", "sshAuthorizedKeys": ["x"], "uid": 1000, "homeDir": "/var/home/core/"}, {"name": "new"}]),
        &[],
    );
    users(
        &json!([{"name": "core", "homeDir": "/home/new"}, {"name": "gone", "shouldExist": false}]),
        &[],
    );
    users(
        &json!([{"name": "core", "shouldExist": false}]),
        &["passwd.users[0] (core): it exists: Ignition would remove it with its home"],
    );
    users(
        &json!([{"name": "core", "homeDir": "/home/other"}]),
        &["passwd.users[0] (core): its home directory is /var/home/core"],
    );
    users(
        &json!([{"name": "core", "uid": 0}]),
        &["passwd.users[0] (core): uid 0 belongs to root"],
    );
    let groups = |abilities, list: &Value, expect: &[&str]| check(abilities, "passwd.groups", list, expect);
    groups(ABLE, &json!([{"name": "core", "gid": 1000}, {"name": "new"}]), &[]);
    groups(
        OLD,
        &json!([{"name": "core"}, {"name": "new"}]),
        &["passwd.groups[0] (core): it exists, and Ignition 2.14 can only create it"],
    );
    groups(
        ABLE,
        &json!([{"name": "core", "gid": 1001}]),
        &["passwd.groups[0] (core): gid 1001 belongs to spare"],
    );
    groups(OLD, &json!([{"name": "spare", "shouldExist": false}]), &[]);
    groups(
        ABLE,
        &json!([{"name": "core", "shouldExist": false}]),
        &["passwd.groups[0] (core): it is the primary group of core"],
    );
}

#[test]
fn unit_enablement_requires_an_effective_systemd_preset() {
    let units = |abilities, list: &Value, expect: &[&str]| check(abilities, "systemd.units", list, expect);
    let all = json!([
        {"name": "linked.service", "enabled": true}, {"name": "x.service", "contents": "[Unit]"},
        {"name": "y.service", "enabled": false}, {"name": "z.service", "mask": true},
    ]);
    units(OLD, &all, &[]);
    units(
        ABLE,
        &json!([{"name": "new.service", "enabled": true}, {"name": "at@b.service", "enabled": true}]),
        &[],
    );
    units(
        OLD,
        &json!([{"name": "new.service", "enabled": true}]),
        &["systemd.units[0] (new.service): it is not enabled"],
    );
    let disabled = "an existing preset disables it";
    units(
        ABLE,
        &json!([{"name": "off.service", "enabled": true}]),
        &[&format!("systemd.units[0] (off.service): {disabled}")],
    );
    units(
        ABLE,
        &json!([{"name": "at@a.service", "enabled": true}]),
        &[&format!("systemd.units[0] (at@a.service): {disabled}")],
    );
    // Where presets are heeded at that boot, the line of before enables it again.
    let again = json!({"name": "on.service", "enabled": false});
    let masked = json!({"name": "on.service", "enabled": false, "mask": true});
    let new = json!({"name": "new.service", "enabled": true});
    units(ABLE, &json!([again]), &[]);
    units(ABLE, &json!([masked, new]), &[]);
    units(
        ABLE,
        &json!([again, new]),
        &["systemd.units[0] (on.service): an existing preset enables it … mask it"],
    );
}

#[test]
fn rejects_link_enabled_units_left_to_presets() {
    let root = system();
    write(
        root.path(),
        "usr/lib/systemd/system-preset/99-default-disable.preset",
        "disable *\n",
    );
    let check = |config: Value, base: Value, expect: &[&str]| {
        let config = json!({"systemd": {"units": config}});
        let base = [BaseConfig {
            place: "base.d/a.ign".to_owned(),
            text: json!({"systemd": {"units": base}}).to_string(),
        }];
        let system = System::new(root.path());
        let found = refusals(&config, &base, &system, ABLE);
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), expect.len(), "{config} {lines:#?}");
        assert!(
            lines.iter().zip(expect).all(|(line, expect)| line.starts_with(expect)),
            "{lines:#?}"
        );
        needs_presets(&config, &base, &system)
    };
    let new = json!({"name": "new.service", "enabled": true});
    let linked = json!({"name": "linked.service", "enabled": true});
    // Enabled already: nothing has to be taken for a first boot.
    assert!(!check(json!([linked]), json!([linked]), &[]));
    let refused = "/etc/systemd/system (linked.service): it is enabled, but by no preset";
    assert!(check(json!([new]), json!([]), &[refused]));
    assert!(check(json!([]), json!([new]), &[refused]));
    assert!(!check(json!([{"name": "new.service", "enabled": false}]), json!([new]), &[]));
    assert!(check(
        json!([{"name": "linked.service", "contents": "[Unit]"}, new]),
        json!([]),
        &[refused]
    ));
    assert!(check(json!([new, linked]), json!([]), &[]));
    assert!(check(json!([new]), json!([linked]), &[]));
    // Where a first boot only enables, nothing is lost.
    write(root.path(), "etc/os-release", "ID=debian\n");
    assert!(check(json!([new]), json!([]), &[]));
    fs::remove_file(root.path().join("etc/os-release")).unwrap();
    assert!(check(json!([new]), json!([]), &[refused]));
    write(root.path(), "etc/systemd/system-preset/10-own.preset", "enable linked.service\n");
    assert!(check(json!([new]), json!([]), &[]));
}

#[test]
fn nested_configs_and_kernel_arguments_require_ignition_support() {
    let source = json!({"source": "https://a/b"});
    check(
        ABLE,
        "ignition.config",
        &json!({"merge": [{}, source]}),
        &["ignition.config.merge[1]"],
    );
    check(ABLE, "ignition.config", &json!({"replace": source}), &["ignition.config.replace"]);
    check(ABLE, "ignition.config", &json!({"replace": {"source": null}}), &[]);
    let arguments = json!({"shouldExist": ["a"], "shouldNotExist": ["b"]});
    check(ABLE, "kernelArguments", &arguments, &[]);
    check(
        OLD,
        "kernelArguments",
        &arguments,
        &["kernelArguments.shouldExist", "kernelArguments.shouldNotExist"],
    );
    check(OLD, "kernelArguments", &json!({"shouldExist": []}), &[]);
}

#[test]
fn ignition_result_must_be_valid_json() {
    let root = system();
    let found = || refusals(&json!({}), &[], &System::new(root.path()), ABLE);
    for (report, expect) in [("{\"provisioningBootID\": \"1\"}\n", 0), ("{", 1), ("", 1)] {
        write(root.path(), "etc/.ignition-result.json", report);
        assert_eq!(found().len(), expect, "{report}");
    }
}

#[test]
fn configs_with_remote_sources_need_a_network() {
    for (config, expect) in [
        (json!({"storage": {"files": [{"contents": {"source": "https://a/b"}}]}}), true),
        (json!({"storage": {"files": [{"append": [{"source": "s3://a/b"}]}]}}), true),
        (json!({"storage": {"files": [{"contents": {"source": "data:,https://a"}}]}}), false),
        (json!({"storage": {"files": [{"path": "/source"}]}}), false),
    ] {
        assert_eq!(needs_network(&config), expect, "{config}");
    }
}
