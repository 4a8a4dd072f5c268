//! What this program keeps until the next boot, in a folder of its own that a boot makes anew.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use attest::protocol::CLAIMANT_BYTES;
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Where that is: in memory, and lost when the machine is switched off.
pub const FOLDER: &str = "/run/attest-node";
/// The claimant's file.
const CLAIMANT: &str = "claimant";

/// The folder.
#[derive(Debug, Clone)]
pub struct State(PathBuf);

impl State {
    /// At a path. Nothing is made before it is needed.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// A place in it for the input of another program.
    #[must_use]
    pub fn input(&self) -> PathBuf {
        self.0.join("input")
    }

    /// Makes the folder, for its owner only, if it is not there.
    ///
    /// # Errors
    /// What the system says.
    pub fn prepare(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// 32 random bytes, the same until the next boot: a gateway that has seen this node claim an instance of a cloud knows by them that it
    /// is this node again, and not another process that has asked the metadata server. If they cannot be kept, they are good for this run.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn claimant(&self) -> Result<Zeroizing<Vec<u8>>, Failure> {
        if let Some(kept) = self.kept() {
            return Ok(kept);
        }
        let mut fresh = Zeroizing::new(vec![0; CLAIMANT_BYTES]);
        rand::fill(&mut fresh).map_err(|_| Failure::new("internal", "the system has no randomness", "report this message"))?;
        let _ = self.prepare().and_then(|()| self.keep(&fresh));
        Ok(fresh)
    }

    fn kept(&self) -> Option<Zeroizing<Vec<u8>>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(CLAIMANT_BYTES + 1));
        let limit = u64::try_from(CLAIMANT_BYTES).ok()?.saturating_add(1);
        let file = File::open(self.0.join(CLAIMANT)).ok()?;
        file.take(limit).read_to_end(&mut bytes).ok()?;
        (bytes.len() == CLAIMANT_BYTES).then_some(bytes)
    }

    fn keep(&self, claimant: &[u8]) -> io::Result<()> {
        let path = self.0.join(CLAIMANT);
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
            .write_all(claimant)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_claimant_stays_the_same_until_the_folder_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state");
        let state = State::new(&folder);
        let first = state.claimant().unwrap();
        assert_eq!(first.len(), CLAIMANT_BYTES);
        assert_eq!(state.claimant().unwrap(), first);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(CLAIMANT))), (0o700, 0o600));
        fs::remove_dir_all(&folder).unwrap();
        assert_ne!(state.claimant().unwrap(), first);
    }

    fn check_replaced(kept: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CLAIMANT), kept).unwrap();
        let state = State::new(folder.path());
        let claimant = state.claimant().unwrap();
        assert_eq!(claimant.len(), CLAIMANT_BYTES);
        assert_eq!(state.claimant().unwrap(), claimant);
    }

    #[test]
    fn a_claimant_that_is_none_is_replaced() {
        check_replaced(b"");
        check_replaced(&[7; 31]);
        check_replaced(&[7; 33]);
    }

    #[test]
    fn without_a_folder_a_claimant_is_good_for_one_run() {
        let state = State::new(Path::new("/proc/nonexistent/state"));
        assert_eq!(state.claimant().unwrap().len(), CLAIMANT_BYTES);
    }
}
