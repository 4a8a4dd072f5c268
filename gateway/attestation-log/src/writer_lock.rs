//! Lock of the log's writer, of which there is one, and a check for it.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use attest_system::files;

use super::journal_error::JournalError;

/// Longest wait for programs that only check whether the log is written: each holds the lock for less than a millisecond.
const LOOKS_AT_MOST: Duration = Duration::from_secs(5);
/// Pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(1);

/// Lock by which one process writes the log, whatever files it uses. It is on a file next to the log that is not moved, because the lock on
/// the log's own file moves with that file.
#[derive(Debug)]
pub(super) struct WriterLock {
    _file: File,
}

impl WriterLock {
    /// Takes the lock. It is released when the process ends, however it ends.
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

/// Returns the path of the file that the log's writer locks, next to the log.
#[must_use]
pub fn lock_file(log: &Path) -> PathBuf {
    log.with_extension("lock")
}

/// Returns whether a process writes the log at this moment, even if the log was moved since. No file is made, and no lock is kept.
#[must_use]
pub fn is_written(log: &Path) -> bool {
    let held = |path: &Path| files::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    held(&lock_file(log)) || held(log)
}

/// Locks a file; does not wait for a writer.
pub(super) fn lock(file: &File, path: &Path, log: &Path) -> Result<(), JournalError> {
    let io = |source| JournalError::Io {
        path: path.to_owned(),
        source,
    };
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(io(source)),
            Err(TryLockError::WouldBlock) => {}
        }
        // Whoever only looks, as `is_written` does, shares it, and for a moment; who writes does not.
        match file.try_lock_shared() {
            Ok(()) if begun.elapsed() < LOOKS_AT_MOST => file.unlock().map_err(io)?,
            Err(TryLockError::Error(source)) => return Err(io(source)),
            Ok(()) | Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(log.to_owned())),
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn reader_does_not_block_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        drop(WriterLock::take(&log).unwrap());
        // Somebody looks just now, and is done when that was noticed.
        let looks = File::open(lock_file(&log)).unwrap();
        looks.lock_shared().unwrap();
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let taking = scope.spawn(|| {
                begun.store(true, Ordering::SeqCst);
                let taken = WriterLock::take(&log).map(drop);
                done.store(true, Ordering::SeqCst);
                taken
            });
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let since = Instant::now();
            while !done.load(Ordering::SeqCst) && since.elapsed() < LOOKS_AT_MOST / 10 {
                thread::yield_now();
            }
            drop(looks);
            taking.join().unwrap().unwrap();
        });
        // And while others look all the time.
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    assert!(!is_written(&log) || !over.load(Ordering::SeqCst));
                    thread::yield_now();
                }
            });
            for _ in 0..200 {
                drop(WriterLock::take(&log).unwrap());
            }
            over.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn second_writer_fails_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let _writes = WriterLock::take(&log).unwrap();
        assert!(is_written(&log));
        assert!(matches!(WriterLock::take(&log), Err(JournalError::InUse(_))));
    }

    #[test]
    fn reader_that_never_releases_the_lock_blocks_writing() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        drop(WriterLock::take(&log).unwrap());
        let looks = File::open(lock_file(&log)).unwrap();
        looks.lock_shared().unwrap();
        assert!(matches!(WriterLock::take(&log), Err(JournalError::InUse(_))));
        assert!(!is_written(&log));
    }
}
