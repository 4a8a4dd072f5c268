//! The configs of an initramfs that Ignition merges below any other, at each of its stages: `base.d` and `base.platform.d/PLATFORM` in its
//! folders (`FetchBaseConfig` of `internal/providers/system`). Of several files of one name that in the highest folder counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{IgnitionInput, IgnitionVersion, USER_CONFIG, exists};

/// Those for every platform.
const EVERYWHERE: &str = "base.d";
/// A folder for each platform.
const PLATFORMS: &str = "base.platform.d";
/// The most that is read of all of them. Fedora CoreOS's have 2 KiB.
const LIMIT_BYTES: u64 = 1024 * 1024;

/// Base config of an initramfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseConfig {
    /// Relative path in Ignition's folders: `base.d/00-core.ign`.
    pub place: String,
    pub text: String,
}

impl BaseConfig {
    /// Returns whether it applies to a platform. Without a known platform, all apply.
    #[must_use]
    pub fn counts_on(&self, platform: Option<&str>) -> bool {
        match self.place.strip_prefix(PLATFORMS).and_then(|place| place.strip_prefix('/')) {
            Some(place) => platform.is_none_or(|platform| place.split('/').next() == Some(platform)),
            None => true,
        }
    }
}

/// Reads all base configs of an initramfs, for all platforms, in the order in which Ignition merges them.
///
/// # Errors
/// The configs cannot all be read, or are too large.
pub fn configs(root: &Path, version: IgnitionVersion, told: &IgnitionInput) -> io::Result<Vec<BaseConfig>> {
    let mut files = BTreeMap::new();
    for folder in folders(root, version, told) {
        let mut places = vec![EVERYWHERE.to_owned()];
        places.extend(
            names(&folder.join(PLATFORMS))?
                .into_iter()
                .map(|name| format!("{PLATFORMS}/{name}")),
        );
        for place in places {
            for name in names(&folder.join(&place))? {
                let path = folder.join(&place).join(&name);
                files.entry(format!("{place}/{name}")).or_insert(path);
            }
        }
    }
    let mut left = LIMIT_BYTES;
    let read = files.into_iter().map(|(place, path)| {
        let mut text = String::new();
        File::open(path)?.take(left.saturating_add(1)).read_to_string(&mut text)?;
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        left = left.checked_sub(length).ok_or_else(|| io::Error::other("they are too large"))?;
        Ok(BaseConfig { place, text })
    });
    read.collect()
}

/// A `user.ign` that outranks the one in the lowest folder, where the config of a first boot is put.
#[must_use]
pub fn above(root: &Path, version: IgnitionVersion, told: &IgnitionInput) -> Option<PathBuf> {
    let folders = folders(root, version, told);
    let (_lowest, higher) = folders.split_last()?;
    higher.iter().map(|folder| folder.join(USER_CONFIG)).find(|path| exists(path))
}

/// Ignition's folders below a root, highest first; of a version that is not known all.
fn folders(root: &Path, version: IgnitionVersion, told: &IgnitionInput) -> Vec<PathBuf> {
    let version = match version {
        IgnitionVersion::Unknown => IgnitionVersion::From2_27,
        known => known,
    };
    let below = |folder: PathBuf| root.join(folder.strip_prefix("/").unwrap_or(&folder));
    told.folders(version).into_iter().map(below).collect()
}

/// Returns the names in a folder; empty if it does not exist.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| {
        let name = entry?.file_name().into_string();
        name.map_err(|name| io::Error::other(format!("{} is not UTF-8", name.display())))
    });
    names.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, path).unwrap();
    }

    fn check(version: IgnitionVersion, expect: &[(&str, &str)]) {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "usr/lib/ignition/base.platform.d/aws/20-a.ign",
            "usr/lib/ignition/base.platform.d/gcp/20-a.ign",
            "usr/lib/ignition/base.d/30-b.ign",
            "usr/lib/ignition/base.d/00-core.ign",
            "etc/ignition/base.d/30-b.ign",
        ] {
            write(root.path(), path);
        }
        let found = configs(root.path(), version, &IgnitionInput::default()).unwrap();
        let found: Vec<_> = found.iter().map(|config| (config.place.as_str(), config.text.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn base_configs_come_from_all_version_folders() {
        let below = |text: &'static str| {
            [
                ("base.d/00-core.ign", "usr/lib/ignition/base.d/00-core.ign"),
                ("base.d/30-b.ign", text),
                ("base.platform.d/aws/20-a.ign", "usr/lib/ignition/base.platform.d/aws/20-a.ign"),
                ("base.platform.d/gcp/20-a.ign", "usr/lib/ignition/base.platform.d/gcp/20-a.ign"),
            ]
        };
        check(IgnitionVersion::UpTo2_26, &below("usr/lib/ignition/base.d/30-b.ign"));
        check(IgnitionVersion::From2_27, &below("etc/ignition/base.d/30-b.ign"));
        check(IgnitionVersion::Unknown, &below("etc/ignition/base.d/30-b.ign"));
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(
            configs(empty.path(), IgnitionVersion::From2_27, &IgnitionInput::default()).unwrap(),
            []
        );
    }

    #[test]
    fn platform_base_config_applies_to_its_platform() {
        let config = |place: &str| BaseConfig {
            place: place.to_owned(),
            text: String::new(),
        };
        for (place, platform, expect) in [
            ("base.d/00-core.ign", Some("aws"), true),
            ("base.platform.d/aws/20-a.ign", Some("aws"), true),
            ("base.platform.d/aws/20-a.ign", Some("gcp"), false),
            ("base.platform.d/aws/20-a.ign", None, true),
        ] {
            assert_eq!(config(place).counts_on(platform), expect, "{place} {platform:?}");
        }
    }

    #[test]
    fn user_config_above_the_lowest_folder_is_found() {
        let root = tempfile::tempdir().unwrap();
        let found = |version| above(root.path(), version, &IgnitionInput::default());
        write(root.path(), "usr/lib/ignition/user.ign");
        assert_eq!(found(IgnitionVersion::From2_27), None);
        write(root.path(), "etc/ignition/user.ign");
        assert_eq!(found(IgnitionVersion::From2_27), Some(root.path().join("etc/ignition/user.ign")));
        assert!(found(IgnitionVersion::Unknown).is_some());
        assert_eq!(found(IgnitionVersion::UpTo2_26), None);
    }
}
