//! Stores the secret in a filesystem: one file in a folder of its own, written atomically, and durable before a gateway is shown any
//! claimant that is derived from it.
//!
//! Existing content is not trusted: the disk's previous owner may have left a link, another user's file or a truncated one.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::ClaimSecret;

/// The folder, at the filesystem's root.
pub const FOLDER: &str = "attest-node";
pub const FILE: &str = "claimant";
/// The file before it has its name.
const NEW: &str = ".claimant";
/// Largest file that is overwritten before it is removed, in bytes: this program has written none that is larger.
const OVERWRITE_LIMIT_BYTES: u64 = 4096;

/// Reads the secret; `None` if it is missing, erased, or not written by this program.
///
/// # Errors
/// The operating system's error.
pub fn read(root: &Path) -> io::Result<Option<ClaimSecret>> {
    if !is_own(&root.join(FOLDER), Metadata::is_dir)? {
        return Ok(None);
    }
    let path = root.join(FOLDER).join(FILE);
    if !is_own(&path, is_whole)? {
        return Ok(None);
    }
    let mut bytes = Zeroizing::new([0; 32]);
    File::open(&path)?.read_exact(bytes.as_mut())?;
    // An erasure that a power cut has ended before the file was gone: anybody can make what is made of zeros.
    let is_erased = bytes.iter().all(|byte| *byte == 0);
    Ok((!is_erased).then(|| ClaimSecret::from_bytes(*bytes)))
}

/// Writes the secret durably, in place of an existing one.
///
/// # Errors
/// The operating system's error; the existing secret may be lost by then.
pub fn write(root: &Path, secret: &ClaimSecret) -> io::Result<()> {
    let folder = root.join(FOLDER);
    if !is_own(&folder, Metadata::is_dir)? {
        remove(&folder)?;
        DirBuilder::new().mode(0o700).create(&folder)?;
    }
    let (new, path) = (folder.join(NEW), folder.join(FILE));
    remove(&new)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(secret.bytes())?;
    file.sync_all()?;
    if fs::symlink_metadata(&path).is_ok_and(|there| there.is_dir()) {
        fs::remove_dir_all(&path)?;
    }
    fs::rename(&new, &path)?;
    sync(&folder)?;
    sync(root)
}

/// Overwrites and removes the secret, and removes the folder. Returns whether it existed.
///
/// # Errors
/// The operating system's error, with the path that still exists.
pub fn erase(root: &Path) -> io::Result<bool> {
    let folder = root.join(FOLDER);
    let at = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match fs::symlink_metadata(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(at(&folder, error)),
        Ok(there) if !there.is_dir() => {
            remove(&folder).and_then(|()| sync(root)).map_err(|error| at(&folder, error))?;
            return Ok(true);
        }
        Ok(_) => {}
    }
    for name in [FILE, NEW] {
        let path = folder.join(name);
        overwrite(&path).and_then(|()| remove(&path)).map_err(|error| at(&path, error))?;
    }
    sync(&folder)
        .and_then(|()| fs::remove_dir(&folder))
        .and_then(|()| sync(root))
        .map_err(|error| at(&folder, error))?;
    Ok(true)
}

/// Returns whether the folder of this program exists.
#[must_use]
pub fn exists(root: &Path) -> bool {
    fs::symlink_metadata(root.join(FOLDER)).is_ok()
}

/// Overwrites the file's bytes with zeros, on the disk. A filesystem that writes elsewhere (btrfs) leaves the old bytes in place.
fn overwrite(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    // Under another name it is somebody else's, too.
    if !there.is_file() || there.nlink() > 1 || there.len() > OVERWRITE_LIMIT_BYTES {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = usize::try_from(there.len()).unwrap_or_default();
    file.write_all(&vec![0; length])?;
    file.sync_all()
}

/// Returns whether the file looks like a secret that this program has written.
fn is_whole(file: &Metadata) -> bool {
    file.is_file() && file.nlink() == 1 && file.len() == 32
}

/// Returns whether the path itself, without following links, is of this kind and owned by this program's user.
fn is_own(path: &Path, kind: impl Fn(&Metadata) -> bool) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        // The owner of this entry is the process's user.
        there => there.and_then(|there| Ok(kind(&there) && there.uid() == fs::metadata("/proc/self")?.uid())),
    }
}

/// Removes a file, a link, or a folder with all that is in it; not what a link leads to.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        there => match there?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        },
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the secret's path below a root, for messages.
#[must_use]
pub fn path_in(root: &Path) -> PathBuf {
    root.join(FOLDER).join(FILE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn secret() -> ClaimSecret {
        ClaimSecret::from_bytes([7; 32])
    }

    #[test]
    fn secret_file_is_readable_by_owner_only() {
        let disk = tempfile::tempdir().unwrap();
        assert_eq!(read(disk.path()).unwrap(), None);
        write(disk.path(), &secret()).unwrap();
        assert_eq!(read(disk.path()).unwrap(), Some(secret()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = disk.path().join(FOLDER);
        assert_eq!((mode(&folder), mode(&folder.join(FILE))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        write(disk.path(), &ClaimSecret::from_bytes([8; 32])).unwrap();
        assert_eq!(read(disk.path()).unwrap(), Some(ClaimSecret::from_bytes([8; 32])));
    }

    /// Checks that an entry which is not a secret of this program's is neither used nor followed, but replaced.
    fn check_replaced(prepare: impl FnOnce(&Path, &Path)) {
        let (disk, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let theirs = elsewhere.path().join("theirs");
        fs::write(&theirs, [9; 32]).unwrap();
        fs::create_dir(elsewhere.path().join("folder")).unwrap();
        fs::write(elsewhere.path().join("folder").join(FILE), [9; 32]).unwrap();
        prepare(disk.path(), elsewhere.path());
        assert_eq!(read(disk.path()).unwrap(), None);
        write(disk.path(), &secret()).unwrap();
        assert_eq!(read(disk.path()).unwrap(), Some(secret()));
        assert_eq!(fs::read(&theirs).unwrap(), [9; 32]);
        assert_eq!(fs::read(elsewhere.path().join("folder").join(FILE)).unwrap(), [9; 32]);
        assert!(erase(disk.path()).unwrap());
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
        assert_eq!(fs::read(&theirs).unwrap(), [9; 32]);
    }

    #[test]
    fn invalid_secret_file_is_replaced_without_following_links() {
        let file = |disk: &Path| {
            fs::create_dir(disk.join(FOLDER)).unwrap();
            path_in(disk)
        };
        for length in [0, 31, 33, 5000] {
            check_replaced(|disk, _| fs::write(file(disk), vec![9; length]).unwrap());
        }
        // An erasure that was cut short: zeros are nobody's secret.
        check_replaced(|disk, _| {
            write(disk, &secret()).unwrap();
            overwrite(&path_in(disk)).unwrap();
            assert_eq!(fs::read(path_in(disk)).unwrap(), [0; 32]);
        });
        check_replaced(|disk, there| symlink(there.join("theirs"), file(disk)).unwrap());
        check_replaced(|disk, _| symlink("nowhere", file(disk)).unwrap());
        check_replaced(|disk, there| fs::hard_link(there.join("theirs"), file(disk)).unwrap());
        check_replaced(|disk, _| fs::create_dir_all(file(disk).join("x/y")).unwrap());
        check_replaced(|disk, there| symlink(there.join("folder"), disk.join(FOLDER)).unwrap());
        check_replaced(|disk, _| fs::write(disk.join(FOLDER), "x").unwrap());
        // A run that was killed.
        check_replaced(|disk, _| fs::write(file(disk).with_file_name(NEW), [9; 32]).unwrap());
        // Another user's, where these tests may make one.
        let foreign = |path: &Path| drop(chown(path, Some(12345), None).or_else(|_| fs::write(path, "x")));
        check_replaced(|disk, _| {
            fs::write(file(disk), [9; 32]).unwrap();
            foreign(&path_in(disk));
        });
    }

    #[test]
    fn secret_is_overwritten_before_removal() {
        let disk = tempfile::tempdir().unwrap();
        write(disk.path(), &secret()).unwrap();
        // What this handle reads is what is where the bytes were.
        let mut handle = File::open(path_in(disk.path())).unwrap();
        assert!(exists(disk.path()) && erase(disk.path()).unwrap());
        let mut bytes = Vec::new();
        handle.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 32]);
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
        assert!(!exists(disk.path()) && !erase(disk.path()).unwrap());
    }

    #[test]
    fn erase_error_names_the_directory() {
        let disk = tempfile::tempdir().unwrap();
        write(disk.path(), &secret()).unwrap();
        // Somebody else's file beside it: it is not this program's to remove.
        fs::write(disk.path().join(FOLDER).join("other"), "x").unwrap();
        let error = erase(disk.path()).unwrap_err();
        assert!(error.to_string().contains("attest-node: "), "{error}");
        assert!(!path_in(disk.path()).exists());
    }

    #[test]
    fn unwritable_disk_is_an_error() {
        write(Path::new("/proc/self"), &secret()).unwrap_err();
        write(Path::new("/nonexistent"), &secret()).unwrap_err();
        assert_eq!(read(Path::new("/nonexistent")).unwrap(), None);
        assert!(!erase(Path::new("/nonexistent")).unwrap());
    }
}
