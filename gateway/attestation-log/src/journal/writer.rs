//! Thread that writes the file: batches of lines, in the order in which they were asked for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use tokio::sync::{Notify, oneshot, watch};

use super::super::blobs::Blobs;
use super::super::chain::{ChainBeginning, ChainProgress, Point, UncoveredLines, Why};
use super::super::journal_error::JournalError;
use super::super::log_file::LockedLog;
use super::super::record::ChainedLine;
use super::super::segments::{Aside, SegmentLimits};
use super::super::signer::CheckpointSigner;
use super::super::store_link::StoreLink;
use super::super::writer_lock::WriterLock;
use super::group_commit::GroupCommit;
use super::{LargeParts, Observer};

/// Most records that share one fsync.
const BATCH_LIMIT: usize = 512;

/// Work for the writer, done in the order of its arrival; times are in seconds since 1970.
pub(super) enum JournalWork {
    /// Sets the store that decisions depend on.
    Stand(StoreLink),
    /// Turns on group commit.
    Wait(GroupCommit),
    Append(Append),
    Reopen(u64, oneshot::Sender<Result<bool, JournalError>>),
    BeginAnew(Vec<Point>, oneshot::Sender<Result<(), JournalError>>),
    /// Signs the records that came with it, too: they share an fsync.
    Checkpoint(CheckpointRequest),
    Probe(oneshot::Sender<bool>),
}

pub(super) struct CheckpointRequest {
    pub(super) at: u64,
    pub(super) done: oneshot::Sender<Result<(), JournalError>>,
}

pub(super) struct Append {
    pub(super) at: u64,
    /// A JSON object, which gets its place in the chain when it is written.
    pub(super) record: Vec<u8>,
    pub(super) blobs: LargeParts,
    pub(super) done: oneshot::Sender<bool>,
}

/// Work that shares an fsync.
#[derive(Default)]
struct Batch {
    records: Vec<Append>,
    checkpoints: Vec<CheckpointRequest>,
}

/// Lines since the start that no checkpoint covers yet.
#[derive(Debug, Default)]
pub(super) struct UncheckedLines {
    lines: AtomicU64,
    /// Signal that the limit of these lines is reached.
    pub(super) many: Notify,
}

/// Position up to which the log is on disk. Anything that its file holds beyond that may be cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durable {
    pub chain: String,
    /// Number of the last line on disk in this chain.
    pub number: u64,
    /// Number of times that the file may have been cut. Lines that were read before a cut may be gone.
    pub cuts: u64,
}

pub(super) struct JournalWriter {
    pub(super) log: LockedLog,
    /// State of the chain on disk.
    pub(super) chain: ChainProgress,
    pub(super) evidence: Blobs,
    /// Makes durable what the next lines depend on.
    pub(super) store: Option<StoreLink>,
    pub(super) group_commit: Option<GroupCommit>,
    pub(super) signer: CheckpointSigner,
    pub(super) unsigned: Arc<UncheckedLines>,
    /// Text of the last checkpoint.
    pub(super) signed: watch::Sender<Option<Arc<str>>>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) durable: watch::Sender<Durable>,
    /// Set if the last write failed.
    pub(super) torn: bool,
    pub(super) moved: Arc<AtomicBool>,
    pub(super) limits: SegmentLimits,
    pub(super) compression: mpsc::Sender<Aside>,
    pub(super) _lock: Arc<WriterLock>,
}

impl JournalWriter {
    pub(super) fn run(mut self, work: &mpsc::Receiver<JournalWork>) {
        while let Ok(first) = work.recv() {
            let mut here = vec![first];
            here.extend(work.try_iter().take(BATCH_LIMIT - 1));
            if let Some(company) = &mut self.group_commit {
                company.gather(&mut here, work, BATCH_LIMIT, |work| matches!(work, JournalWork::Append(_)));
            }
            let mut batch = Batch::default();
            for work in here {
                match work {
                    JournalWork::Stand(store) => self.store = Some(store),
                    JournalWork::Wait(company) => self.group_commit = Some(company),
                    JournalWork::Append(append) => batch.records.push(append),
                    JournalWork::Checkpoint(asked) => batch.checkpoints.push(asked),
                    // What was asked for before stands in the file that was there before.
                    JournalWork::Reopen(at, done) => {
                        self.finish(std::mem::take(&mut batch));
                        drop(done.send(self.reopen(at)));
                    }
                    JournalWork::BeginAnew(after, done) => {
                        self.finish(std::mem::take(&mut batch));
                        drop(done.send(self.begin_chain(after)));
                    }
                    JournalWork::Probe(done) => {
                        self.check_moved();
                        let synced = self.sync_store();
                        if let Err(error) = &synced {
                            tracing::error!(%error, "cannot sync the store; not ready until it can");
                        }
                        let _ = done.send(synced.is_ok() && self.log.is_writable());
                    }
                }
            }
            self.finish(batch);
        }
    }

    fn finish(&mut self, Batch { records, checkpoints }: Batch) {
        // No line is older than one before it.
        let times = records.iter().map(|append| append.at);
        let at = checkpoints.iter().map(|asked| asked.at).chain(times).max().unwrap_or_default();
        self.append(records, (!checkpoints.is_empty()).then_some(at));
        for asked in checkpoints {
            let signed = self.checkpoint_if_due(at);
            self.close_if_due(at);
            drop(asked.done.send(signed));
        }
    }

    /// Writes the records, and a checkpoint at this time after them.
    fn append(&mut self, batch: Vec<Append>, checkpoint: Option<u64>) {
        if batch.is_empty() {
            return;
        }
        let begun = Instant::now();
        let result = self.write(&batch, checkpoint);
        if let Some(company) = &mut self.group_commit {
            company.have_written(begun);
        }
        self.check_moved();
        if let Err(error) = &result {
            tracing::error!(%error, "cannot write to the attestation log; answering 503 until it can be written");
        }
        for append in batch {
            // Whoever asked may be gone; the line stays.
            let _ = append.done.send(result.is_ok());
        }
    }

    fn reopen(&mut self, at: u64) -> Result<bool, JournalError> {
        let signed = |result: Result<(), JournalError>| {
            if let Err(error) = result {
                tracing::error!(%error, "cannot write a checkpoint to the attestation log");
            }
        };
        if self.log.is_moved() {
            signed(self.checkpoint_if_due(at));
        }
        let reopened = self.log.reopen();
        self.check_moved();
        if matches!(reopened, Ok(true)) {
            signed(self.checkpoint(at));
        }
        reopened
    }

    fn begin_chain(&mut self, after: Vec<Point>) -> Result<(), JournalError> {
        let before = self.log.before().map_err(log_error)?;
        let why = Why::Incomplete;
        self.chain = ChainProgress::begin(ChainBeginning { why, before, after })?;
        self.is_durable();
        Ok(())
    }

    fn checkpoint_if_due(&mut self, at: u64) -> Result<(), JournalError> {
        if !self.chain.is_signed() {
            return self.checkpoint(at);
        }
        Ok(())
    }

    /// Closes the segment if it is large or old enough. It ends with a checkpoint, and the next one begins with one.
    fn close_if_due(&mut self, at: u64) {
        if let Err(error) = self.try_closing(at) {
            tracing::error!(%error, "cannot close the segment of the attestation log; continuing in the same file");
        }
        self.check_moved();
    }

    fn try_closing(&mut self, at: u64) -> Result<(), JournalError> {
        let due = self.log.to_be_closed(self.limits, at).map_err(log_error)?;
        let Some(first) = due.filter(|_| self.chain.is_signed()) else {
            return Ok(());
        };
        let (chain, line) = self.next_checkpoint(&self.chain, at)?;
        self.sync_store()?;
        if self.log.close(&first, &line)? {
            self.is_signed(chain, &line);
        } else {
            // Nobody may keep a checkpoint that may be lost yet.
            self.chain = chain;
        }
        // Whoever compresses ends with this thread, and not before.
        let _ = self.compression.send(Aside::Closed);
        Ok(())
    }

    fn checkpoint(&mut self, at: u64) -> Result<(), JournalError> {
        let (chain, line) = self.next_checkpoint(&self.chain, at)?;
        self.put(&line)?;
        self.is_signed(chain, &line);
        Ok(())
    }

    /// Returns a checkpoint as this chain's next line, and the chain with it.
    fn next_checkpoint(&self, chain: &ChainProgress, at: u64) -> Result<(ChainProgress, Vec<u8>), JournalError> {
        let (id, count, head) = chain.head();
        let record = self.signer.sign(id, count, head, at, chain.found())?;
        let record = serde_json::to_vec(&ChainedLine {
            record: &record,
            store: self.store.as_ref().and_then(|store| (store.position)()),
        })?;
        let mut chain = chain.clone();
        let line = chain.link_checkpoint(&record)?;
        Ok((chain, line))
    }

    /// Notes that the chain is durable up to this checkpoint.
    fn is_signed(&mut self, chain: ChainProgress, line: &[u8]) {
        if let Some(UncoveredLines { first, last }) = self.chain.found() {
            tracing::warn!(
                "lines {first} to {last} of the attestation log had no checkpoint at the start: the gateway was killed, or another program wrote them"
            );
        }
        self.chain = chain;
        self.is_durable();
        self.unsigned.lines.store(0, Ordering::Relaxed);
        let text = String::from_utf8_lossy(line);
        self.signed.send_replace(Some(text.trim_end().into()));
        self.observer.log_signed();
    }

    /// Makes the store's changes durable that the next lines depend on. So a line that is read after a crash never reports anything that
    /// the store has lost.
    fn sync_store(&self) -> Result<(), JournalError> {
        let synced = self.store.as_ref().map_or(Ok(()), |store| (store.sync)());
        synced.map_err(JournalError::Store)
    }

    fn put(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        self.sync_store()?;
        let written = self.log.append(lines);
        match written {
            Ok(took) => {
                self.observer.log_synced(took);
                Ok(())
            }
            Err(error) => {
                self.torn = true;
                self.durable.send_modify(|durable| durable.cuts += 1);
                Err(log_error(error))
            }
        }
    }

    /// Notes that the chain is on disk.
    fn is_durable(&mut self) {
        // What was left of a failed write was there until now, for whoever read it.
        let cuts = u64::from(std::mem::take(&mut self.torn));
        let (chain, number, _) = self.chain.head();
        self.durable.send_modify(|durable| {
            *durable = Durable {
                chain: chain.to_owned(),
                number,
                cuts: durable.cuts + cuts,
            }
        });
    }

    /// Checks whether the log was moved.
    fn check_moved(&self) {
        self.moved.store(self.log.is_moved(), Ordering::Relaxed);
    }

    /// Writes the records, and a checkpoint of them at this time, if it can be signed.
    pub(super) fn write(&mut self, batch: &[Append], checkpoint: Option<u64>) -> Result<(), JournalError> {
        // From what a record refers to, to its line, nobody may remove that.
        let evidence = self.evidence.clone();
        let mut writing = evidence.writing();
        for append in batch {
            for (name, content) in &append.blobs {
                writing.put(name, content)?;
            }
        }
        let (mut chain, mut lines) = (self.chain.clone(), Vec::new());
        for append in batch {
            lines.extend(chain.link(&append.record)?);
        }
        let signed = checkpoint.and_then(|at| self.next_checkpoint(&chain, at).ok());
        lines.extend(signed.iter().flat_map(|(_, line)| line));
        self.put(&lines)?;
        drop(writing);
        if let Some((chain, line)) = signed {
            self.is_signed(chain, &line);
            return Ok(());
        }
        self.chain = chain;
        self.is_durable();
        let new = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let before = self.unsigned.lines.fetch_add(new, Ordering::Relaxed);
        if before.saturating_add(new) >= self.signer.every() {
            self.unsigned.many.notify_one();
        }
        Ok(())
    }
}

fn log_error(source: std::io::Error) -> JournalError {
    JournalError::Io {
        path: "the attestation log".into(),
        source,
    }
}
