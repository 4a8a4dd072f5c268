//! The embedded engine: keys and values in one SQLite file.
//!
//! SQLite and not a single-process store, because the administrator's commands (`ek add`, `token create`, `node forget`) must
//! work on the same file while the gateway serves. `synchronous=FULL` makes a commit durable; one thread writes, and commits
//! whatever has queued up meanwhile in one transaction, so that a boot storm costs one fsync for many nodes.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::known::{Known, StoreFile, write_mark};
use super::sqlite::{self, Explain, Part};
use super::turnstile::{self, Turnstile};
use super::{StoreError, StoreMark, schema};
use crate::files;

/// How long files that were left behind are looked through. All the challenges that are
/// remembered, 270 MB, take a second at most; a start has 90 s, and looks twice.
const LOOK_THROUGH_LIMIT: Duration = Duration::from_secs(10);
/// Requests that go into one transaction: bounds how long the first of them waits.
const BATCH_LIMIT: usize = 256;
/// Keys that one piece of work writes at most: decisions wait for it. Some milliseconds, or a tenth of a second from a slow disk.
const WRITES_LIMIT: usize = 3000;
/// Requests that may wait; beyond that the gateway is overloaded and says so.
const QUEUE_LIMIT: usize = 4096;

type Job = Box<dyn FnOnce(Result<&Connection, StoreError>) -> JobReply + Send>;
/// Given once the job's transaction is committed, or has failed.
type JobReply = Box<dyn FnOnce(Result<(), &rusqlite::Error>) + Send>;

/// One SQLite file and the thread that writes it. Clones are the same store.
#[derive(Clone)]
pub struct Embedded {
    open: Arc<Open>,
}

struct Open {
    jobs: Mutex<Option<mpsc::SyncSender<Job>>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    standing: Arc<Mutex<StoreMark>>,
    later: Later,
    file: PathBuf,
}

/// What is done with whatever is written next, and nobody waits for.
type Later = Arc<Mutex<Vec<Work>>>;

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    /// Opens the store, and makes it if there is none and there never was one.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be made, opened or written, is no store, or is not the one that is known ([`Known`]).
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = Known::beside(file)?;
        if !file.exists() {
            known.check(file, &StoreFile::Nothing)?;
            make_file(file)?;
        }
        let (connection, inode) = connect(file)?;
        known.check(file, &schema::look(file, &connection)?)?;
        prepare(&connection)?;
        let standing = schema::standing(&connection).at(file)?;
        if known.file.is_none() {
            under_lock(&connection, |standing| write_mark(file, standing))?;
        }
        Self::run(file, connection, inode, standing)
    }

    fn run(file: &Path, connection: Connection, inode: Inode, standing: StoreMark) -> Result<Self, StoreError> {
        let standing = Arc::new(Mutex::new(standing));
        let writer = Writer {
            connection,
            turnstile: Turnstile::beside(file)?,
            file: file.to_owned(),
            inode,
            standing: Arc::clone(&standing),
            later: Later::default(),
        };
        let later = Arc::clone(&writer.later);
        let (sender, receiver) = mpsc::sync_channel(QUEUE_LIMIT);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|source| StoreError::Io {
                path: file.to_owned(),
                source,
            })?;
        Ok(Self {
            open: Arc::new(Open {
                jobs: Mutex::new(Some(sender)),
                thread: Mutex::new(Some(thread)),
                standing,
                later,
                file: file.to_owned(),
            }),
        })
    }

    /// What SQLite has beside a store's file, now or at times.
    #[must_use]
    pub fn beside(file: &Path) -> [PathBuf; 3] {
        ["db-wal", "db-shm", "db-journal"].map(|extension| file.with_extension(extension))
    }

    /// Whether there is a store that could be opened; nothing is made. `false` if there is none yet, and never was one.
    ///
    /// # Errors
    /// As [`Embedded::open`].
    pub fn look(file: &Path) -> Result<bool, StoreError> {
        let known = Known::beside(file)?;
        if !file.exists() && fs::symlink_metadata(file).is_err() {
            known.check(file, &StoreFile::Nothing)?;
            return Ok(false);
        }
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(file)
            .map_err(|source| StoreError::Io {
                path: file.to_owned(),
                source,
            })?;
        let (connection, _) = connect(file)?;
        known.check(file, &schema::look(file, &connection)?)?;
        Ok(true)
    }

    /// Runs `work` in the next transaction; the answer comes when that is committed.
    pub(super) async fn on_connection<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = connection.and_then(work);
            Box::new(move |committed| {
                let result = result.and_then(|value| committed.map(|()| value).map_err(|_| StoreError::Closed));
                // Whoever asked may be gone; what was done is done.
                drop(sender.send(result));
            })
        });
        {
            let jobs = self.open.jobs.lock().map_err(|_| StoreError::Closed)?;
            jobs.as_ref()
                .ok_or(StoreError::Closed)?
                .try_send(job)
                .map_err(|_| StoreError::Closed)?;
        }
        receiver.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Some(thread) = self.thread.get_mut().ok().and_then(Option::take) {
            drop(thread.join());
        }
    }
}

/// Makes the file with its rights, before SQLite makes it with the umask's. A file that is there is not opened: closing it would drop
/// the locks that this process holds on it.
pub(super) fn make_file(file: &Path) -> Result<(), StoreError> {
    let io = |source| StoreError::Io {
        path: file.to_owned(),
        source,
    };
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(file) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    File::open(files::folder(file)).and_then(|folder| folder.sync_all()).map_err(io)
}

/// Which file it is, whatever its name.
pub(super) type Inode = (u64, u64);

fn inode(file: &Path) -> std::io::Result<Inode> {
    fs::metadata(file).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Opens the file; nothing is written to it yet.
pub(super) fn connect(file: &Path) -> Result<(Connection, Inode), StoreError> {
    let io = |source| StoreError::Io {
        path: file.to_owned(),
        source,
    };
    let before = inode(file).map_err(io)?;
    let log = file.with_extension("db-wal");
    let unfinished = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    let mut connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX).at(file)?;
    connection.busy_handler(Some(turnstile::wait)).at(file)?;
    // The gateway was killed, or is running, or somebody has put one of the two files in place of another: SQLite would mix them without
    // a word. A gateway that was stopped in order leaves one file, in which there is nothing to mix.
    if unfinished && !look_through(file, &connection, LOOK_THROUGH_LIMIT)? {
        tracing::warn!(
            "{} and its log of transactions are too large to be looked through in {} s: that they fit is not made sure",
            file.display(),
            LOOK_THROUGH_LIMIT.as_secs()
        );
    }
    match inode(file) {
        Ok(after) if after == before => Ok((connection, after)),
        _ => Err(StoreError::Replaced(file.to_owned())),
    }
}

/// Whether all of it was looked through in that time, and no page is of another state than the others.
///
/// # Errors
/// [`StoreError::Damaged`], and [`StoreError::Engine`].
pub(super) fn look_through(file: &Path, connection: &Connection, limit: Duration) -> Result<bool, StoreError> {
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
pub(super) fn prepare(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "journal_mode", "WAL").of(connection)?;
    connection.pragma_update(None, "synchronous", "FULL").of(connection)?;
    schema::migrate(connection)
}

/// Does what only one process may do at a time.
fn under_lock(connection: &Connection, work: impl FnOnce(&StoreMark) -> Result<(), StoreError>) -> Result<(), StoreError> {
    connection.execute_batch("BEGIN IMMEDIATE").of(connection)?;
    let done = schema::standing(connection).of(connection).and_then(|standing| work(&standing));
    connection.execute_batch("ROLLBACK").of(connection)?;
    done
}

/// The writer: takes what has queued up, does it in one transaction, commits, and only then answers.
struct Writer {
    connection: Connection,
    turnstile: Turnstile,
    file: PathBuf,
    inode: Inode,
    standing: Arc<Mutex<StoreMark>>,
    later: Later,
}

impl Writer {
    fn run(self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let batch = std::iter::once(first).chain(jobs.try_iter().take(BATCH_LIMIT - 1));
            self.work(batch.collect());
        }
        if !self.later().is_empty() {
            self.work(Vec::new());
        }
    }

    /// One transaction.
    fn work(&self, batch: Vec<Job>) {
        let begun = self.begin();
        if let Err(error) = begun {
            tracing::error!(%error, "the store cannot be used");
            for job in batch {
                job(Err(Self::again(&error)))(Ok(()));
            }
            return;
        }
        let before = self.connection.total_changes();
        let mut later = std::mem::take(&mut *self.later());
        for work in &mut later {
            let mut part = Part::new(&self.connection);
            let done = work(&mut part);
            if let Err(error) = part.end(done) {
                tracing::error!(%error, "the store cannot settle what was recorded");
            }
        }
        let answers: Vec<JobReply> = batch.into_iter().map(|job| job(Ok(&self.connection))).collect();
        let committed = self.commit(self.connection.total_changes() != before);
        if let Err(error) = &committed {
            tracing::error!(%error, "the store cannot commit");
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

    /// Begins a transaction on the store that was opened, and not on one that has lost its name or was set back.
    fn begin(&self) -> Result<(), StoreError> {
        let replaced = || match schema::moved(&self.connection) {
            Ok(Some((_, moved))) => moved.error(&self.file),
            _ => StoreError::Replaced(self.file.clone()),
        };
        if inode(&self.file).ok() != Some(self.inode) {
            return Err(StoreError::Replaced(self.file.clone()));
        }
        let begun = self.turnstile.pass(|| self.connection.execute_batch("BEGIN IMMEDIATE"));
        begun.at(&self.file)?;
        let checked = schema::standing(&self.connection).at(&self.file).and_then(|found| {
            let known = self.standing.lock().map_err(|_| StoreError::Closed)?;
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

    fn commit(&self, written: bool) -> Result<(), rusqlite::Error> {
        if written {
            schema::advance(&self.connection)?;
        }
        let standing = schema::standing(&self.connection)?;
        self.connection.execute_batch("COMMIT")?;
        if let Ok(mut known) = self.standing.lock() {
            *known = standing;
        }
        Ok(())
    }

    /// The error once more, for everybody who waits for the same transaction.
    fn again(error: &StoreError) -> StoreError {
        match error {
            StoreError::Replaced(path) => StoreError::Replaced(path.clone()),
            StoreError::Moved { path, to } => StoreError::Moved {
                path: path.clone(),
                to: to.clone(),
            },
            _ => StoreError::Closed,
        }
    }
}

#[async_trait]
impl Engine for Embedded {
    async fn transact(&self, mut work: Work) -> Result<(), StoreError> {
        self.on_connection(move |connection| {
            let mut part = Part::new(connection);
            let done = work(&mut part);
            part.end(done)
        })
        .await
    }

    fn later(&self, work: Work) {
        self.open.later.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.on_connection(move |connection| sqlite::page(connection, &range, most).of(connection))
            .await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.on_connection(move |connection| sqlite::count(connection, &range).of(connection))
            .await
    }

    fn most_writes(&self) -> usize {
        WRITES_LIMIT
    }

    fn standing(&self) -> Option<StoreMark> {
        self.open.standing.lock().ok().map(|standing| standing.clone())
    }

    fn beside(&self) -> Option<&Path> {
        Some(&self.open.file)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let file = self.open.file.clone();
        // In a transaction, so that of two processes one writes.
        self.on_connection(move |connection| write_mark(&file, &schema::standing(connection).at(&file)?))
            .await
    }
}
