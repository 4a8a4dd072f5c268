//! The file: appended by one thread, fsynced before anybody is answered, never left with half a line.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use tokio::sync::{Notify, oneshot, watch};

use super::blobs::{BlobError, Blobs};
use super::chain::{Begins, Chain, Point, Why};
use super::checkpoint::Signer;
use super::counted::{self, Recording, Strangers};
use super::log_file::{LogFile, WriterLock};
use super::reason::late;
use super::record::{Decision, Line, NotAttested, Record, Shown, Verdict};
use crate::metrics::Metrics;
use crate::store::{Store, StoreMark};

/// Records that go into one fsync.
const BATCH_LIMIT: usize = 256;
/// Records that may wait; beyond that the gateway is overloaded and says so.
const QUEUE_LIMIT: usize = 4096;

/// The attestation log cannot be written: nothing may be answered that it should hold.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// Another process has the file open.
    #[error("another gateway is writing {0}")]
    InUse(PathBuf),
    /// A record could not be made durable; the log says why.
    #[error("the attestation log cannot be written")]
    Failed,
    /// A record could not be put into JSON.
    #[error("the record cannot be written: {0}")]
    Record(#[from] serde_json::Error),
    /// The folder of large parts.
    #[error(transparent)]
    Blobs(#[from] BlobError),
}

/// Proof that a decision is on disk. Only [`Journal::record`] makes one.
#[derive(Debug)]
pub struct Recorded<T> {
    outcome: T,
    line: Option<String>,
}

impl<T> Recorded<T> {
    /// What was decided.
    pub fn into_inner(self) -> T {
        self.outcome
    }

    /// The decision's id, if it has a line of its own: it was not counted with others.
    #[must_use]
    pub fn line(&self) -> Option<&str> {
        self.line.as_deref()
    }
}

/// What the writer does, in this order.
enum Work {
    Append(Append),
    Reopen(Moment, oneshot::Sender<Result<bool, JournalError>>),
    BeginAnew(Vec<Point>, oneshot::Sender<Result<(), JournalError>>),
    Checkpoint(Moment, oneshot::Sender<Result<(), JournalError>>),
    Probe(oneshot::Sender<bool>),
}

/// When something is written that nobody has asked for, and how far the store had come.
struct Moment {
    at: u64,
    store: Option<StoreMark>,
}

struct Append {
    /// An object of JSON, which gets its place in the chain when it is written.
    record: Vec<u8>,
    blobs: Vec<(String, Vec<u8>)>,
    done: oneshot::Sender<bool>,
}

/// The attestation log, open for appending.
#[derive(Debug)]
pub struct Journal {
    work: mpsc::SyncSender<Work>,
    metrics: Arc<Metrics>,
    store: Option<Arc<dyn Store>>,
    strangers: Strangers,
    /// Whether the file that is written had lost the log's name when that was looked at last.
    moved: Arc<AtomicBool>,
    unsigned: Arc<Unsigned>,
    signed: watch::Receiver<Option<Arc<str>>>,
}

/// Lines since the start that no checkpoint covers yet.
#[derive(Debug, Default)]
struct Unsigned {
    lines: AtomicU64,
    /// There are as many as there may be.
    many: Notify,
}

impl Journal {
    /// Opens the log, and makes it if there is none. A last line without its end was never acknowledged: it is cut off, and the
    /// number of bytes cut is returned.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn open(path: &Path, signer: Signer, blobs: Blobs, metrics: Arc<Metrics>) -> Result<(Self, u64), JournalError> {
        let lock = WriterLock::take(path)?;
        let (mut log, cut) = LogFile::open(path)?;
        let chain = log.chain()?;
        let (work, receiver) = mpsc::sync_channel(QUEUE_LIMIT);
        let (moved, unsigned) = (Arc::<AtomicBool>::default(), Arc::<Unsigned>::default());
        let (sender, signed) = watch::channel(None);
        let writer = Writer {
            log,
            chain,
            blobs,
            signer,
            unsigned: Arc::clone(&unsigned),
            signed: sender,
            moved: Arc::clone(&moved),
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
            metrics,
            store: None,
            strangers: Strangers::default(),
            moved,
            unsigned,
            signed,
        };
        Ok((journal, cut))
    }

    /// Has each line say how far this store has come.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn Store>) -> Self {
        Self {
            store: Some(store),
            ..self
        }
    }

    /// Goes on in the file that has the log's name now, after it was moved. Says whether it was. The old file ends with a checkpoint, and the
    /// new one begins with one.
    ///
    /// # Errors
    /// [`JournalError`]: it goes on in the file that was moved, and has to be told again.
    pub async fn reopen(&self, at: u64) -> Result<bool, JournalError> {
        let reopened = self.ask(|done| Work::Reopen(self.moment(at), done)).await;
        self.metrics.log_moved(self.is_moved());
        reopened
    }

    /// Begins another chain, whose first line says what the log does not hold any more.
    ///
    /// # Errors
    /// [`JournalError`]: the old one goes on.
    pub async fn begin_anew(&self, after: Vec<Point>) -> Result<(), JournalError> {
        self.ask(|done| Work::BeginAnew(after, done)).await
    }

    /// Signs how far the log has come, if it has lines that no checkpoint covers, or begins.
    ///
    /// # Errors
    /// [`JournalError`]: then it is due still.
    pub async fn checkpoint(&self, at: u64) -> Result<(), JournalError> {
        self.ask(|done| Work::Checkpoint(self.moment(at), done)).await
    }

    /// Waits until there are as many lines without a checkpoint as there may be.
    pub async fn checkpoint_due(&self) {
        self.unsigned.many.notified().await;
    }

    /// The last checkpoint that was written since the start, a line of the log.
    #[must_use]
    pub fn checkpoints(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.signed.clone()
    }

    async fn ask<T>(&self, work: impl FnOnce(oneshot::Sender<Result<T, JournalError>>) -> Work) -> Result<T, JournalError> {
        let (done, answer) = oneshot::channel();
        self.work.try_send(work(done)).map_err(|_| JournalError::Failed)?;
        answer.await.map_err(|_| JournalError::Failed)?
    }

    fn moment(&self, at: u64) -> Moment {
        let store = self.store.as_ref().and_then(|store| store.standing());
        Moment { at, store }
    }

    /// Whether the file that is written does not have the log's name, as far as was looked at last: at each write and each
    /// [`Journal::is_writable`].
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    /// Whether a record could be written now.
    pub async fn is_writable(&self) -> bool {
        let (done, found) = oneshot::channel();
        let asked = self.work.try_send(Work::Probe(done)).is_ok();
        let writable = asked && found.await.unwrap_or(false);
        self.metrics.log_broken(!writable);
        self.metrics.log_moved(self.is_moved());
        writable
    }

    /// Makes a decision durable, with the large parts it refers to; only then is `outcome` given back, and only then may it be
    /// answered. The console shows the same decision as a line for people. Of decisions that are more than the budget for them,
    /// a line says beforehand that they are counted, and [`Journal::sum_up`] how many there were.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503, whatever the outcome was.
    pub async fn record<T>(&self, record: &Record, blobs: Vec<(String, Vec<u8>)>, outcome: T) -> Result<Recorded<T>, JournalError> {
        let line = self.line(record)?;
        let bytes = blobs
            .iter()
            .map(|(_, content)| content.len())
            .fold(line.len(), usize::saturating_add);
        let line = match self.strangers.admit(record, bytes) {
            Recording::OneByOne => {
                self.append(line, blobs).await?;
                show(record);
                Some(record.id.clone())
            }
            Recording::Counted { of, announced } => {
                if !announced {
                    let counting = counted::begins(of, record.at)?;
                    self.append(self.line(&counting)?, Vec::new()).await?;
                    show(&counting);
                    self.strangers.announced(of);
                }
                self.metrics.decision_counted();
                None
            }
        };
        self.metrics
            .decided(word(&record.decision), word(&record.verdict), record.code.as_deref());
        Ok(Recorded { outcome, line })
    }

    /// Records how many decisions were counted in the minutes that are over at `now` (seconds since 1970), or in all, at the end.
    ///
    /// # Errors
    /// [`JournalError`]: what was counted is lost with it; that something was stands in the log.
    pub async fn sum_up(&self, now: u64, all: bool) -> Result<(), JournalError> {
        for sum in self.strangers.sums(now, all) {
            let record = counted::sum(sum, now)?;
            self.append(self.line(&record)?, Vec::new()).await?;
            show(&record);
        }
        Ok(())
    }

    fn line(&self, record: &Record) -> Result<Vec<u8>, JournalError> {
        let store = self.store.as_ref().and_then(|store| store.standing());
        Ok(serde_json::to_vec(&Line { record, store })?)
    }

    async fn append(&self, record: Vec<u8>, blobs: Vec<(String, Vec<u8>)>) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        self.work
            .try_send(Work::Append(Append { record, blobs, done }))
            .map_err(|_| JournalError::Failed)?;
        let written = written.await.unwrap_or(false);
        self.metrics.log_broken(!written);
        self.metrics.log_moved(self.is_moved());
        if !written {
            return Err(JournalError::Failed);
        }
        Ok(())
    }
}

struct Writer {
    log: LogFile,
    /// As far as it is on disk.
    chain: Chain,
    blobs: Blobs,
    signer: Signer,
    unsigned: Arc<Unsigned>,
    /// The last checkpoint.
    signed: watch::Sender<Option<Arc<str>>>,
    moved: Arc<AtomicBool>,
    _lock: WriterLock,
}

impl Writer {
    fn run(mut self, work: &mpsc::Receiver<Work>) {
        while let Ok(first) = work.recv() {
            let mut batch = Vec::new();
            for work in std::iter::once(first).chain(work.try_iter().take(BATCH_LIMIT - 1)) {
                match work {
                    Work::Append(append) => batch.push(append),
                    // What was asked for before stands in the file that was there before.
                    Work::Reopen(moment, done) => {
                        self.append(std::mem::take(&mut batch));
                        drop(done.send(self.reopen(&moment)));
                    }
                    Work::BeginAnew(after, done) => {
                        self.append(std::mem::take(&mut batch));
                        drop(done.send(self.begin_anew(after)));
                    }
                    Work::Checkpoint(moment, done) => {
                        self.append(std::mem::take(&mut batch));
                        drop(done.send(self.checkpoint_if_due(&moment)));
                    }
                    Work::Probe(done) => {
                        self.look();
                        let _ = done.send(self.log.is_writable());
                    }
                }
            }
            self.append(batch);
        }
    }

    fn append(&mut self, batch: Vec<Append>) {
        if batch.is_empty() {
            return;
        }
        let result = self.write(&batch);
        self.look();
        if let Err(error) = &result {
            tracing::error!(%error, "the attestation log cannot be written; nothing is answered without it");
        }
        for append in batch {
            // Whoever asked may be gone; the line stays.
            let _ = append.done.send(result.is_ok());
        }
    }

    fn reopen(&mut self, moment: &Moment) -> Result<bool, JournalError> {
        let signed = |result: Result<(), JournalError>| {
            if let Err(error) = result {
                tracing::error!(%error, "a checkpoint of the attestation log cannot be written");
            }
        };
        if self.log.is_moved() {
            signed(self.checkpoint_if_due(moment));
        }
        let reopened = self.log.reopen();
        self.look();
        if matches!(reopened, Ok(true)) {
            signed(self.checkpoint(moment));
        }
        reopened
    }

    fn begin_anew(&mut self, after: Vec<Point>) -> Result<(), JournalError> {
        let before = self.log.before().map_err(|source| JournalError::Io {
            path: "the attestation log".into(),
            source,
        })?;
        let why = Why::Incomplete;
        self.chain = Chain::begin(Begins { why, before, after })?;
        Ok(())
    }

    fn checkpoint_if_due(&mut self, moment: &Moment) -> Result<(), JournalError> {
        if !self.chain.is_signed() {
            return self.checkpoint(moment);
        }
        Ok(())
    }

    fn checkpoint(&mut self, Moment { at, store }: &Moment) -> Result<(), JournalError> {
        let (chain, count, head) = self.chain.head();
        let record = self.signer.sign(chain, count, head, *at)?;
        let record = serde_json::to_vec(&Line {
            record: &record,
            store: store.clone(),
        })?;
        let mut chain = self.chain.clone();
        let line = chain.link_checkpoint(&record)?;
        self.put(&line)?;
        self.chain = chain;
        self.unsigned.lines.store(0, Ordering::Relaxed);
        let text = String::from_utf8_lossy(&line);
        self.signed.send_replace(Some(text.trim_end().into()));
        Ok(())
    }

    fn put(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        self.log.append(lines).map_err(|source| JournalError::Io {
            path: "the attestation log".into(),
            source,
        })
    }

    /// Looks whether the log was moved.
    fn look(&self) {
        self.moved.store(self.log.is_moved(), Ordering::Relaxed);
    }

    fn write(&mut self, batch: &[Append]) -> Result<(), JournalError> {
        for (name, content) in batch.iter().flat_map(|append| &append.blobs) {
            self.blobs.put(name, content)?;
        }
        let (mut chain, mut lines) = (self.chain.clone(), Vec::new());
        for append in batch {
            lines.extend(chain.link(&append.record)?);
        }
        self.put(&lines)?;
        self.chain = chain;
        let new = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let before = self.unsigned.lines.fetch_add(new, Ordering::Relaxed);
        if before.saturating_add(new) >= self.signer.every() {
            self.unsigned.many.notify_one();
        }
        Ok(())
    }
}

/// Longest text that one part of a console line has, in characters; the record has all of it.
const SHOWN_LIMIT_CHARACTERS: usize = 1000;

fn printable(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(SHOWN_LIMIT_CHARACTERS) {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// A word as the log has it.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// The line for people.
fn show(record: &Record) {
    let Record {
        decision,
        verdict,
        peer,
        pool,
        shown,
        identity,
        name,
        code,
        reason,
        grant,
        ..
    } = record;
    // Some of this comes from the node as it is, and nothing of it may look like another line.
    let who = printable(identity.as_deref().unwrap_or("unknown node"));
    let name = name.as_deref().map(|name| format!(" ({})", printable(name))).unwrap_or_default();
    let (pool, reason) = (printable(pool), printable(reason));
    let grant = grant.map(|grant| grant.to_string()).unwrap_or_default();
    let said = record.not_attested.as_ref().and_then(NotAttested::said).unwrap_or_default();
    match (verdict, decision) {
        (_, Decision::Counted) => tracing::warn!(target: "attestation", "COUNTED peer={peer}: {reason}"),
        (Verdict::Trusted, _) => tracing::info!(target: "attestation", "TRUSTED {who}{name} pool={pool} peer={peer}: {reason}"),
        (Verdict::Served, _) => {
            let shown = match shown {
                Shown::Ticket => format!("ticket of {who}{name}{}", record.used().map(late).unwrap_or_default()),
                Shown::Token if record.again => format!("token{name}, a use that was made before"),
                Shown::Token => format!("token{name}"),
                Shown::Kubelet => format!("client certificate of {who}"),
                _ => "nothing shown".to_owned(),
            };
            tracing::info!(target: "attestation", "SERVED {grant} config, pool={pool} peer={peer}: {shown}{said}");
        }
        (Verdict::Refused, Decision::Config) => {
            let code = code.as_deref().unwrap_or_default();
            tracing::warn!(target: "attestation", "REFUSED config, pool={pool} peer={peer} code={code}: {reason}{said}");
        }
        (Verdict::Refused, _) => {
            let code = code.as_deref().unwrap_or_default();
            tracing::warn!(target: "attestation", "NOT TRUSTED {who}{name} pool={pool} peer={peer} code={code}: {reason}");
        }
    }
    let who = if *shown == Shown::Token { "token".into() } else { who };
    for alert in &record.alerts {
        tracing::warn!(target: "attestation", "ALERT {who}{name} pool={pool} peer={peer}: {alert}");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::super::log_file::CHUNK_BYTES;
    use super::super::log_key::LogKey;
    use super::*;

    fn open(folder: &Path) -> Result<(Journal, u64), JournalError> {
        Journal::open(
            &folder.join("attestation.jsonl"),
            signer(folder),
            Blobs::open(&folder.join("evidence")).unwrap(),
            Arc::default(),
        )
    }

    fn signer(folder: &Path) -> Signer {
        Signer::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000)
    }

    fn record(id: &str) -> Record {
        Record::new(id.to_owned(), Decision::Config, 0, "peer".to_owned(), "worker".to_owned())
    }

    /// Opens the log once the writer of a dropped journal has let go of it.
    fn reopen(folder: &Path) -> (Journal, u64) {
        loop {
            match open(folder) {
                Err(JournalError::InUse(_)) => thread::yield_now(),
                other => return other.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn a_line_is_there_when_its_outcome_is() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, cut) = open(folder.path()).unwrap();
        assert_eq!(cut, 0);
        let log = folder.path().join("attestation.jsonl");
        for count in 1..=20 {
            let outcome = journal.record(&record("d"), Vec::new(), count).await.unwrap().into_inner();
            assert_eq!((outcome, fs::read_to_string(&log).unwrap().lines().count()), (count, count));
        }
    }

    #[test]
    fn what_was_never_acknowledged_is_cut_off_however_long_it_is() {
        let chunk = usize::try_from(CHUNK_BYTES).unwrap();
        for (whole, torn) in [
            (0, 1),
            (0, chunk * 2 + 7),
            (3, 0),
            (3, 1),
            (chunk, chunk),
            (chunk - 1, chunk + 1),
            (chunk * 3, chunk * 2),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("attestation.jsonl");
            let lines = match whole {
                0 => String::new(),
                whole => format!("{}\n", "x".repeat(whole - 1)),
            };
            fs::write(&log, format!("{lines}{}", "y".repeat(torn))).unwrap();
            let (_journal, cut) = open(folder.path()).unwrap();
            assert_eq!(usize::try_from(cut).unwrap(), torn);
            assert!(fs::read_to_string(&log).unwrap() == lines, "{whole} {torn}");
        }
    }

    #[test]
    fn one_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path()).unwrap();
        assert!(matches!(open(folder.path()), Err(JournalError::InUse(_))));
        drop(journal);
        reopen(folder.path());
    }

    #[tokio::test]
    async fn a_blob_that_cannot_be_kept_is_a_record_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path()).unwrap();
        // A folder in the blob's place cannot be written to.
        let name = Blobs::name(b"log");
        fs::create_dir(folder.path().join("evidence").join(format!("{name}.gz.new"))).unwrap();
        let refused = journal.record(&record("a"), vec![(name, b"log".to_vec())], ()).await;
        assert!(matches!(refused, Err(JournalError::Failed)));
        journal.record(&record("b"), Vec::new(), ()).await.unwrap();
        let log = fs::read_to_string(folder.path().join("attestation.jsonl")).unwrap();
        assert!(log.lines().count() == 1 && log.contains("\"b\""), "{log}");
    }

    #[tokio::test]
    async fn a_log_that_is_moved_is_left_alone_once_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path()).unwrap();
        let (log, moved) = (folder.path().join("attestation.jsonl"), folder.path().join("attestation.jsonl.1"));
        let count = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        journal.record(&record("a"), Vec::new(), ()).await.unwrap();
        assert!(!journal.reopen(1).await.unwrap(), "nobody has moved it");
        fs::rename(&log, &moved).unwrap();
        journal.record(&record("b"), Vec::new(), ()).await.unwrap();
        assert!(journal.is_moved());
        assert!(journal.reopen(1).await.unwrap());
        assert!(!journal.is_moved());
        journal.record(&record("c"), Vec::new(), ()).await.unwrap();
        assert_eq!((count(&moved), count(&log)), (2 + 1, 1 + 1), "each has a checkpoint");
        // The lock is on the new one, and not on the old one any longer.
        assert!(matches!(open(folder.path()), Err(JournalError::InUse(_))));
        fs::File::open(&moved).unwrap().try_lock().unwrap();
        // What cannot be opened is said, and the log goes on where it was.
        fs::rename(&log, folder.path().join("attestation.jsonl.2")).unwrap();
        fs::create_dir(&log).unwrap();
        journal.reopen(1).await.unwrap_err();
        journal.record(&record("d"), Vec::new(), ()).await.unwrap();
        assert_eq!(count(&folder.path().join("attestation.jsonl.2")), 2 + 2);
    }

    #[test]
    fn a_failed_write_cuts_off_its_own_bytes_and_makes_no_file_longer() {
        for (before, emptied, after) in [("a\n", false, "a\n"), ("a\n", true, ""), ("", false, "")] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            let (mut log, _) = LogFile::open(&path).unwrap();
            log.append(before.as_bytes()).unwrap();
            log.tear(b"half a li");
            if emptied {
                fs::write(&path, "").unwrap();
            }
            log.append(b"b\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{after}b\n"));
            assert!(log.is_writable());
        }
    }

    #[test]
    fn text_from_outside_cannot_look_like_another_line() {
        assert_eq!(printable("a\nINFO TRUSTED tpm:00\u{1b}[2J"), "a\\nINFO TRUSTED tpm:00\\u{1b}[2J");
        assert_eq!(printable(&"ä".repeat(5000)).chars().count(), SHOWN_LIMIT_CHARACTERS);
    }

    #[test]
    fn decisions_are_counted_by_the_words_of_the_log() {
        assert_eq!(
            (word(&Decision::StoreAccepted), word(&Verdict::Refused)),
            ("store_accepted".to_owned(), "refused".to_owned())
        );
    }

    #[test]
    fn a_line_that_cannot_be_made_durable_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        // A device that takes every byte, and cannot be synced: EINVAL of fsync(2).
        let mut writer = Writer {
            log: LogFile::on_device(Path::new("/dev/null")),
            chain: Chain::after(
                br#"{"chain":{"id":"a","number":1,"previous":"0000000000000000000000000000000000000000000000000000000000000000"}}"#,
            )
            .unwrap(),
            blobs: Blobs::open(&folder.path().join("evidence")).unwrap(),
            signer: signer(folder.path()),
            unsigned: Arc::default(),
            signed: watch::channel(None).0,
            moved: Arc::default(),
            _lock: WriterLock::take(&folder.path().join("attestation.jsonl")).unwrap(),
        };
        let (done, _written) = oneshot::channel();
        let append = Append {
            record: b"{\"id\":\"a\"}".to_vec(),
            blobs: Vec::new(),
            done,
        };
        assert!(writer.write(&[append]).is_err());
    }
}
