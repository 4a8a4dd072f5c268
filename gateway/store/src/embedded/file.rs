//! The store's file, as it is found and opened.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use attest_system::files;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::super::sqlite::Explain;
use super::super::{StoreError, StoreMark, schema, turnstile};

/// Time limit for checking files that were left behind. All the challenges that are remembered, 270 MB, take a second at most; a start has
/// 90 s, and checks twice.
const LOOK_THROUGH_LIMIT: Duration = Duration::from_secs(10);

/// Size of a page of a new file. SQLite writes whole pages, and a transaction changes some hundred bytes in each of several: smaller pages would make the file
/// larger, and reading slower.
pub(super) const PAGE_BYTES: u32 = 2048;

/// Returns a function that makes [`StoreError::Io`] errors for this file.
pub(super) fn io(file: &Path) -> impl Fn(std::io::Error) -> StoreError {
    |source| StoreError::Io {
        path: file.to_owned(),
        source,
    }
}

/// Creates the file with its mode, before SQLite creates it with the umask's. Does not open an existing file: closing it would drop this
/// process's locks on it.
pub(crate) fn make_file(file: &Path) -> Result<(), StoreError> {
    let io = io(file);
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(file) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    File::open(files::folder(file)).and_then(|folder| folder.sync_all()).map_err(io)
}

/// Device and inode of a file, which identify it whatever its name.
pub(crate) type Inode = (u64, u64);

pub(super) fn inode(file: &Path) -> std::io::Result<Inode> {
    fs::metadata(file).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Opens the file; nothing is written to it yet.
pub(crate) fn connect(file: &Path) -> Result<(Connection, Inode), StoreError> {
    let io = io(file);
    let before = inode(file).map_err(io)?;
    let log = file.with_extension("db-wal");
    let unfinished = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    let mut connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX).at(file)?;
    connection.busy_handler(Some(turnstile::wait)).at(file)?;
    // The gateway was killed, or is running, or somebody has put one of the two files in place of another: SQLite would mix them without
    // a word. A gateway that was stopped in order leaves one file, in which there is nothing to mix.
    if unfinished && !check_integrity(file, &connection, LOOK_THROUGH_LIMIT)? {
        tracing::warn!(
            "{} and its write-ahead log are too large to check in {} s: cannot verify that they belong together",
            file.display(),
            LOOK_THROUGH_LIMIT.as_secs()
        );
    }
    match inode(file) {
        Ok(after) if after == before => Ok((connection, after)),
        _ => Err(StoreError::Replaced(file.to_owned())),
    }
}

/// Returns whether the whole file was checked in that time, and all its pages are of the same state.
///
/// # Errors
/// [`StoreError::Damaged`], and [`StoreError::Engine`].
pub(crate) fn check_integrity(file: &Path, connection: &Connection, limit: Duration) -> Result<bool, StoreError> {
    let interrupt = connection.get_interrupt_handle();
    let (running, over) = mpsc::channel::<()>();
    let looked = thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let looked = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        drop(running);
        looked
    });
    match looked {
        Ok(problem) if problem == "ok" => Ok(true),
        Ok(problem) => Err(StoreError::Damaged {
            path: file.to_owned(),
            problem,
        }),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(false),
        Err(error) => Err(error).at(file),
    }
}

/// Durable, and with today's tables.
pub(crate) fn prepare(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "page_size", PAGE_BYTES).explain(connection)?;
    connection.pragma_update(None, "journal_mode", "WAL").explain(connection)?;
    connection.pragma_update(None, "synchronous", "FULL").explain(connection)?;
    schema::create(connection)
}

/// Does what only one process may do at a time.
pub(super) fn under_lock(connection: &Connection, work: impl FnOnce(&StoreMark) -> Result<(), StoreError>) -> Result<(), StoreError> {
    connection.execute_batch("BEGIN IMMEDIATE").explain(connection)?;
    let done = schema::read_mark(connection)
        .explain(connection)
        .and_then(|standing| work(&standing));
    connection.execute_batch("ROLLBACK").explain(connection)?;
    done
}
