//! Boot filesystem: the files that a boot loader reads.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: an initrd.
pub(super) const FILE_LIMIT_BYTES: u64 = 128 * 1024 * 1024;

/// Suffix of a file that is being written. A killed run leaves it, and no boot loader reads it.
pub(super) const PARTIAL: &str = ".attest-node-partial";

/// Access to a boot filesystem. Paths are relative to its root, and have no leading slash.
pub(super) trait BootFilesystem {
    /// Returns the names in a folder, sorted; none if the folder does not exist.
    fn names(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Returns a file's content; `None` if it does not exist, or is no regular file.
    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>>;
    /// Creates or replaces a file, with its folders.
    fn write(&self, path: &str, content: &[u8]) -> io::Result<()>;
    /// Removes a file, if it exists.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes a folder, if it exists and is empty.
    fn remove_folder(&self, path: &str);
}

/// Mounted boot filesystem. A reader, also after a kill, sees a replaced file in whole: the old one or the new one.
#[derive(Debug)]
pub(super) struct MountedFilesystem {
    root: PathBuf,
    /// Keeps other runs of this program out.
    _lock: File,
}

impl MountedFilesystem {
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if another run of this program works on the folder; else the operating system's error.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let lock = File::open(root)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::new(ErrorKind::WouldBlock, "another attest-node is changing it")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self {
            root: root.canonicalize()?,
            _lock: lock,
        })
    }

    /// Returns the location of a path. Links of the filesystem may not lead out of it: root would change files of the running system.
    fn location(&self, path: &str) -> io::Result<PathBuf> {
        let location = self.root.join(path);
        let existing = location.ancestors().find(|above| above.symlink_metadata().is_ok());
        if existing.unwrap_or(&self.root).canonicalize()?.starts_with(&self.root) {
            Ok(location)
        } else {
            Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "a link leads out of the boot filesystem",
            ))
        }
    }
}

impl BootFilesystem for MountedFilesystem {
    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.location(folder)?) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let location = self.location(path)?;
        let is_file = match fs::metadata(&location) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
            metadata => metadata?.is_file(),
        };
        if !is_file {
            return Ok(None);
        }
        let mut content = Vec::new();
        File::open(location)?.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut content)?;
        match u64::try_from(content.len()) {
            Ok(length) if length <= FILE_LIMIT_BYTES => Ok(Some(content)),
            _ => Err(io::Error::new(ErrorKind::FileTooLarge, "the file is larger than 128 MiB")),
        }
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = self.location(path)?;
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder)?;
        let mut partial = path.clone().into_os_string();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let written = replace(&path, &partial, content);
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written?;
        File::open(folder)?.sync_all()
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        match fs::remove_file(self.location(path)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_folder(&self, path: &str) {
        let _ = self.location(path).and_then(fs::remove_dir);
    }
}

fn replace(path: &Path, partial: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Never an existing file: it could be a link.
    let mut file = File::create_new(partial)?;
    file.write_all(content)?;
    if let Ok(former) = fs::metadata(path) {
        // A FAT file system has neither.
        let _ = fchown(&file, Some(former.uid()), Some(former.gid()));
        let _ = file.set_permissions(former.permissions());
    }
    file.sync_all()?;
    fs::rename(partial, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn keeps_modes_and_replaces_leftovers() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let mounted = MountedFilesystem::open(folder.path()).unwrap();
        mounted.write("a/b", b"1").unwrap();
        fs::set_permissions(folder.path().join("a/b"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(folder.path().join(format!("a/b{PARTIAL}")), "left by a kill").unwrap();
        mounted.write("a/b", b"2").unwrap();
        assert_eq!(mounted.read("a/b").unwrap(), Some(b"2".to_vec()));
        assert_eq!(fs::metadata(folder.path().join("a/b")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(mounted.names("a").unwrap(), ["b"]);
        mounted.remove_folder("a");
        mounted.remove("a/b").unwrap();
        mounted.remove("a/b").unwrap();
        mounted.remove_folder("a");
        assert!(mounted.names("a").unwrap().is_empty() && mounted.names("a/b/c").unwrap().is_empty());
        assert_eq!(mounted.read("a/b").unwrap(), None);
    }

    #[test]
    fn links_may_not_lead_out_of_the_filesystem() {
        use std::os::unix::fs::symlink;
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "x").unwrap();
        let root = inside.path();
        symlink(outside.path(), root.join("folder")).unwrap();
        symlink(outside.path().join("file"), root.join("file")).unwrap();
        symlink("../../..", root.join("up")).unwrap();
        fs::create_dir_all(root.join("loader.1/entries")).unwrap();
        symlink("loader.1", root.join("loader")).unwrap();
        let mounted = MountedFilesystem::open(root).unwrap();
        symlink(outside.path().join("file"), root.join(format!("entry{PARTIAL}"))).unwrap();
        mounted_write(root, "entry");
        assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"x");
        for path in ["folder/new", "folder/file", "file", "up/x"] {
            assert_eq!(mounted.write(path, b"y").unwrap_err().kind(), ErrorKind::PermissionDenied, "{path}");
            assert_eq!(mounted.read(path).unwrap_err().kind(), ErrorKind::PermissionDenied, "{path}");
            assert_eq!(mounted.remove(path).unwrap_err().kind(), ErrorKind::PermissionDenied, "{path}");
        }
        mounted.names("folder").unwrap_err();
        mounted.remove_folder("folder");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        mounted.write("loader/entries/x.conf", b"y").unwrap();
        assert_eq!(mounted.names("loader/entries").unwrap(), ["x.conf"]);
    }

    fn mounted_write(root: &Path, path: &str) {
        // By another handle: the first one has the lock.
        let other = MountedFilesystem {
            root: root.canonicalize().unwrap(),
            _lock: File::open(root).unwrap(),
        };
        other.write(path, b"new").unwrap();
        assert_eq!(other.read(path).unwrap(), Some(b"new".to_vec()));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = MountedFilesystem::open(folder.path()).unwrap();
        fs::create_dir(folder.path().join("a.conf")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(folder.path().join("b.conf"))
            .status()
            .unwrap();
        assert!(made.success());
        let large = File::create(folder.path().join("c.conf")).unwrap();
        large.set_len(FILE_LIMIT_BYTES + 1).unwrap();
        for path in ["a.conf", "b.conf"] {
            assert_eq!(mounted.read(path).unwrap(), None);
        }
        assert_eq!(mounted.read("c.conf").unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_second_run_is_kept_out() {
        let folder = tempfile::tempdir().unwrap();
        let first = MountedFilesystem::open(folder.path()).unwrap();
        assert_eq!(MountedFilesystem::open(folder.path()).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(first);
        MountedFilesystem::open(folder.path()).unwrap();
    }
}
