//! Journal: the log's file, appended by one thread, fsynced before a request is answered, never left with half a line.

mod console;
mod group_commit;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

pub use console::label;
use console::{show, show_event};
use group_commit::GroupCommit;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex, oneshot, watch};
pub use writer::Durable;
use writer::{Append, CheckpointRequest, JournalWork, JournalWriter, UncheckedLines};

use super::blobs::Blobs;
use super::chain::Point;
use super::entry::LogEvent;
use super::journal_error::JournalError;
use super::leftover_files::remove_unfinished;
use super::log_file::LockedLog;
use super::log_key::LogPublicKey;
use super::record::{ChainedLine, Decision, Record};
use super::removal::Removal;
use super::segments::{Aside, Compression, SegmentLimits};
use super::signer::CheckpointSigner;
use super::store_link::StoreLink;
use super::store_position::StorePosition;
use super::unsigned::with_unsigned;
use super::writer_lock::WriterLock;

/// Names and contents of the blobs that a record refers to. Many records share one content.
pub type LargeParts = Vec<(String, Arc<[u8]>)>;

/// Most records that may wait; beyond it the gateway is overloaded and refuses requests.
const QUEUE_LIMIT: usize = 4096;

/// An observer of whether the log can be written.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// Receives the state, after each write and each check.
    fn log_state(&self, state: LogState);

    /// Receives the duration of an fsync after which new lines are durable.
    fn log_synced(&self, _took: Duration) {}

    /// Learns that a checkpoint of the log's end is durable.
    fn log_signed(&self) {}
}

/// Observer that ignores the state.
impl Observer for () {
    fn log_state(&self, _: LogState) {}
}

/// The state of the log, as it was found last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogState {
    /// No record can be written.
    pub is_broken: bool,
    /// The file that is written does not have the log's name.
    pub is_moved: bool,
}

/// A record as a line, not written yet.
#[derive(Debug)]
pub struct PreparedLine<'r> {
    record: &'r Record,
    line: Vec<u8>,
}

impl PreparedLine<'_> {
    /// Returns the bytes that the line takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.line.len()
    }
}

/// Proof that a decision is on disk, or that it gets no line and what it used up is. Only a [`Journal`] makes one.
#[derive(Debug)]
pub struct Recorded<T> {
    outcome: T,
    line: Option<String>,
}

impl<T> Recorded<T> {
    /// Returns the outcome of the decision.
    pub fn into_inner(self) -> T {
        self.outcome
    }

    /// Returns the decision's id, if it has a line of its own and was not only counted.
    #[must_use]
    pub fn line(&self) -> Option<&str> {
        self.line.as_deref()
    }
}

/// The attestation log, open for appending.
#[derive(Debug)]
pub struct Journal {
    work: mpsc::SyncSender<JournalWork>,
    observer: Arc<dyn Observer>,
    /// Set while the last write, or check, has failed.
    broken: AtomicBool,
    store: Option<StoreLink>,
    /// Set if the file that is written did not have the log's name at the last check.
    moved: Arc<AtomicBool>,
    unsigned: Arc<UncheckedLines>,
    signed: watch::Receiver<Option<Arc<str>>>,
    durable: watch::Receiver<Durable>,
    /// The last checkpoint that was passed on; held while another is.
    passed_on: Mutex<Option<Arc<str>>>,
    compression: mpsc::Sender<Aside>,
    /// Name of the gateway in checkpoints.
    replica: String,
    /// Key that signs its checkpoints.
    key: LogPublicKey,
}

impl Journal {
    /// Opens the log, and makes it if it does not exist. A last line without its end was never acknowledged: it is cut off, and the number
    /// of bytes cut is returned.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn open(
        path: &Path,
        signer: CheckpointSigner,
        limits: SegmentLimits,
        evidence: Blobs,
        observer: Arc<dyn Observer>,
    ) -> Result<(Self, u64), JournalError> {
        let lock = Arc::new(WriterLock::take(path)?);
        remove_unfinished(path, &evidence);
        let (mut log, cut) = LockedLog::open(path)?;
        let chain = with_unsigned(path, signer.key(), log.chain()?).map_err(|source| JournalError::Io {
            path: path.to_owned(),
            source,
        })?;
        let last = log.last_checkpoint(signer.key())?;
        let (replica, key) = (signer.replica().to_owned(), signer.key());
        let (work, receiver) = mpsc::sync_channel(QUEUE_LIMIT);
        let (moved, unsigned) = (Arc::<AtomicBool>::default(), Arc::<UncheckedLines>::default());
        let (sender, signed) = watch::channel(last);
        let (id, number, _) = chain.head();
        let (durable_sender, durable) = watch::channel(Durable {
            chain: id.to_owned(),
            number,
            cuts: 0,
        });
        let compression = Compression {
            log: path.to_owned(),
            after: limits.compress_after,
            _lock: Arc::clone(&lock),
        }
        .begin()?;
        let writer = JournalWriter {
            log,
            chain,
            evidence,
            signer,
            store: None,
            group_commit: None,
            unsigned: Arc::clone(&unsigned),
            signed: sender,
            observer: Arc::clone(&observer),
            durable: durable_sender,
            torn: false,
            moved: Arc::clone(&moved),
            limits,
            compression: compression.clone(),
            _lock: lock,
        };
        thread::Builder::new()
            .name("attestation-log".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|source| JournalError::Io {
                path: path.to_owned(),
                source,
            })?;
        let journal = Self {
            work,
            observer,
            broken: AtomicBool::new(false),
            store: None,
            moved,
            unsigned,
            signed,
            durable,
            passed_on: Mutex::default(),
            compression,
            replica,
            key,
        };
        Ok((journal, cut))
    }

    /// Returns the gateway's name.
    #[must_use]
    pub fn replica(&self) -> &str {
        &self.replica
    }

    /// Returns the public half of the key that signs the log's checkpoints.
    #[must_use]
    pub const fn key(&self) -> LogPublicKey {
        self.key
    }

    /// Starts to compress segments that were closed before the start. Until then no file of the log is replaced, so that a reader that
    /// lists them finds them all.
    pub fn compress_closed(&self) {
        // Whoever does that ends after this.
        let _ = self.compression.send(Aside::Closed);
    }

    /// Runs work on closed segments while no other task uses them; the writer does not wait for it. `None` if the log is closed.
    pub async fn run_exclusive<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, answer) = oneshot::channel();
        let work = Box::new(move || drop(done.send(work())));
        self.compression.send(Aside::Work(work)).ok()?;
        answer.await.ok()
    }

    /// Makes each line state the store's position, and be written only when that is durable.
    #[must_use]
    pub fn with_store(self, store: StoreLink) -> Self {
        // Before anything is written: whoever writes it ends after this.
        let _ = self.work.try_send(JournalWork::Stand(store.clone()));
        Self {
            store: Some(store),
            ..self
        }
    }

    /// Turns on group commit: records wait for each other while many come and more than a few are about to, according to `coming`.
    #[must_use]
    pub fn with_company(self, coming: impl Fn() -> usize + Send + 'static) -> Self {
        // Whoever writes ends after this.
        let _ = self.work.try_send(JournalWork::Wait(GroupCommit::new(coming)));
        self
    }

    /// Continues in the file that has the log's name now, if the old one was moved. Returns whether it was. The old file ends with a
    /// checkpoint, and the new one begins with one.
    ///
    /// # Errors
    /// [`JournalError`]: it continues in the file that was moved, and has to be called again.
    pub async fn reopen(&self, at: u64) -> Result<bool, JournalError> {
        let reopened = self.ask(|done| JournalWork::Reopen(at, done)).await;
        self.observe();
        reopened
    }

    /// Begins another chain, whose first line names the lines that are missing from the log.
    ///
    /// # Errors
    /// [`JournalError`]: the old chain continues.
    pub async fn begin_chain(&self, after: Vec<Point>) -> Result<(), JournalError> {
        self.ask(|done| JournalWork::BeginAnew(after, done)).await
    }

    /// Signs a checkpoint, if the log has lines that no checkpoint covers, or begins.
    ///
    /// # Errors
    /// [`JournalError`]: the checkpoint is still due.
    pub async fn checkpoint(&self, at: u64) -> Result<(), JournalError> {
        self.ask(|done| JournalWork::Checkpoint(CheckpointRequest { at, done })).await
    }

    /// Records durably, with a checkpoint, that a segment is removed; only then may it be removed.
    ///
    /// # Errors
    /// [`JournalError`]: it has to be recorded again.
    pub async fn removes(&self, removal: Removal, at: u64) -> Result<(), JournalError> {
        self.record_event(&removal.event(at)?).await?;
        self.checkpoint(at).await
    }

    /// Waits until the limit of lines without a checkpoint is reached.
    pub async fn checkpoint_due(&self) {
        self.unsigned.many.notified().await;
    }

    /// Passes the last checkpoint on to `keep`, unless it was passed on already. This happens one at a time, so that none comes after a
    /// later one. Returns the result of `keep`; `None` without a new checkpoint.
    ///
    /// # Errors
    /// Those of `keep`: the same checkpoint is passed on the next time.
    pub async fn pass_on_checkpoint<T, E, F>(&self, keep: impl FnOnce(Arc<str>) -> F) -> Result<Option<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut passed_on = self.passed_on.lock().await;
        let last = self.signed.borrow().clone();
        let Some(text) = last.filter(|last| passed_on.as_ref() != Some(last)) else {
            return Ok(None);
        };
        let kept = keep(Arc::clone(&text)).await?;
        *passed_on = Some(text);
        Ok(Some(kept))
    }

    /// Returns a receiver of the log's last checkpoint: one of its lines.
    #[must_use]
    pub fn checkpoints(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.signed.clone()
    }

    /// Returns a receiver of the position up to which the log is on disk.
    #[must_use]
    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.durable.clone()
    }

    async fn ask<T>(&self, work: impl FnOnce(oneshot::Sender<Result<T, JournalError>>) -> JournalWork) -> Result<T, JournalError> {
        let (done, answer) = oneshot::channel();
        self.work.try_send(work(done)).map_err(|_| JournalError::Failed)?;
        answer.await.map_err(|_| JournalError::Failed)?
    }

    fn position(&self) -> Option<StorePosition> {
        (self.store.as_ref()?.position)()
    }

    /// Returns whether the file that is written did not have the log's name at the last check: there is one at each write and each
    /// [`Journal::is_writable`].
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// Checks whether a record could be written now.
    pub async fn is_writable(&self) -> bool {
        let (done, found) = oneshot::channel();
        let asked = self.work.try_send(JournalWork::Probe(done)).is_ok();
        let writable = asked && found.await.unwrap_or(false);
        self.broken.store(!writable, Ordering::Relaxed);
        self.observe();
        writable
    }

    fn observe(&self) {
        self.observer.log_state(LogState {
            is_broken: self.broken.load(Ordering::Relaxed),
            is_moved: self.is_moved(),
        });
    }

    /// Makes a decision durable, with the large parts that it refers to. Only then is `outcome` returned, and only then may the client be
    /// answered. The console shows the same decision as a line for people.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503, whatever the outcome was.
    pub async fn record<T>(&self, record: &Record, blobs: LargeParts, outcome: T) -> Result<Recorded<T>, JournalError> {
        self.write(self.prepare(record)?, blobs, outcome).await
    }

    /// Makes an event durable; the console shows it.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn record_event(&self, event: &LogEvent) -> Result<(), JournalError> {
        self.record_event_with(event, LargeParts::new()).await
    }

    /// Makes an event durable, with the large parts that it refers to; the console shows it.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn record_event_with(&self, event: &LogEvent, blobs: LargeParts) -> Result<(), JournalError> {
        self.append(event.at, self.line(event)?, blobs).await?;
        show_event(event);
        Ok(())
    }

    /// Makes a line of a record, for [`Journal::write`].
    ///
    /// # Errors
    /// [`JournalError::Record`].
    pub fn prepare<'r>(&self, record: &'r Record) -> Result<PreparedLine<'r>, JournalError> {
        let line = self.line(record)?;
        Ok(PreparedLine { record, line })
    }

    /// Writes a prepared line as [`Journal::record`] does.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn write<T>(
        &self,
        PreparedLine { record, line }: PreparedLine<'_>,
        blobs: LargeParts,
        outcome: T,
    ) -> Result<Recorded<T>, JournalError> {
        self.append(record.at, line, blobs).await?;
        show(record);
        let line = Some(record.id.clone());
        Ok(Recorded { outcome, line })
    }

    /// Writes the line of a decision that was not recorded in time.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn record_late(&self, record: &Record<Value, Value>) -> Result<(), JournalError> {
        self.append(record.at, self.line(record)?, LargeParts::new()).await?;
        show(record);
        Ok(())
    }

    /// Returns `outcome` for a decision that gets no line of its own, because an aggregated record counts it: once everything that it used
    /// up is durable.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503.
    pub async fn count<T>(&self, record: &Record, outcome: T) -> Result<Recorded<T>, JournalError> {
        self.sync_spent(record).await?;
        Ok(Recorded { outcome, line: None })
    }

    /// Makes durable what a decision without a line has used up, before its client is answered. Only refused evidence has used up anything:
    /// its challenge.
    async fn sync_spent(&self, record: &Record) -> Result<(), JournalError> {
        let (Some(store), Decision::Evidence | Decision::Rehearsal) = (&self.store, record.decision) else {
            return Ok(());
        };
        let sync = Arc::clone(&store.sync);
        // It waits for the disk.
        let synced = tokio::task::spawn_blocking(move || sync()).await;
        match synced.map_err(|_| JournalError::Failed)? {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::error!(%error, "cannot sync the store; answering 503");
                Err(JournalError::Failed)
            }
        }
    }

    fn line(&self, record: &impl Serialize) -> Result<Vec<u8>, JournalError> {
        let store = self.position();
        Ok(serde_json::to_vec(&ChainedLine { record, store })?)
    }

    async fn append(&self, at: u64, record: Vec<u8>, blobs: LargeParts) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let append = Append { at, record, blobs, done };
        self.work.try_send(JournalWork::Append(append)).map_err(|_| JournalError::Failed)?;
        let written = written.await.unwrap_or(false);
        self.broken.store(!written, Ordering::Relaxed);
        self.observe();
        if !written {
            return Err(JournalError::Failed);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
