//! The embedded engine: keys and values in one SQLite file.
//!
//! SQLite, not a single-process store: the administrator's commands (`ek add`, `token create`, `node forget`) must work on the same file
//! while the gateway serves. One thread writes, and commits all queued work in one transaction. It syncs the write-ahead log itself
//! ([`WriteAhead`]) before it answers. Decisions are the exception: they are durable when they are recorded, so that a boot storm costs one
//! fsync for many nodes. Reads run in parallel ([`Readers`]).

mod file;
mod read_only;
mod readers;
mod write_ahead;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
#[cfg(test)]
pub(super) use file::check_integrity;
use file::{Inode, inode, io, under_lock};
pub(super) use file::{connect, make_file, prepare};
pub(crate) use read_only::ReadOnlyStore;
use readers::Readers;
use rusqlite::{Connection, ffi};
use tokio::sync::oneshot;
use write_ahead::WriteAhead;

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::expected_store::{ExpectedStore, StoreFile, write_mark};
use super::sqlite::{self, Explain, SqliteTransaction};
use super::turnstile::Turnstile;
use super::{StoreError, StoreMark, schema};

/// Requests that go into one transaction: bounds how long the first of them waits.
const BATCH_LIMIT: usize = 256;
/// Keys that one piece of work writes at most: decisions wait for it. Some milliseconds, or a tenth of a second from a slow disk.
const WRITES_LIMIT: usize = 3000;
/// Pages in the write-ahead log at which SQLite moves them into its file, and restarts the log: 33 MB. Each checkpoint costs three fsyncs;
/// each attempt that a reader blocks costs one.
const CHECKPOINT_PAGES: u32 = 16_000;
/// Idle time after which background work runs in a transaction of its own. It is below one second, the interval at which the outbox is
/// read.
const LATER_AFTER: Duration = Duration::from_millis(400);
/// Maximum of waiting requests; beyond it, requests get an overload error.
const QUEUE_LIMIT: usize = 4096;

/// Work that shares a transaction with other jobs.
struct EmbeddedJob {
    /// Set if the job is answered only when it is durable.
    durable: bool,
    work: JobWork,
}

type JobWork = Box<dyn FnOnce(Result<&Connection, StoreError>) -> JobReply + Send>;
/// Given once the job's transaction is committed, or has failed.
type JobReply = Box<dyn FnOnce(Result<(), &rusqlite::Error>) + Send>;

/// A SQLite file and the thread that writes it. Clones are the same store.
#[derive(Clone)]
pub struct Embedded {
    open: Arc<EmbeddedInner>,
}

struct EmbeddedInner {
    jobs: Mutex<Option<mpsc::SyncSender<EmbeddedJob>>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    mark: Arc<Mutex<StoreMark>>,
    log: Arc<WriteAhead>,
    readers: Readers,
    later: Later,
    file: PathBuf,
}

/// Background work for the next transaction.
type Later = Arc<Mutex<Vec<Work>>>;

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    /// Opens the store, and creates it if none exists or ever existed.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be created, opened or written, is not a store, or is not the known one ([`ExpectedStore`]).
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = ExpectedStore::load(file)?;
        if !file.exists() {
            known.check(file, &StoreFile::Nothing)?;
            make_file(file)?;
        }
        let (connection, inode) = connect(file)?;
        known.check(file, &schema::inspect(file, &connection)?)?;
        prepare(&connection)?;
        // What is synced from here on is said below: [`WriteAhead`]. Its checkpoints SQLite syncs itself.
        connection.pragma_update(None, "synchronous", "NORMAL").at(file)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).at(file)?;
        let log = Arc::new(WriteAhead::new(file));
        // Of what a process left that was killed nobody may say more than the disk will.
        log.sync().map_err(io(file))?;
        let standing = schema::read_mark(&connection).at(file)?;
        if known.file.is_none() {
            under_lock(&connection, |standing| write_mark(file, standing))?;
        }
        Self::run(file, connection, inode, standing, log)
    }

    fn run(file: &Path, connection: Connection, inode: Inode, standing: StoreMark, log: Arc<WriteAhead>) -> Result<Self, StoreError> {
        let standing = Arc::new(Mutex::new(standing));
        let readers = Readers::new(file.to_owned(), inode, Arc::clone(&standing), Arc::clone(&log));
        let writer = EmbeddedWriter {
            connection,
            turnstile: Turnstile::for_store(file)?,
            file: file.to_owned(),
            inode,
            mark: Arc::clone(&standing),
            log: Arc::clone(&log),
            later: Later::default(),
        };
        let later = Arc::clone(&writer.later);
        let (sender, receiver) = mpsc::sync_channel(QUEUE_LIMIT);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(io(file))?;
        Ok(Self {
            open: Arc::new(EmbeddedInner {
                jobs: Mutex::new(Some(sender)),
                thread: Mutex::new(Some(thread)),
                mark: standing,
                log,
                readers,
                later,
                file: file.to_owned(),
            }),
        })
    }

    /// Returns the paths of SQLite's files next to a store's file, some of which exist only at times.
    #[must_use]
    pub fn sqlite_files(file: &Path) -> [PathBuf; 3] {
        ["db-wal", "db-shm", "db-journal"].map(|extension| file.with_extension(extension))
    }

    /// Returns whether there is a store that could be opened; creates nothing. `false` if none exists or ever existed.
    ///
    /// # Errors
    /// Like [`Embedded::open`].
    pub fn exists(file: &Path) -> Result<bool, StoreError> {
        let known = ExpectedStore::load(file)?;
        if !file.exists() && fs::symlink_metadata(file).is_err() {
            known.check(file, &StoreFile::Nothing)?;
            return Ok(false);
        }
        OpenOptions::new().read(true).write(true).open(file).map_err(io(file))?;
        let (connection, _) = connect(file)?;
        known.check(file, &schema::inspect(file, &connection)?)?;
        Ok(true)
    }

    /// Runs `work` in the next transaction; the answer comes when that is committed, durably.
    pub(super) async fn on_connection<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(true, work).await
    }

    /// Like [`Embedded::on_connection`], but the caller decides whether to wait until it is durable.
    async fn ask<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let file = self.open.file.clone();
        let work: JobWork = Box::new(move |connection| {
            let result = connection.and_then(work);
            Box::new(move |committed| {
                let failed = |error| sqlite::failed(&file.display().to_string(), error);
                let result = result.and_then(|value| committed.map(|()| value).map_err(failed));
                // Whoever asked may be gone; what was done is done.
                drop(sender.send(result));
            })
        });
        {
            let jobs = self.open.jobs.lock().map_err(|_| StoreError::Closed)?;
            jobs.as_ref()
                .ok_or(StoreError::Closed)?
                .try_send(EmbeddedJob { durable, work })
                .map_err(|_| StoreError::Closed)?;
        }
        receiver.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for EmbeddedInner {
    fn drop(&mut self) {
        // Who writes closes last: only then is the store one file again.
        self.readers.close();
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Some(thread) = self.thread.get_mut().ok().and_then(Option::take) {
            drop(thread.join());
        }
    }
}

/// The writer: takes what has queued up, does it in one transaction, commits, and only then answers.
struct EmbeddedWriter {
    connection: Connection,
    turnstile: Turnstile,
    file: PathBuf,
    inode: Inode,
    mark: Arc<Mutex<StoreMark>>,
    log: Arc<WriteAhead>,
    later: Later,
}

impl EmbeddedWriter {
    fn run(mut self, jobs: &mpsc::Receiver<EmbeddedJob>) {
        loop {
            match jobs.recv_timeout(LATER_AFTER) {
                Ok(first) => {
                    let batch = std::iter::once(first).chain(jobs.try_iter().take(BATCH_LIMIT - 1));
                    self.work(batch.collect());
                }
                Err(RecvTimeoutError::Timeout) if self.later().is_empty() => self.log.give_back(&mut self.connection),
                Err(RecvTimeoutError::Timeout) => self.work(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if !self.later().is_empty() {
            self.work(Vec::new());
        }
    }

    /// Runs background work and these jobs in one transaction.
    fn work(&self, batch: Vec<EmbeddedJob>) {
        let begun = self.begin();
        if let Err(error) = begun {
            tracing::error!(%error, "cannot begin a store transaction");
            for job in batch {
                (job.work)(Err(Self::copy_error(&error)))(Ok(()));
            }
            return;
        }
        let before = self.connection.total_changes();
        let mut later = std::mem::take(&mut *self.later());
        for work in &mut later {
            let mut part = SqliteTransaction::new(&self.connection);
            let done = work(&mut part);
            if let Err(error) = part.end(done) {
                tracing::error!(%error, "cannot mark decisions as recorded in the store");
            }
        }
        let durable = batch.iter().any(|job| job.durable);
        let answers: Vec<JobReply> = batch.into_iter().map(|job| (job.work)(Ok(&self.connection))).collect();
        let written = self.connection.total_changes() != before;
        let committed = self.commit(written, durable);
        if let Err(error) = &committed {
            tracing::error!(%error, "cannot commit a store transaction; rolled it back");
            drop(self.connection.execute_batch("ROLLBACK"));
            self.later().extend(later);
        }
        for answer in answers {
            answer(committed.as_ref().copied());
        }
    }

    fn later(&self) -> MutexGuard<'_, Vec<Work>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transaction on the store that was opened. Refuses a store that has lost its file name, or was rolled back.
    fn begin(&self) -> Result<(), StoreError> {
        let replaced = || match schema::moved(&self.connection) {
            Ok(Some((_, moved))) => moved.error(&self.file),
            _ => StoreError::Replaced(self.file.clone()),
        };
        if inode(&self.file).ok() != Some(self.inode) {
            return Err(StoreError::Replaced(self.file.clone()));
        }
        let begun = self.turnstile.pass(|| self.statement("BEGIN IMMEDIATE"));
        begun.at(&self.file)?;
        let read = schema::check_version(&self.file, &self.connection).and_then(|()| schema::read_mark(&self.connection).at(&self.file));
        let checked = read.and_then(|found| {
            let known = self.mark.lock().map_err(|_| StoreError::Closed)?;
            if found.id == known.id && found.mark >= known.mark {
                Ok(())
            } else {
                Err(replaced())
            }
        });
        if checked.is_err() {
            drop(self.connection.execute_batch("ROLLBACK"));
        }
        checked
    }

    fn statement(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn commit(&self, written: bool, durable: bool) -> Result<(), rusqlite::Error> {
        let standing = match written {
            true => schema::advance(&self.connection)?,
            false => schema::read_mark(&self.connection)?,
        };
        self.statement("COMMIT")?;
        if let Ok(mut known) = self.mark.lock() {
            // Also what another process has committed, and may not have synced yet: lines of the log say that the store has come so far.
            if written || *known != standing {
                self.log.is_committed();
            }
            *known = standing;
        }
        if written && durable {
            let failed =
                |error: std::io::Error| rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), Some(error.to_string()));
            self.log.sync().map_err(failed)?;
        }
        Ok(())
    }

    /// Copies the error for each job that waits for the same transaction.
    fn copy_error(error: &StoreError) -> StoreError {
        match error {
            StoreError::Replaced(path) => StoreError::Replaced(path.clone()),
            StoreError::Schema { path, newer } => StoreError::Schema {
                path: path.clone(),
                newer: newer.clone(),
            },
            StoreError::Moved { path, to } => StoreError::Moved {
                path: path.clone(),
                to: to.clone(),
            },
            StoreError::Engine {
                engine,
                place,
                problem,
                advice,
            } => StoreError::Engine {
                engine,
                place: place.clone(),
                problem: problem.clone(),
                advice: advice.clone(),
            },
            _ => StoreError::Closed,
        }
    }
}

/// The work as a part of a transaction.
fn in_part(mut work: Work) -> impl FnOnce(&Connection) -> Result<(), StoreError> + Send {
    move |connection| {
        let mut part = SqliteTransaction::new(connection);
        let done = work(&mut part);
        part.end(done)
    }
}

#[async_trait]
impl Engine for Embedded {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.ask(true, in_part(work)).await
    }

    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        self.ask(false, in_part(work)).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.open.log.sync().map_err(io(&self.open.file))
    }

    async fn read(&self, mut work: Work) -> Result<(), StoreError> {
        match self.open.readers.read(&mut work) {
            Some(read) => read,
            None => self.transact(work).await,
        }
    }

    fn later(&self, work: Work) {
        self.open.later.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.on_connection(move |connection| sqlite::page(connection, &range, most).explain(connection))
            .await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.on_connection(move |connection| sqlite::count(connection, &range).explain(connection))
            .await
    }

    fn most_writes(&self) -> usize {
        WRITES_LIMIT
    }

    fn atomic_writes_limit(&self) -> Option<usize> {
        None
    }

    fn store_mark(&self) -> Option<StoreMark> {
        self.open.mark.lock().ok().map(|standing| standing.clone())
    }

    fn mark_path(&self) -> Option<&Path> {
        Some(&self.open.file)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let (file, log) = (self.open.file.clone(), Arc::clone(&self.open.log));
        // In a transaction, so that of two processes one writes. Of what is not durable nobody is told.
        self.on_connection(move |connection| {
            let standing = schema::read_mark(connection).at(&file)?;
            log.is_committed();
            log.sync().map_err(io(&file))?;
            write_mark(&file, &standing)
        })
        .await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
