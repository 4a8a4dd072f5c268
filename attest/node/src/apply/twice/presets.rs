//! Presets, as systemd reads them when it treats a boot as a first one (systemd.preset(5); `unit_file_preset_all` of its
//! `src/shared/install.c`). Fedora's systemd then also disables units that no preset enables (its option `first-boot-full-preset`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::apply::system::System;

/// Folders of presets. Of several files with the same name, the one in the first folder counts.
const FOLDERS: [&str; 4] = [
    "/etc/systemd/system-preset",
    "/run/systemd/system-preset",
    "/usr/local/lib/systemd/system-preset",
    "/usr/lib/systemd/system-preset",
];
/// Folder whose links enable units.
const UNITS: &str = "/etc/systemd/system";
/// Suffixes of the folders that hold such links.
const WANTING: [&str; 3] = [".wants", ".requires", ".upholds"];
/// The first release of systemd that a distribution can build so that a first boot disables, too.
const CAN_DISABLE: u32 = 251;
/// The distribution whose systemd is built as it is by default, and only enables; also of those that are like it.
const ONLY_ENABLES: &str = "debian";
/// Link for the system's default target. It does not count as an enabled unit.
const DEFAULT_TARGET: &str = "default.target";

/// The lines of all presets, in their order: verb, and a unit or a pattern.
pub(crate) struct Presets(Vec<(String, String)>);

impl Presets {
    pub(crate) fn read(system: &System) -> Self {
        let mut files = BTreeMap::new();
        for folder in FOLDERS {
            let presets = names(&system.path(folder)).into_iter().filter(|name| name.ends_with(".preset"));
            presets.for_each(|name| {
                files.entry(name.clone()).or_insert_with(|| format!("{folder}/{name}"));
            });
        }
        let texts = files.values().filter_map(|path| system.text(path));
        Self(texts.flat_map(|text| lines(&text)).collect())
    }

    /// Returns whether presets disable this unit: the first line for it counts, and without one it is enabled. Presets apply to unit files,
    /// and so an instance follows its template's line.
    pub(crate) fn disable(&self, unit: &str) -> bool {
        let template = unit.split_once('@').and_then(|(before, after)| {
            let (_, ending) = after.rsplit_once('.')?;
            Some(format!("{before}@.{ending}"))
        });
        let unit = template.as_deref().unwrap_or(unit);
        let first = self.0.iter().find(|(_, pattern)| matches(pattern.as_bytes(), unit.as_bytes()));
        first.is_some_and(|(verb, _)| verb == "disable")
    }
}

/// Returns whether a first boot may disable units that no preset enables. systemd's build options cannot be queried.
pub(crate) fn may_disable(system: &System) -> bool {
    let says = |name: &str| {
        system
            .os_release(name)
            .is_some_and(|ids| ids.split_whitespace().any(|id| id == ONLY_ENABLES))
    };
    let only_enables = says("ID") || says("ID_LIKE") || system.systemd().is_some_and(|version| version < CAN_DISABLE);
    !only_enables
}

/// The units that are enabled by links in `/etc`, by the names of the links.
pub(crate) fn enabled(system: &System) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in names(&system.path(UNITS)) {
        let path = system.path(&format!("{UNITS}/{name}"));
        if WANTING.iter().any(|ending| name.ends_with(ending)) {
            found.extend(names(&path));
        } else if let Some(unit) = aliased(&path, &name) {
            found.push(unit);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the unit for which a link is an alias. A mask is not an alias.
fn aliased(path: &Path, name: &str) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let unit = target.file_name()?.to_str()?.to_owned();
    (target != Path::new("/dev/null") && unit != name && name != DEFAULT_TARGET).then_some(unit)
}

fn lines(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let verb = words.next().filter(|verb| !verb.starts_with(['#', ';']))?;
        Some((verb, words.next()?))
    });
    lines.collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Matches like glob(7), but a set in brackets matches any one character.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], name) => name.is_empty(),
        ([b'*', rest @ ..], name) => (0..=name.len()).any(|skipped| name.get(skipped..).is_some_and(|name| matches(rest, name))),
        ([b'[', rest @ ..], [_, name @ ..]) => {
            let end = rest.iter().skip(1).position(|byte| *byte == b']');
            end.and_then(|end| rest.get(end + 2..)).is_some_and(|rest| matches(rest, name))
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([byte, rest @ ..], [first, name @ ..]) => byte == first && matches(rest, name),
        (_, []) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn first_matching_preset_line_wins() {
        let root = tempfile::tempdir().unwrap();
        let preset = |folder: &str, name: &str, text: &str| write(root.path(), &format!("{folder}/systemd/system-preset/{name}"), text);
        preset("usr/lib", "99-default-disable.preset", "disable *\n");
        preset("usr/lib", "90-own.preset", "enable hidden.service\n");
        preset(
            "etc",
            "90-own.preset",
            "# enable comment.service\nenable first.service\nenable at@.service a\nignore left.service\n",
        );
        preset("etc", "10-own.preset", "disable first.service\n enable s[a-c]t-*.s?rvice\n");
        let presets = Presets::read(&System::new(root.path()));
        for (unit, expect) in [
            ("first.service", true),
            ("hidden.service", true),
            ("comment.service", true),
            ("left.service", false),
            ("at@b.service", false),
            ("sat-x.service", false),
            ("other.service", true),
        ] {
            assert_eq!(presets.disable(unit), expect, "{unit}");
        }
        let none = tempfile::tempdir().unwrap();
        assert!(!Presets::read(&System::new(none.path())).disable("other.service"));
    }

    #[test]
    fn first_boot_may_disable_units_by_distribution() {
        let check = |release: &str, library: &str, expect: bool| {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), "etc/os-release", release);
            write(root.path(), &format!("usr/lib/systemd/{library}"), "");
            assert_eq!(may_disable(&System::new(root.path())), expect, "{release} {library}");
        };
        let new = "libsystemd-shared-257.so";
        check("ID=fedora\n", new, true);
        check("ID=\"rhel\"\nID_LIKE=\"fedora\"\n", "libsystemd-shared-252-32.el9.so", true);
        check("ID=\"rhel\"\nID_LIKE=\"fedora\"\n", "libsystemd-shared-239.so", false);
        check("ID=debian\n", new, false);
        check("ID=x\nID_LIKE=\"ubuntu debian\"\n", new, false);
        check("", "none", true);
    }

    #[test]
    fn enabled_units_are_detected_by_symlinks() {
        let root = tempfile::tempdir().unwrap();
        let link = |path: &str, target: &str| {
            let link = root.path().join("etc/systemd/system").join(path);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, link).unwrap();
        };
        link("multi-user.target.wants/a.service", "../a.service");
        link("b.service.requires/at@x.service", "/usr/lib/systemd/system/at@.service");
        link("alias.service", "/usr/lib/systemd/system/real.service");
        link("masked.service", "/dev/null");
        link("default.target", "/usr/lib/systemd/system/multi-user.target");
        write(root.path(), "etc/systemd/system/own.service", "");
        assert_eq!(enabled(&System::new(root.path())), ["a.service", "at@x.service", "real.service"]);
    }
}
