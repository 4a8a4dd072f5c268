//! Files, folders and links: `fileEntry`, `dirEntry`, `linkEntry` and `removePathOnOverwrite` of the stage files.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::{Refusals, is_true, list, text};
use crate::apply::system::{SYSROOT, System};
use crate::pointer::data_url;

/// Mount points that the initramfs does not mount below the new root. Their contents in the running system say nothing about Ignition's
/// view, which is of the disk.
const VOLATILE: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/tmp"];
/// Largest file that is searched for the text to be appended.
const APPENDED_TO_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

pub(crate) fn check(config: &Value, system: &System, found: &mut Refusals) {
    each(config, system, "files", found, file);
    each(config, system, "directories", found, folder);
    each(config, system, "links", found, |link, system, there| {
        let target = text(link, "target").unwrap_or_default();
        match is_true(link, "hard") {
            true => hard_link(&system.path(target), there),
            false => soft_link(Path::new(target), there),
        }
    });
}

/// Existing file, folder or link at a node's path.
struct ExistingNode {
    path: PathBuf,
    metadata: Metadata,
}

/// Rule that returns why a node cannot be made again, given the existing one.
type Rule = fn(&Value, &System, &ExistingNode) -> Option<String>;

fn each(config: &Value, system: &System, kind: &str, found: &mut Refusals, rule: Rule) {
    for (index, node) in list(config, &format!("/storage/{kind}")) {
        let Some(named) = text(node, "path") else { continue };
        let at = format!("storage.{kind}[{index}]");
        if VOLATILE.iter().any(|folder| Path::new(named).starts_with(folder)) {
            if may_stop(kind, node) {
                let why = "this path cannot be inspected from here, and overwrite is not true: if it exists, Ignition would stop the boot";
                found.refuse(&at, named, why);
            }
            continue;
        }
        if let Some(why) = hidden(config, system, named) {
            found.refuse(&at, named, why);
            continue;
        }
        let path = system.path(named);
        let why = match path.symlink_metadata() {
            Ok(metadata) => {
                let there = ExistingNode { path, metadata };
                match is_true(node, "overwrite") {
                    true => lost(&there),
                    false => rule(node, system, &there),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => below_no_folder(&path),
            Err(error) => Some(format!("it cannot be read: {error}")),
        };
        if let Some(why) = why {
            found.refuse(&at, named, why);
        }
    }
}

/// Returns whether Ignition stops if the path already exists, or differs.
fn may_stop(kind: &str, node: &Value) -> bool {
    !is_true(node, "overwrite") && (kind == "links" || kind == "files" && has_contents(node))
}

fn has_contents(file: &Value) -> bool {
    file.pointer("/contents/source").is_some_and(|source| !source.is_null())
}

/// Lets Ignition overwrite the files that it creates. None exists, or it would have been refused. But one may appear before the reboot, and
/// would stop that boot.
pub fn overwrite(config: &mut Value) {
    let files = config.pointer_mut("/storage/files").and_then(Value::as_array_mut);
    for file in files.into_iter().flatten().filter(|file| has_contents(file)) {
        if let Some(file) = file.as_object_mut() {
            file.insert("overwrite".to_owned(), Value::Bool(true));
        }
    }
}

/// A path on another filesystem than the root's. The initramfs mounts only what the config says: Ignition would write below the mount.
fn hidden(config: &Value, system: &System, named: &str) -> Option<String> {
    let mounts = system.mounts();
    let at = |point: &str| mounts.iter().rev().find(|mount| mount.point == point);
    let root = at(SYSROOT).or_else(|| at("/"))?;
    let path = system.resolved(named);
    // Of several the last one is on top.
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    let mount = above.max_by_key(|mount| Path::new(&mount.point).components().count())?;
    let is_made = list(config, "/storage/filesystems")
        .any(|(_, filesystem)| text(filesystem, "path").is_some_and(|path| Path::new(path) == Path::new(&mount.point)));
    (mount.point != "/" && mount.device != root.device && !is_made).then(|| {
        format!(
            "it is on the filesystem mounted at {}, which is not a path of the config's filesystems: Ignition would write below that mount",
            mount.point
        )
    })
}

/// Returns a refusal if `overwrite` would remove a folder with contents.
fn lost(there: &ExistingNode) -> Option<String> {
    let holds_something = || fs::read_dir(&there.path).is_ok_and(|mut entries| entries.next().is_some());
    (there.metadata.is_dir() && holds_something())
        .then(|| "it is a folder, and with overwrite Ignition would remove it with its content".to_owned())
}

fn file(file: &Value, _: &System, there: &ExistingNode) -> Option<String> {
    if !there.metadata.is_file() {
        return Some("it exists and is not a file, and overwrite is not true: Ignition would stop the boot".to_owned());
    }
    if has_contents(file) {
        return Some("it exists, and overwrite is not true: Ignition would stop the boot".to_owned());
    }
    let before = match there.metadata.len() {
        0..=APPENDED_TO_LIMIT_BYTES => fs::read(&there.path).unwrap_or_default(),
        _ => Vec::new(),
    };
    let again = list(file, "/append").any(|(_, resource)| {
        let compression = resource.get("compression").and_then(Value::as_str);
        let content = text(resource, "source").and_then(|source| data_url::content(source, compression).ok());
        content.is_some_and(|content| !content.is_empty() && before.windows(content.len()).any(|part| part == content))
    });
    again.then(|| "the appended content is already present: Ignition would append it again".to_owned())
}

fn folder(_: &Value, _: &System, there: &ExistingNode) -> Option<String> {
    (!there.metadata.is_dir()).then(|| "it exists and is not a folder, and overwrite is not true: Ignition would stop the boot".to_owned())
}

fn hard_link(target: &Path, there: &ExistingNode) -> Option<String> {
    let same = target
        .symlink_metadata()
        .is_ok_and(|target| (target.dev(), target.ino()) == (there.metadata.dev(), there.metadata.ino()));
    (!same).then(|| "it exists and is not the same file as its target, and overwrite is not true: Ignition would stop the boot".to_owned())
}

fn soft_link(target: &Path, there: &ExistingNode) -> Option<String> {
    let same = fs::read_link(&there.path).is_ok_and(|to| clean(&to) == clean(target));
    (!same).then(|| "it exists and is not this link, and overwrite is not true: Ignition would stop the boot".to_owned())
}

/// Returns a refusal if the path's nearest existing ancestor is not a folder.
fn below_no_folder(path: &Path) -> Option<String> {
    let above = path.ancestors().skip(1).find_map(|folder| fs::metadata(folder).ok());
    above
        .is_some_and(|metadata| !metadata.is_dir())
        .then(|| "a component of its path is not a folder: Ignition would stop the boot".to_owned())
}

/// Normalises a path lexically, like Go's `filepath.Clean`.
fn clean(path: &Path) -> PathBuf {
    let mut parts: Vec<Component> = Vec::new();
    for part in path.components() {
        match (part, parts.last()) {
            (Component::CurDir, _) | (Component::ParentDir, Some(Component::RootDir)) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}
