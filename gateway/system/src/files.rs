//! Files that exist as a whole or not at all, even after a power failure; and the private folder of their owner.

mod reading;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

pub use reading::{SMALL_FILE_LIMIT_BYTES, no_other_than_file, open, read, read_text};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

/// Mode of files that all users may read.
pub const PUBLIC: u32 = 0o644;
/// Mode of files that only their owner may read.
pub const PRIVATE: u32 = 0o600;

/// Returns whether root has made a file of this mode and owner readable for one group. A user who can read it is then in that group.
/// Kubernetes gives a Secret in this way to a pod that does not run as root.
#[must_use]
pub fn is_given(mode: u32, owner: u32) -> bool {
    given(mode, owner, geteuid().as_raw())
}

const fn given(mode: u32, owner: u32, user: u32) -> bool {
    owner == 0 && user != 0 && mode & 0o037 == 0
}

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct WriteError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// Writes a file that must not exist yet.
///
/// # Errors
/// [`WriteError`], of kind `AlreadyExists` if it is there.
pub fn create(path: &Path, mode: u32, text: &str) -> Result<(), WriteError> {
    create_bytes(path, mode, text.as_bytes())
}

/// Writes a file like [`create`] that need not be text.
///
/// # Errors
/// Those of [`create`].
pub fn create_bytes(path: &Path, mode: u32, content: &[u8]) -> Result<(), WriteError> {
    named(path, || {
        let temporary = Temporary::write(path, mode, content, None)?;
        // Unlike a rename, a link does not take the place of anything. Some file systems, such as those of memory sticks, have none.
        match fs::hard_link(&temporary.0, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                fs::rename(&temporary.0, path)?;
            }
            linked => linked?,
        }
        drop(temporary);
        sync_folder(path)
    })
}

/// Replaces a file, following a link. Owner and mode stay: a gateway that runs as its own user must be able to read files of root. Creates
/// a missing file, with `mode`.
///
/// # Errors
/// [`WriteError`].
pub fn replace(path: &Path, mode: u32, text: &str) -> Result<(), WriteError> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return create(path, mode, text);
    }
    named(path, || {
        let path = fs::canonicalize(path)?;
        let old = fs::metadata(&path)?;
        let temporary = Temporary::write(
            &path,
            old.permissions().mode() & 0o7777,
            text.as_bytes(),
            Some((old.uid(), old.gid())),
        )?;
        fs::rename(&temporary.0, &path)?;
        sync_folder(&path)
    })
}

/// Renames a file; the new name must be free.
///
/// # Errors
/// [`WriteError`].
pub fn rename(from: &Path, to: &Path) -> Result<(), WriteError> {
    named(to, || {
        if fs::symlink_metadata(to).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(from, to)?;
        sync_folder(to)
    })
}

/// Removes a file, durably.
///
/// # Errors
/// [`WriteError`].
pub fn remove(path: &Path) -> Result<(), WriteError> {
    named(path, || fs::remove_file(path).and_then(|()| sync_folder(path)))
}

fn named(path: &Path, work: impl FnOnce() -> io::Result<()>) -> Result<(), WriteError> {
    work().map_err(|source| WriteError {
        path: path.to_owned(),
        source,
    })
}

/// Free bytes of a file system below which writing a few pages fails.
const FULL_BYTES: u64 = 64 * 1024;

/// Returns whether the disk of a file has no space or no entries left for another one.
#[must_use]
pub fn is_disk_full(path: &Path) -> bool {
    // Some file systems count no entries.
    let is_full =
        |disk: rustix::fs::StatVfs| disk.f_bavail.saturating_mul(disk.f_frsize) < FULL_BYTES || (disk.f_files > 0 && disk.f_favail == 0);
    rustix::fs::statvfs(folder(path)).is_ok_and(is_full)
}

/// Returns the folder of a file.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

/// Restricts the folder of private state to its owner; returns the previous mode, if it was another one.
///
/// # Errors
/// The file system's.
pub fn restrict_to_owner(folder: &Path) -> io::Result<Option<u32>> {
    let mode = fs::metadata(folder)?.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(None);
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(mode & 0o7700))?;
    Ok(Some(mode))
}

/// Creates the folder of private state, for its owner only.
///
/// # Errors
/// The file system's.
pub fn make_private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Lets one process after the other change the files of a folder: waits until no other holds the lock, and holds it until it is dropped.
/// Whoever only reads needs none.
///
/// # Errors
/// The file system's.
pub fn lock_folder(folder: &Path) -> io::Result<File> {
    let opened = File::open(folder)?;
    flock(&opened, FlockOperation::LockExclusive)?;
    Ok(opened)
}

/// Returns the path under which a file is written until it is complete.
#[must_use]
pub fn temporary_file(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy();
    Some(folder(path).join(format!(".{name}.part")))
}

/// A file under a name that no program reads; removed when dropped, unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn write(path: &Path, mode: u32, content: &[u8], owner: Option<(u32, u32)>) -> io::Result<Self> {
        let temporary = temporary_file(path).ok_or(io::ErrorKind::InvalidFilename)?;
        // What a crash has left behind.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&temporary)?;
        let temporary = Self(temporary);
        if let Some((uid, gid)) = owner {
            let now = file.metadata()?;
            if (now.uid(), now.gid()) != (uid, gid) {
                fchown(&file, Some(uid), Some(gid))?;
            }
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(temporary)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn accepts_only_root_owned_group_readable_files() {
        let check = |mode: u32, owner: u32, user: u32, expected: bool| {
            assert_eq!(given(mode, owner, user), expected, "{mode:o} {owner} {user}");
        };
        check(0o440, 0, 22_625, true);
        check(0o640, 0, 22_625, true);
        check(0o444, 0, 22_625, false);
        check(0o460, 0, 22_625, false);
        check(0o450, 0, 22_625, false);
        check(0o441, 0, 22_625, false);
        check(0o440, 22_625, 22_625, false);
        check(0o440, 1000, 22_625, false);
        check(0o440, 0, 0, false);
    }

    #[test]
    fn create_and_rename_overwrite_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        create(&one, PRIVATE, "1").unwrap();
        assert_eq!(fs::metadata(&one).unwrap().mode() & 0o777, 0o600);
        assert_eq!(create(&one, PUBLIC, "2").unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        create(&two, PUBLIC, "2").unwrap();
        assert_eq!(rename(&one, &two).unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (b"1".to_vec(), b"2".to_vec()));
        assert_eq!(names(folder.path()), ["one", "two"]);
        remove(&two).unwrap();
        rename(&one, &two).unwrap();
        assert_eq!(names(folder.path()), ["two"]);
    }

    #[test]
    fn replace_keeps_file_mode_and_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        create(&file, 0o640, "1").unwrap();
        symlink("file", &link).unwrap();
        // What a crash has left behind is in nobody's way.
        fs::write(folder.path().join(".file.part"), "half").unwrap();
        replace(&link, PUBLIC, "2").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"2");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(folder.path()), ["file", "link"]);
        symlink("nowhere", folder.path().join("dangling")).unwrap();
        assert!(replace(&folder.path().join("dangling"), PUBLIC, "3").is_err());
        let lost = folder.path().join("lost");
        replace(&lost, PRIVATE, "3").unwrap();
        assert_eq!(fs::metadata(&lost).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn close_to_others_returns_the_previous_mode() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, told) in [
            (0o700, None),
            (0o500, None),
            (0o755, Some(0o755)),
            (0o710, Some(0o710)),
            (0o701, Some(0o701)),
        ] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(restrict_to_owner(folder.path()).unwrap(), told);
            let now = fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777;
            assert_eq!(now, mode & 0o700, "{mode:o}");
        }
    }
}
