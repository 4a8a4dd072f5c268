//! State of the files that a pool was read from. It shows, without reading them, whether reading again would give the same result.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use attest::UnixTime;

/// Seconds for which a file must have been unchanged when it was looked at. The kernel's change times are coarse: two writes in quick
/// succession may have the same one.
const SETTLED_SECONDS: i64 = 3;

/// Files and folders, with their stamps before they were read.
#[derive(Debug, Default)]
pub struct FileStamps {
    /// Time of the look, in seconds since 1970.
    at: i64,
    places: BTreeMap<PathBuf, Option<Stamp>>,
    /// Targets of symbolic links.
    targets: BTreeMap<PathBuf, PathBuf>,
    /// Set if something changed during the reading.
    restless: bool,
}

/// File metadata that differs when a file or a folder has changed. No process can set an inode's change time, so it reveals even a change
/// after which size and modification time were restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    file: (u64, u64),
    pub length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl FileStamps {
    /// Creates an empty state; `now` is the current time.
    pub fn from(now: UnixTime) -> Self {
        Self {
            at: i64::try_from(now.as_secs()).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Records the stamp at a path, or that nothing is there.
    pub fn note(&mut self, path: &Path) {
        match looked(path) {
            Ok(stamp) => self.put(path, stamp),
            Err(_) => self.restless = true,
        }
    }

    /// Records the stamp from before the reading.
    pub fn put(&mut self, path: &Path, stamp: Option<Stamp>) {
        if let Some(before) = self.places.insert(path.to_owned(), stamp) {
            self.restless |= before != stamp;
        }
    }

    /// Records a link's target: the watched folders depend on it.
    pub fn leads(&mut self, path: &Path, target: &Path) {
        self.targets.insert(path.to_owned(), target.to_owned());
    }

    /// Returns whether reading again would give the same: nothing has changed, and nothing was too recent to tell.
    pub fn is_still(&self) -> bool {
        let settled = |stamp: &Stamp| stamp.changed.0 < self.at - SETTLED_SECONDS;
        !self.restless
            && !self.places.is_empty()
            && self.places.values().flatten().all(settled)
            && self.places.iter().all(|(path, stamp)| looked(path).is_ok_and(|now| now == *stamp))
            && self
                .targets
                .iter()
                .all(|(path, target)| fs::canonicalize(path).is_ok_and(|now| now == *target))
    }
}

/// Returns the stamp at a path, or `None` if nothing is there.
fn looked(path: &Path) -> io::Result<Option<Stamp>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(Stamp::from_metadata(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
