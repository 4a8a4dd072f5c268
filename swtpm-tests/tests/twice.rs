//! Changes that Ignition cannot make twice, verified with Debian's own Ignition. Its files stage runs on a folder that represents an
//! existing system, for each kind of node at each kind of place. It succeeds or fails as `attest_node::apply::twice` predicts.
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use attest_node::apply::system::System;
use attest_node::apply::twice::{Abilities, refusals};
use serde_json::{Value, json};
use swtpm_tests::{DebianRelease, Images};

/// Places for a new object: a missing path, a file, a file behind a linked folder, folders, links with and without a target. Others are
/// below an object that is not a folder.
const PLACES: [&str; 11] = [
    "/etc/new",
    "/etc/new/deep/below",
    "/etc/file",
    "/etc/to-full/inside",
    "/etc/empty",
    "/etc/full",
    "/etc/to-full",
    "/etc/link",
    "/etc/dangling",
    "/etc/file/below",
    "/etc/link/below",
];
/// Abilities of the system for files: all are possible.
const ABILITIES: Abilities = Abilities {
    ignition: (2, 14),
    changes_kernel_arguments: true,
    heeds_presets: true,
};

/// Creates an existing system.
fn system(root: &Path) {
    for folder in ["etc/selinux", "etc/empty", "etc/full/folder"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (path, text) in [
        ("etc/selinux/config", "SELINUXTYPE=none\n"),
        ("etc/file", "content"),
        ("etc/full/inside", "inside"),
        ("etc/full/folder/deep", "deep"),
    ] {
        fs::write(root.join(path), text).unwrap();
    }
    for (path, target) in [("etc/to-full", "full"), ("etc/link", "file"), ("etc/dangling", "/none")] {
        symlink(target, root.join(path)).unwrap();
    }
    fs::hard_link(root.join("etc/file"), root.join("etc/same")).unwrap();
}

/// Returns each kind of node, without its place.
fn nodes() -> Vec<(&'static str, Value)> {
    let contents = |text: &str| json!({"source": format!("data:,{text}")});
    let link = |target: &str, hard: bool| ("links", json!({"target": target, "hard": hard}));
    vec![
        ("files", json!({"contents": contents("content")})),
        ("files", json!({"contents": contents("new"), "append": [contents("more")]})),
        ("files", json!({"mode": 0o600})),
        ("files", json!({"append": [contents("more")]})),
        ("files", json!({"append": [contents("tent")]})),
        ("directories", json!({"mode": 0o755})),
        link("file", false),
        link("./file", false),
        link("/none", false),
        link("full/", false),
        link("/etc/file", true),
        link("/etc/same", true),
        link("/etc/full/inside", true),
    ]
}

/// Returns everything below a root: the contents of files, and the targets of links.
fn all(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let content = match () {
                () if kind.is_symlink() => format!("-> {}", fs::read_link(&path).unwrap().display()),
                () if kind.is_dir() => String::new(),
                () => fs::read_to_string(&path).unwrap(),
            };
            if kind.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path.strip_prefix(root).unwrap().to_owned(), content);
        }
    }
    found
}

/// Returns whether Ignition stops, or an object is lost or doubled, other than the node at `place` itself.
fn fails(ignition: &Path, folder: &Path, config: &Value, place: &str) -> bool {
    let root = folder.join("root");
    let before = all(&root);
    let cache = folder.join("config.json");
    fs::write(&cache, config.to_string()).unwrap();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let output = Command::new(ignition)
        .args(["--platform", "metal", "--stage", "files", "--log-to-stdout", "--root"])
        .arg(&root)
        .arg("--config-cache")
        .arg(&cache)
        .arg("--state-file")
        .arg(folder.join("state"))
        .env("PATH", path)
        .output()
        .unwrap();
    let after = all(&root);
    let below = Path::new(place.trim_start_matches('/'));
    let lost = before.keys().any(|path| path != below && !after.contains_key(path));
    let twice = after.values().any(|text| text.contains("tenttent"));
    !output.status.success() || lost || twice
}

#[test]
fn repeated_ignition_failures_are_as_predicted() {
    let ignition = Images::whole(DebianRelease::Bookworm).unwrap().ignition().unwrap();
    let (mut refused, mut taken) = (0, 0);
    for place in PLACES {
        for (kind, node) in nodes() {
            for overwrite in [None, Some(false), Some(true)] {
                let mut node = node.clone();
                // A hard link to itself is one on no system.
                let target = node["target"].as_str().unwrap_or_default();
                if node["hard"] == true && place.replace("/etc/to-full/", "/etc/full/") == target {
                    continue;
                }
                node["path"] = json!(place);
                node["overwrite"] = json!(overwrite);
                let config = json!({"ignition": {"version": "3.4.0-experimental"}, "storage": {kind: [node]}});
                let folder = tempfile::tempdir().unwrap();
                system(&folder.path().join("root"));
                // Debian's Ignition calls it, and SELinux is not what this is about.
                let stub = folder.path().join("bin/setfiles");
                fs::create_dir(folder.path().join("bin")).unwrap();
                fs::write(&stub, "#!/bin/sh\nexit 0\n").unwrap();
                fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
                let found = refusals(&config, &[], &System::new(&folder.path().join("root")), ABILITIES);
                let wrong = fails(&ignition, folder.path(), &config, place);
                assert_eq!(!found.is_empty(), wrong, "{config}: {found:?}");
                if wrong { refused += 1 } else { taken += 1 }
            }
        }
    }
    // Both ways were gone, each many times.
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}
