//! The embedded store: one SQLite file.
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
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use tokio::sync::oneshot;

use super::known::{Known, StoreFile, write_mark};
use super::sqlite::Explain;
use super::uses::{self, whole};
use super::{Claim, Entry, EntryKind, Occasion, Pending, Spend, Spendable, Store, StoreError, StoreMark, Tick, believed, held, schema};
use crate::files;

/// How long a write waits for another process (the administrator's commands) to finish its own.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long files that were left behind are looked through. All the challenges that are
/// remembered, 170 MB, take a second at most; a start has 90 s, and looks twice.
const LOOK_THROUGH_LIMIT: Duration = Duration::from_secs(10);
/// Requests that go into one transaction: bounds how long the first of them waits.
const BATCH_LIMIT: usize = 256;
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
    settled: Settled,
    file: PathBuf,
}

/// Decisions that are recorded: taken off the pending ones with whatever is written next.
type Settled = Arc<Mutex<Vec<String>>>;

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
            file: file.to_owned(),
            inode,
            standing: Arc::clone(&standing),
            settled: Settled::default(),
        };
        let settled = Arc::clone(&writer.settled);
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
                settled,
                file: file.to_owned(),
            }),
        })
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

    /// Forgets what expired long before this time, and the oldest challenges beyond so many. Others' work comes in between.
    pub(super) async fn forget(&self, believed: u64, most_challenges: u64) -> Result<(), StoreError> {
        while self
            .transact(move |connection| whole(connection, || believed::forget(connection, believed)))
            .await?
        {}
        let mut beyond = self
            .transact(move |connection| believed::beyond(connection, most_challenges))
            .await?;
        while beyond > 0 {
            beyond = self
                .transact(move |connection| whole(connection, || believed::forget_beyond(connection, beyond)))
                .await?;
        }
        Ok(())
    }

    /// Runs `work` in the next transaction; the answer comes when that is committed.
    pub(super) async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.transact_with(|connection| work(connection).of(connection)).await
    }

    /// As [`Embedded::transact`], for work that can fail otherwise.
    async fn transact_with<T: Send + 'static>(
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
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX).at(file)?;
    connection.busy_timeout(BUSY_TIMEOUT).at(file)?;
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
    file: PathBuf,
    inode: Inode,
    standing: Arc<Mutex<StoreMark>>,
    settled: Settled,
}

impl Writer {
    fn run(self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let batch = std::iter::once(first).chain(jobs.try_iter().take(BATCH_LIMIT - 1));
            self.work(batch.collect());
        }
        if !self.settled().is_empty() {
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
        let settled = std::mem::take(&mut *self.settled());
        if let Err(error) = uses::forget_pending(&self.connection, &settled) {
            tracing::error!(%error, "the store cannot settle what was recorded");
        }
        let answers: Vec<JobReply> = batch.into_iter().map(|job| job(Ok(&self.connection))).collect();
        let committed = self.commit(self.connection.total_changes() != before);
        if let Err(error) = &committed {
            tracing::error!(%error, "the store cannot commit");
            drop(self.connection.execute_batch("ROLLBACK"));
            self.settled().extend(settled);
        }
        for answer in answers {
            answer(committed.as_ref().copied());
        }
    }

    fn settled(&self) -> MutexGuard<'_, Vec<String>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a transaction on the store that was opened, and not on one that has lost its name or was set back.
    fn begin(&self) -> Result<(), StoreError> {
        let replaced = || StoreError::Replaced(self.file.clone());
        if inode(&self.file).ok() != Some(self.inode) {
            return Err(replaced());
        }
        self.connection.execute_batch("BEGIN IMMEDIATE").at(&self.file)?;
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
            _ => StoreError::Closed,
        }
    }
}

fn get(connection: &Connection, kind: EntryKind, id: &str) -> Result<Option<Entry>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT id, value FROM entries WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| {
            Ok(Entry {
                id: row.get(0)?,
                value: row.get(1)?,
            })
        })
        .optional()
}

fn put(connection: &Connection, kind: EntryKind, entry: &Entry) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO entries (kind, id, value) VALUES (?1, ?2, ?3)")?
        .execute(params![kind.as_str(), entry.id, entry.value])?;
    held::overwritten(connection, kind, &entry.id)
}

fn remove(connection: &Connection, kind: EntryKind, id: &str) -> Result<bool, rusqlite::Error> {
    if kind == EntryKind::Token {
        uses::forget(connection, EntryKind::TokenUse, id)?;
    }
    held::overwritten(connection, kind, id)?;
    connection
        .prepare_cached("DELETE FROM entries WHERE kind = ?1 AND id = ?2")?
        .execute(params![kind.as_str(), id])
        .map(|rows| rows > 0)
}

#[async_trait]
impl Store for Embedded {
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        self.transact_with(move |connection| {
            believed::refuse_forgotten(connection, &thing)?;
            whole(connection, || uses::spend(connection, &thing)).of(connection)
        })
        .await
    }

    async fn spend_for(&self, thing: Spendable, occasion: Occasion, pending: Pending) -> Result<Spend, StoreError> {
        self.transact_with(move |connection| {
            believed::refuse_forgotten(connection, &thing)?;
            whole(connection, || uses::spend_for(connection, &thing, &occasion, &pending)).of(connection)
        })
        .await
    }

    async fn would_spend(&self, thing: Spendable, occasion: Occasion, at: u64) -> Result<Spend, StoreError> {
        self.transact_with(move |connection| {
            believed::refuse_forgotten(connection, &thing)?;
            uses::look(connection, &thing, &occasion, at).of(connection)
        })
        .await
    }

    async fn claim(&self, kind: EntryKind, claim: Claim, pending: Pending) -> Result<Option<Entry>, StoreError> {
        self.transact(move |connection| whole(connection, || held::claim(connection, kind, &claim, &pending)))
            .await
    }

    async fn share(&self, kind: EntryKind, entry: Entry, pending: Pending) -> Result<bool, StoreError> {
        self.transact(move |connection| held::share(connection, kind, &entry, &pending))
            .await
    }

    fn settle(&self, decision: &str) {
        let mut settled = self.open.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.push(decision.to_owned());
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        let decision = decision.to_owned();
        self.transact(move |connection| whole(connection, || uses::give_back(connection, &decision)))
            .await
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        self.transact(uses::pending).await
    }

    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| uses::uses(connection, kind, &id)).await
    }

    async fn insert(&self, kind: EntryKind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.transact(move |connection| {
            if let Some(existing) = get(connection, kind, &entry.id)? {
                // Whoever writes the same has it written, too.
                if existing == entry {
                    held::overwritten(connection, kind, &entry.id)?;
                }
                return Ok(Some(existing));
            }
            connection
                .prepare_cached("INSERT INTO entries (kind, id, value) VALUES (?1, ?2, ?3)")?
                .execute(params![kind.as_str(), entry.id, entry.value])?;
            Ok(None)
        })
        .await
    }

    async fn put(&self, kind: EntryKind, entry: Entry) -> Result<(), StoreError> {
        self.transact(move |connection| whole(connection, || put(connection, kind, &entry)))
            .await
    }

    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<Entry>, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| get(connection, kind, &id)).await
    }

    async fn stays(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| held::stays(connection, kind, &id)).await
    }

    async fn stands(&self, kind: EntryKind, entry: Entry) -> Result<bool, StoreError> {
        self.transact(move |connection| held::stands(connection, kind, &entry)).await
    }

    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| whole(connection, || remove(connection, kind, &id)))
            .await
    }

    async fn change(&self, kind: EntryKind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.transact(move |connection| {
            for entry in &expected {
                if get(connection, kind, &entry.id)?.as_ref() != Some(entry) {
                    return Ok(false);
                }
            }
            whole(connection, || write.iter().try_for_each(|entry| put(connection, kind, entry)))?;
            Ok(true)
        })
        .await
    }

    async fn list(&self, kind: EntryKind) -> Result<Vec<Entry>, StoreError> {
        self.transact(move |connection| {
            connection
                .prepare_cached("SELECT id, value FROM entries WHERE kind = ?1 ORDER BY id")?
                .query_map([kind.as_str()], |row| {
                    Ok(Entry {
                        id: row.get(0)?,
                        value: row.get(1)?,
                    })
                })?
                .collect()
        })
        .await
    }

    fn standing(&self) -> Option<StoreMark> {
        self.open.standing.lock().ok().map(|standing| standing.clone())
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let file = self.open.file.clone();
        // In a transaction, so that of two processes one writes.
        self.transact_with(move |connection| write_mark(&file, &schema::standing(connection).at(&file)?))
            .await
    }

    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError> {
        let believed = self.transact(move |connection| believed::go_on(connection, tick)).await?;
        // A store that was begun while the clock was ahead must not forget what is spent when it is right: both have to say so.
        let both = believed.min(tick.now);
        self.forget(both, believed::CHALLENGES_LIMIT_ROWS).await?;
        Ok(believed)
    }
}
