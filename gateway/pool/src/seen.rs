//! What was looked at while a pool was read: so it is known, without reading, whether reading it again would come to the same.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use attest::UnixTime;

/// How long before it was looked at a file must have changed last, seconds. The kernel's time of a change is coarse: what is written soon after
/// another write may carry the same one.
const SETTLED_SECONDS: i64 = 3;

/// Files and folders, and what the file system said of them before they were read.
#[derive(Debug, Default)]
pub struct Seen {
    /// When it was looked, seconds since 1970.
    at: i64,
    places: BTreeMap<PathBuf, Option<Stamp>>,
    /// Where links led.
    targets: BTreeMap<PathBuf, PathBuf>,
    /// Whether something changed meanwhile.
    restless: bool,
}

/// What is another one when a file or a folder has changed. Nobody can set the time at which its inode changed, so that one says it of a file that got its
/// size and its time back, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    file: (u64, u64),
    pub length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Seen {
    /// Nothing yet; `now` is the time.
    pub fn from(now: UnixTime) -> Self {
        Self {
            at: i64::try_from(now.as_secs()).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Notes what there is at a path, or that there is nothing.
    pub fn note(&mut self, path: &Path) {
        match looked(path) {
            Ok(stamp) => self.put(path, stamp),
            Err(_) => self.restless = true,
        }
    }

    /// Notes what was there before it was read.
    pub fn put(&mut self, path: &Path, stamp: Option<Stamp>) {
        if let Some(before) = self.places.insert(path.to_owned(), stamp) {
            self.restless |= before != stamp;
        }
    }

    /// Notes where a link leads: what is watched hangs on that.
    pub fn leads(&mut self, path: &Path, target: &Path) {
        self.targets.insert(path.to_owned(), target.to_owned());
    }

    /// Whether reading it again would find the same: everything is as it was, and has been for long enough.
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

/// What there is, or that there is nothing.
fn looked(path: &Path) -> io::Result<Option<Stamp>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(Stamp::of(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
