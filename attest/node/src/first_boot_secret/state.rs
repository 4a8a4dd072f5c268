//! State that this program keeps until the next boot, in a folder of its own that each boot creates empty.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use attest_wire::protocol::CLAIMANT_BYTES;
use zeroize::Zeroizing;

use super::ClaimSecret;
use super::storage::Storage;

/// Default folder of the state: in memory, and lost when the machine is switched off.
pub const FOLDER: &str = "/run/attest-node";
/// Name of the secret's file.
const CLAIMANT: &str = "claimant";
/// Name of the file with the secret's other location.
const PLACE: &str = "kept";
/// The folder for another program's input.
const INPUT: &str = "input";
/// Longest text read from there, in bytes: a path's limit.
const PLACE_LIMIT_BYTES: u64 = 4096;

#[derive(Debug, Clone)]
pub struct ClaimFolder(PathBuf);

impl ClaimFolder {
    /// Creates the state at a path. The folder is created when it is needed.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// A place in it for the input of another program.
    #[must_use]
    pub fn input(&self) -> PathBuf {
        self.0.join(INPUT)
    }

    /// Makes the folder, for its owner only, if it is not there.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn prepare(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// The secret of this boot.
    #[must_use]
    pub fn secret(&self) -> Option<ClaimSecret> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(CLAIMANT_BYTES + 1));
        let limit = u64::try_from(CLAIMANT_BYTES).ok()?.saturating_add(1);
        let file = File::open(self.0.join(CLAIMANT)).ok()?;
        file.take(limit).read_to_end(&mut bytes).ok()?;
        Some(ClaimSecret::from_bytes(bytes.as_slice().try_into().ok()?))
    }

    /// Keeps the secret of this boot. If it cannot be kept, it is good for this run.
    pub fn set_secret(&self, secret: &ClaimSecret) {
        let _ = self.replace(CLAIMANT, secret.bytes());
    }

    /// Returns the storage that keeps the secret beyond this boot.
    #[must_use]
    pub fn place(&self) -> Option<Storage> {
        let mut text = String::new();
        let file = File::open(self.0.join(PLACE)).ok()?;
        file.take(PLACE_LIMIT_BYTES).read_to_string(&mut text).ok()?;
        text.parse().ok()
    }

    /// Records the secret's location beyond this boot, for its later removal.
    pub fn set_place(&self, place: &str) {
        let _ = self.replace(PLACE, place.as_bytes());
    }

    /// Removes all that this program has put there, and the folder.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn empty(&self) -> io::Result<()> {
        let gone = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        gone(fs::remove_file(self.0.join(CLAIMANT)))?;
        gone(fs::remove_file(self.0.join(PLACE)))?;
        gone(fs::remove_dir_all(self.input()))?;
        gone(fs::remove_dir(&self.0))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.prepare()?;
        let path = self.0.join(name);
        // One that was written in part.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?
            .write_all(content)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secret_is_kept_until_the_folder_is_emptied() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state");
        let state = ClaimFolder::new(&folder);
        assert!(state.secret().is_none());
        state.set_secret(&ClaimSecret::from_bytes([7; 32]));
        assert!(state.secret() == Some(ClaimSecret::from_bytes([7; 32])));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(CLAIMANT))), (0o700, 0o600));
        state.set_place("boot");
        assert_eq!(state.place(), Some(Storage::Label("boot".to_owned())));
        fs::create_dir(state.input()).unwrap();
        state.empty().unwrap();
        assert!(!folder.exists() && state.secret().is_none() && state.place().is_none());
        state.empty().unwrap();
    }

    #[test]
    fn secret_of_wrong_length_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let state = ClaimFolder::new(folder.path());
        for length in [0, 31, 33] {
            fs::write(folder.path().join(CLAIMANT), vec![7; length]).unwrap();
            assert!(state.secret().is_none());
            state.set_secret(&ClaimSecret::from_bytes([8; 32]));
            assert!(state.secret() == Some(ClaimSecret::from_bytes([8; 32])));
        }
    }

    #[test]
    fn emptying_the_folder_keeps_foreign_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("other"), "x").unwrap();
        ClaimFolder::new(folder.path()).empty().unwrap_err();
        assert!(folder.path().join("other").exists());
    }
}
