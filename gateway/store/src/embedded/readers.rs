//! Read-only transactions in parallel with the writer: they wait for no transaction, and for no other thread.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::super::engine::{KeyRange, Transaction, Work, WorkInterrupted};
use super::super::{StoreError, StoreMark, schema, sqlite};
use super::{Inode, WriteAhead, inode};

/// Maximum of idle connections; more are closed. At most as many transactions read at once as the processor has cores.
const IDLE_LIMIT: usize = 16;

/// Connections to the store that is written by another.
pub(super) struct Readers {
    file: PathBuf,
    inode: Inode,
    mark: Arc<Mutex<StoreMark>>,
    log: Arc<WriteAhead>,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) const fn new(file: PathBuf, inode: Inode, standing: Arc<Mutex<StoreMark>>, log: Arc<WriteAhead>) -> Self {
        let idle = Mutex::new(Vec::new());
        Self {
            file,
            inode,
            mark: standing,
            log,
            idle,
        }
    }

    /// Runs the work on one snapshot, which has everything that was answered earlier. Returns `None` if the work has to write, or cannot
    /// run here: the writer then runs it, or reports the cause.
    pub(super) fn read(&self, work: &mut Work) -> Option<Result<(), StoreError>> {
        let known = self.mark.lock().ok()?.clone();
        // The store that was opened, and not one that has its name by now.
        if inode(&self.file).ok() != Some(self.inode) {
            return None;
        }
        let idle = self.idle().pop();
        let connection = idle.map_or_else(|| connect(&self.file), Ok).ok()?;
        let mut glance = Glance {
            file: &self.file,
            connection: &connection,
            beyond: false,
        };
        let done = glance.begin(&known).ok().and_then(|found| {
            self.learn(found);
            let done = work(&mut glance);
            match done {
                _ if glance.beyond => None,
                Ok(()) => Some(Ok(())),
                Err(WorkInterrupted::Refused(error)) => Some(Err(error)),
                Err(WorkInterrupted::Engine) => None,
            }
        });
        // One that does not end is closed.
        if glance.end().is_ok() {
            let mut idle = self.idle();
            if idle.len() < IDLE_LIMIT {
                idle.push(connection);
            }
        }
        done
    }

    /// Takes over a mark that another process has committed: decisions based on it are recorded with that mark.
    fn learn(&self, found: StoreMark) {
        let mut known = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        if found.id == known.id && found.mark > known.mark {
            // It may not have synced it yet.
            self.log.is_committed();
            *known = found;
        }
    }

    /// Closes the idle connections.
    pub(super) fn close(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a read-only connection that never waits for a lock.
fn connect(file: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Read-only transaction on a snapshot of the store.
struct Glance<'c> {
    file: &'c Path,
    connection: &'c Connection,
    /// Set if the work wants to write, or the read has failed.
    beyond: bool,
}

impl Glance<'_> {
    /// Begins to read, if this is the known store, and it was not rolled back.
    fn begin(&self, known: &StoreMark) -> Result<StoreMark, WorkInterrupted> {
        let found = self.statement("BEGIN").and_then(|()| schema::read_mark(self.connection));
        if schema::check_version(self.file, self.connection).is_err() {
            return Err(WorkInterrupted::Engine);
        }
        match found {
            Ok(found) if found.id == known.id && found.mark >= known.mark => Ok(found),
            _ => Err(WorkInterrupted::Engine),
        }
    }

    fn end(&self) -> Result<(), rusqlite::Error> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.statement("COMMIT")
    }

    fn statement(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    const fn refuse(&mut self) -> WorkInterrupted {
        self.beyond = true;
        WorkInterrupted::Engine
    }
}

impl Transaction for Glance<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        sqlite::get(self.connection, key).map_err(|_| self.refuse())
    }

    fn put(&mut self, _key: &str, _value: &str) -> Result<(), WorkInterrupted> {
        Err(self.refuse())
    }

    fn delete(&mut self, _key: &str) -> Result<(), WorkInterrupted> {
        Err(self.refuse())
    }

    fn delete_range(&mut self, _range: &KeyRange) -> Result<(), WorkInterrupted> {
        Err(self.refuse())
    }
}
