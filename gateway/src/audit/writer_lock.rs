//! Who writes the log: one process, and whether there is one.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::journal::JournalError;

/// That one process writes the log, through whatever files: held in a file beside it that nobody moves. The file's own lock goes with the file.
#[derive(Debug)]
pub(super) struct WriterLock {
    _file: File,
}

impl WriterLock {
    /// Takes it. It goes with the process, however that ends.
    pub(super) fn take(log: &Path) -> Result<Self, JournalError> {
        let path = lock_file(log);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(|source| JournalError::Io {
            path: path.clone(),
            source,
        })?;
        lock(&file, &path, log)?;
        Ok(Self { _file: file })
    }
}

/// What whoever writes the log holds, beside it.
#[must_use]
pub fn lock_file(log: &Path) -> PathBuf {
    log.with_extension("lock")
}

/// Whether somebody writes the log at this moment, also one that was moved since; nothing is made, and nothing kept.
#[must_use]
pub fn is_written(log: &Path) -> bool {
    let held = |path: &Path| File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    held(&lock_file(log)) || held(log)
}

pub(super) fn lock(file: &File, path: &Path, log: &Path) -> Result<(), JournalError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse(log.to_owned())),
        Err(TryLockError::Error(source)) => Err(JournalError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}
