//! Writing the pointer back so that Ignition sees the old one or the new one, and nothing else.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Replaces `path` with `content`, mode 0600: a ticket is in it.
///
/// The temporary file has one fixed name next to the target, so that a killed run leaves at most one, and the next run removes it.
///
/// # Errors
/// The first system call that failed; the target is then as it was, and no temporary file is left.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let temporary = temporary_of(path)?;
    remove(&temporary)?;
    let result = write_new(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = remove(&temporary);
    }
    result?;
    File::open(folder)?.sync_all()
}

/// Checks that [`replace`] could make its temporary file, or the folder for it. Nothing of that is left.
///
/// # Errors
/// The first system call that failed.
pub fn probe(path: &Path) -> io::Result<()> {
    let temporary = temporary_of(path)?;
    let there = folder_of(path).ancestors().map(or_here).find(|folder| folder.exists());
    let temporary = there
        .unwrap_or_else(|| Path::new("/"))
        .join(temporary.file_name().unwrap_or_default());
    remove(&temporary)?;
    write_new(&temporary, b"")?;
    remove(&temporary)
}

fn folder_of(path: &Path) -> &Path {
    or_here(path.parent().unwrap_or(path))
}

fn or_here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Removes leftover temporary files of a killed run.
pub fn tidy(path: &Path) {
    if let Ok(temporary) = temporary_of(path) {
        let _ = remove(&temporary);
    }
}

fn temporary_of(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the output path has no file name"))?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".attest-node");
    Ok(path.with_file_name(temporary))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
    fn the_file_is_replaced_and_private() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/ignition");
        let path = folder.join("user.ign");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(&folder), ["user.ign"]);
    }

    #[test]
    fn leftover_temporary_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.ign");
        fs::write(folder.path().join(".user.ign.attest-node"), "a ticket").unwrap();
        tidy(&path);
        assert!(names(folder.path()).is_empty());
        fs::write(folder.path().join(".user.ign.attest-node"), "a ticket").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(names(folder.path()), ["user.ign"]);
    }

    #[test]
    fn a_probe_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usr/lib/user.ign");
        probe(&path).unwrap();
        assert!(names(folder.path()).is_empty());
        replace(&path, b"one").unwrap();
        probe(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(names(path.parent().unwrap()), ["user.ign"]);
        // A folder cannot be made there.
        assert!(probe(&path.join("lib/user.ign")).is_err());
        assert!(probe(Path::new("/")).is_err());
    }

    #[test]
    fn symlink_is_replaced_and_its_target_unchanged() {
        let (initramfs, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, target) = (initramfs.path().join("user.ign"), disk.path().join("config.ign"));
        for there in [true, false] {
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(&target, &path).unwrap();
            if there {
                fs::write(&target, "as installed").unwrap();
            } else {
                fs::remove_file(&target).unwrap();
            }
            probe(&path).unwrap();
            replace(&path, b"a ticket").unwrap();
            assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
            assert_eq!(fs::read(&path).unwrap(), b"a ticket");
            assert_eq!(fs::read(&target).ok().as_deref(), there.then_some(b"as installed".as_slice()));
        }
    }

    #[test]
    fn a_failure_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.ign");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert_eq!(names(folder.path()), ["user.ign"]);
        assert!(replace(Path::new("/"), b"new").is_err());
        assert!(replace(&folder.path().join(".."), b"new").is_err());
    }
}
