//! SQLite's write-ahead log, synced on demand: one fsync for all earlier commits.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::super::turnstile;

/// Maximum size of the log file while nothing is written: the size to which SQLite itself would let it grow.
const KEPT_BYTES: u64 = 4 * 1024 * 1024;

/// The log file, opened a second time: SQLite has no locks on it that closing this would drop.
#[derive(Debug)]
pub(super) struct WriteAhead {
    path: PathBuf,
    /// Number of commits that were made.
    commits: AtomicU64,
    synced: Mutex<Synced>,
    /// Set once a failure to truncate the log was reported.
    failure_reported: AtomicBool,
}

#[derive(Debug)]
enum Synced {
    /// Number of commits that are durable.
    UpTo {
        commits: u64,
        /// Kept open: the kernel reports each write failure to files that are open at that time, and not to those opened later.
        file: Option<File>,
    },
    /// A sync failed. Written data may be lost although another fsync would succeed: the kernel then counts it as written.
    Failed(String),
}

impl WriteAhead {
    /// Returns the log of the store in this file. Data that an earlier process has left in it counts as not synced.
    pub(super) fn new(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push("-wal");
        Self {
            path: path.into(),
            commits: AtomicU64::new(1),
            synced: Mutex::new(Synced::UpTo { commits: 0, file: None }),
            failure_reported: AtomicBool::new(false),
        }
    }

    /// Counts a commit that was not answered yet.
    pub(super) fn is_committed(&self) {
        self.commits.fetch_add(1, Ordering::Release);
    }

    /// Moves committed pages into the store's file, and truncates a log that has grown in a storm. Called while nothing is written. If a
    /// reader prevents it, it is left for the next time.
    pub(super) fn give_back(&self, connection: &mut Connection) {
        if !fs::metadata(&self.path).is_ok_and(|file| file.len() > KEPT_BYTES) {
            return;
        }
        match truncate(connection) {
            Ok(()) => self.failure_reported.store(false, Ordering::Relaxed),
            // It is tried again and again, and said once.
            Err(error) if !self.failure_reported.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "cannot move the write-ahead log into the store's file; it keeps its size");
            }
            Err(_) => {}
        }
    }

    /// Makes all earlier commits durable. Waits for the disk; of many waiting threads, one syncs for all.
    ///
    /// # Errors
    /// After a failure, every call fails until the store is reopened.
    pub(super) fn sync(&self) -> Result<()> {
        let wanted = self.commits.load(Ordering::Acquire);
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let (upto, file) = match &mut *synced {
            Synced::UpTo { commits, file } => (commits, file),
            Synced::Failed(problem) => return Err(Error::other(problem.clone())),
        };
        if *upto >= wanted {
            return Ok(());
        }
        let commits = self.commits.load(Ordering::Acquire);
        match open(file, &self.path).and_then(|file| file.sync_data()) {
            Ok(()) => {
                *upto = commits;
                Ok(())
            }
            Err(error) => {
                let problem = format!(
                    "{}: {error}: nothing is answered until the gateway is started again",
                    self.path.display()
                );
                *synced = Synced::Failed(problem.clone());
                Err(Error::other(problem))
            }
        }
    }
}

/// Truncates the log without waiting for readers.
fn truncate(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(|_| false))?;
    let tried = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_handler(Some(turnstile::wait))?;
    tried
}

/// Opens the file of that name, unless it is open already: another file may have got the name.
fn open<'f>(kept: &'f mut Option<File>, path: &Path) -> Result<&'f File> {
    let is = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let there = is(fs::metadata(path)?);
    let same = kept
        .as_ref()
        .map(File::metadata)
        .transpose()?
        .is_some_and(|found| is(found) == there);
    if !same {
        *kept = Some(File::open(path)?);
    }
    kept.as_ref().ok_or_else(|| ErrorKind::NotFound.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_fails_all_later_syncs() {
        let folder = tempfile::tempdir().unwrap();
        let (store, path) = (folder.path().join("gateway.db"), folder.path().join("gateway.db-wal"));
        fs::write(&path, "").unwrap();
        let log = WriteAhead::new(&store);
        log.sync().unwrap();
        fs::remove_file(&path).unwrap();
        log.sync().unwrap();
        log.is_committed();
        let said = log.sync().unwrap_err().to_string();
        assert!(
            said.contains("gateway.db-wal: No such file") && said.contains("until the gateway is started again"),
            "{said}"
        );
        fs::write(&path, "").unwrap();
        // It is there again, and what was committed is not.
        assert_eq!(log.sync().unwrap_err().to_string(), said);
        WriteAhead::new(&store).sync().unwrap();
    }

    #[test]
    fn truncates_the_log_when_no_reader_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("gateway.db");
        let (mut writing, reading) = (Connection::open(&store).unwrap(), Connection::open(&store).unwrap());
        writing.pragma_update(None, "journal_mode", "WAL").unwrap();
        writing.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        writing.execute_batch("CREATE TABLE some (bytes)").unwrap();
        let log = WriteAhead::new(&store);
        let length = || fs::metadata(&log.path).unwrap().len();
        log.give_back(&mut writing);
        assert!(length() > 0, "it is small");
        reading.execute_batch("BEGIN; SELECT * FROM some").unwrap();
        let some = format!("INSERT INTO some VALUES (zeroblob({KEPT_BYTES}))");
        writing.execute_batch(&some).unwrap();
        log.give_back(&mut writing);
        assert!(length() > KEPT_BYTES, "somebody reads");
        reading.execute_batch("COMMIT").unwrap();
        log.give_back(&mut writing);
        assert_eq!(length(), 0);
        let count = reading.query_row("SELECT count(*) FROM some", [], |row| row.get::<_, u32>(0));
        assert_eq!(count.unwrap(), 1);
    }

    #[test]
    fn reopens_a_replaced_log_file_before_syncing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.db-wal");
        let mut kept = None;
        fs::write(&path, "a").unwrap();
        let length = |file: &File| file.metadata().unwrap().len();
        assert_eq!(length(open(&mut kept, &path).unwrap()), 1);
        let other = folder.path().join("other");
        fs::write(&other, "bb").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(length(open(&mut kept, &path).unwrap()), 2);
        fs::remove_file(&path).unwrap();
        open(&mut kept, &path).unwrap_err();
    }
}
