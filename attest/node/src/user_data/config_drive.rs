//! Config drives: a filesystem with a known label, and the user data in one of its files.
//!
//! udev links the drive by its label. Of two drives with one label, the link leads to one of them: Ignition mounts the same one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::disk::Disks;
use crate::pointer::POINTER_LIMIT_BYTES;

use super::first_answer::SourceWait;
use super::{UserData, UserDataError};

/// Path of the user data on OpenStack's drives, and on those that are made like them.
const OPENSTACK: &str = "openstack/latest/user_data";
/// Path of the user data on cloud-init's NoCloud drives.
const NO_CLOUD: &str = "user-data";
/// Interval between checks for the drive.
const POLL: Duration = Duration::from_millis(500);

/// The drive of OpenStack and of platforms like it.
pub const CONFIG_2: ConfigDrive = ConfigDrive {
    label: "config-2",
    file: OPENSTACK,
};
/// The same drive as a FAT filesystem.
pub const CONFIG_2_CAPITALS: ConfigDrive = ConfigDrive {
    label: "CONFIG-2",
    file: OPENSTACK,
};
/// The drive of NoCloud.
pub const CIDATA: ConfigDrive = ConfigDrive {
    label: "cidata",
    file: NO_CLOUD,
};

/// A config drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigDrive {
    label: &'static str,
    /// Path of the user data on it.
    file: &'static str,
}

impl ConfigDrive {
    /// Waits for the drive, and reads its user data; `None` if it has none.
    ///
    /// # Errors
    /// [`UserDataError::NoDrive`], [`UserDataError::Drive`].
    pub fn read(&self, disks: &impl Disks, wait: &SourceWait) -> Result<UserData, UserDataError> {
        let label = self.label;
        while !disks.exists(label) {
            if !wait.sleep(POLL) {
                return Err(UserDataError::NoDrive { label });
            }
        }
        // Two drives may be mounted at once.
        let at = PathBuf::from(format!("/run/attest-node-drive-{label}"));
        let read = disks.with(label, &at, true, |root| user_data_in(root, self.file));
        read.map_err(|error| UserDataError::Drive {
            label,
            problem: error.to_string(),
        })
    }
}

/// Reads the user data on a mounted drive. Ignition would follow a link out of the drive; a drive must not choose files of the initramfs.
fn user_data_in(root: &Path, file: &str) -> io::Result<UserData> {
    let root = root.canonicalize()?;
    let path = match root.join(file).canonicalize() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        path => path?,
    };
    if !path.starts_with(&root) {
        return Err(io::Error::other(format!("{file} is a link that leaves the drive")));
    }
    // To open a FIFO would wait for a writer.
    if !fs::metadata(&path)?.is_file() {
        return Err(io::Error::other(format!("{file} is not a file")));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    let limit = u64::try_from(POINTER_LIMIT_BYTES).unwrap_or(u64::MAX);
    // One that is too long is said to be so where pointers are read.
    File::open(&path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((!bytes.trim_ascii().is_empty()).then_some(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::sync::Mutex;

    use crate::deadline::Deadline;

    use super::*;

    /// A drive that is a folder.
    struct Drive {
        label: &'static str,
        root: PathBuf,
        /// Number of checks that do not see the drive yet.
        late: Mutex<usize>,
        mounted: Mutex<Vec<(PathBuf, bool)>>,
        broken: bool,
    }

    impl Drive {
        fn new(label: &'static str, root: &Path) -> Self {
            Self {
                label,
                root: root.to_owned(),
                late: Mutex::default(),
                mounted: Mutex::default(),
                broken: false,
            }
        }
    }

    impl Disks for Drive {
        fn are_anothers(&self) -> bool {
            false
        }

        fn exists(&self, label: &str) -> bool {
            let mut late = self.late.lock().unwrap();
            let there = *late == 0;
            *late = late.saturating_sub(1);
            there && label == self.label
        }

        fn settle(&self) {}

        fn are_its_own(&self) -> bool {
            true
        }

        fn with<T>(&self, label: &str, at: &Path, read_only: bool, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
            assert_eq!(label, self.label);
            self.mounted.lock().unwrap().push((at.to_owned(), read_only));
            if self.broken {
                return Err(io::Error::other("wrong fs type"));
            }
            work(&self.root)
        }
    }

    fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn read(drive: &ConfigDrive, disks: &Drive, seconds: u64) -> Result<Option<String>, String> {
        let found = drive.read(disks, &SourceWait::until(Deadline::after(Duration::from_secs(seconds))));
        let text = |bytes: Zeroizing<Vec<u8>>| String::from_utf8(bytes.to_vec()).unwrap();
        found.map(|found| found.map(text)).map_err(|error| error.to_string())
    }

    /// Checks the user data of a drive with this content.
    fn check(fill: impl FnOnce(&Path), expect: Result<Option<&str>, &str>) {
        let root = tempfile::tempdir().unwrap();
        fill(root.path());
        let found = read(&CONFIG_2, &Drive::new("config-2", root.path()), 5);
        match expect {
            Ok(text) => assert_eq!(found, Ok(text.map(str::to_owned))),
            Err(part) => {
                let error = found.unwrap_err();
                assert!(error.contains(part) && error.contains("label config-2"), "{error}");
            }
        }
    }

    #[test]
    fn user_data_is_in_the_file_of_its_platform() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), OPENSTACK, "openstack");
        write(root.path(), NO_CLOUD, "nocloud");
        for (drive, label, expect) in [
            (CONFIG_2, "config-2", "openstack"),
            (CONFIG_2_CAPITALS, "CONFIG-2", "openstack"),
            (CIDATA, "cidata", "nocloud"),
        ] {
            let disks = Drive::new(label, root.path());
            assert_eq!(read(&drive, &disks, 5), Ok(Some(expect.to_owned())));
            let mounted = disks.mounted.lock().unwrap().clone();
            assert_eq!(mounted, [(PathBuf::from(format!("/run/attest-node-drive-{label}")), true)]);
        }
    }

    #[test]
    fn drive_without_user_data_has_none() {
        check(|_| (), Ok(None));
        check(|root| write(root, "openstack/latest/meta_data.json", "{}"), Ok(None));
        check(|root| write(root, OPENSTACK, ""), Ok(None));
        check(|root| write(root, OPENSTACK, " \n"), Ok(None));
        check(|root| write(root, "openstack", "a file"), Ok(None));
        check(
            |root| {
                fs::create_dir_all(root.join("openstack/latest")).unwrap();
                symlink("/nonexistent", root.join(OPENSTACK)).unwrap();
            },
            Ok(None),
        );
    }

    #[test]
    fn links_within_the_drive_are_followed() {
        check(
            |root| {
                write(root, "openstack/2018-08-27/user_data", "{}");
                symlink("2018-08-27", root.join("openstack/latest")).unwrap();
            },
            Ok(Some("{}")),
        );
    }

    #[test]
    fn links_that_leave_the_drive_are_refused() {
        let outside = tempfile::tempdir().unwrap();
        write(outside.path(), "latest/user_data", "a file of the initramfs");
        let leaves = Err("is a link that leaves the drive");
        check(
            |root| {
                fs::create_dir_all(root.join("openstack/latest")).unwrap();
                symlink(outside.path().join("latest/user_data"), root.join(OPENSTACK)).unwrap();
            },
            leaves,
        );
        check(|root| symlink(outside.path(), root.join("openstack")).unwrap(), leaves);
        check(
            |root| {
                fs::create_dir_all(root.join("openstack/latest")).unwrap();
                symlink("../../../../../../../../etc/passwd", root.join(OPENSTACK)).unwrap();
            },
            leaves,
        );
    }

    #[test]
    fn only_a_file_is_read() {
        check(|root| fs::create_dir_all(root.join(OPENSTACK)).unwrap(), Err("is not a file"));
        check(
            |root| {
                fs::create_dir_all(root.join("openstack/latest")).unwrap();
                let made = Command::new("mkfifo").arg(root.join(OPENSTACK)).status().unwrap();
                assert!(made.success());
            },
            Err("is not a file"),
        );
        check(
            |root| {
                fs::create_dir_all(root.join("openstack/latest")).unwrap();
                symlink("user_data", root.join(OPENSTACK)).unwrap();
            },
            Err("symbolic links"),
        );
    }

    #[test]
    fn large_user_data_is_not_read_whole() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), OPENSTACK, vec![b'x'; 2 * POINTER_LIMIT_BYTES]);
        let found = read(&CONFIG_2, &Drive::new("config-2", root.path()), 5).unwrap().unwrap();
        assert_eq!(found.len(), POINTER_LIMIT_BYTES + 1);
    }

    #[test]
    fn unreadable_drive_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let disks = Drive {
            broken: true,
            ..Drive::new("config-2", root.path())
        };
        let error = read(&CONFIG_2, &disks, 5).unwrap_err();
        assert_eq!(error, "the config drive with the label config-2 cannot be read: wrong fs type");
    }

    #[test]
    fn waits_for_a_drive_until_the_deadline() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), OPENSTACK, "{}");
        let disks = Drive {
            late: Mutex::new(2),
            ..Drive::new("config-2", root.path())
        };
        assert_eq!(read(&CONFIG_2, &disks, 30), Ok(Some("{}".to_owned())));
        // Another label is another drive.
        let disks = Drive::new("CONFIG-2", root.path());
        assert_eq!(read(&CONFIG_2, &disks, 1), Err("no filesystem has the label config-2".to_owned()));
        assert!(disks.mounted.lock().unwrap().is_empty());
    }
}
