//! Interface of an engine that keeps a store: values under keys, and transactions over several of them.
//!
//! Spends and claims are defined once, above this ([`super::Store`]), in terms of one [`Transaction`]. An engine knows nothing of them, so
//! that a store can move from one engine to another as it is: key by key.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{LeaderGuard, StoreError, StoreMark};

/// Most challenges that are remembered when more come, whatever the store time. Clients that request as many as they can get make 800 rows
/// a second, 20 gigabytes a day. This limit is 270 MB, and more challenges than come while the longest-lived one can be answered. A ticket
/// costs an attestation.
pub const CHALLENGES_LIMIT_ROWS: u64 = 900_000;

/// A key and its value. Keys are ordered as bytes; values are JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyValue {
    pub key: String,
    pub value: String,
}

/// The keys from `from` on that come before `until`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub from: String,
    pub until: String,
}

/// Reason why a transaction's work did not complete.
#[derive(Debug)]
pub enum WorkInterrupted {
    /// The engine knows the reason: it has failed, or has to fetch something and begin again.
    Engine,
    /// The work is refused, and nothing of it is written.
    Refused(StoreError),
}

impl From<StoreError> for WorkInterrupted {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// Operations of a transaction. Its reads see one snapshot and its own writes. Its writes take effect at that same moment, all or none.
pub trait Transaction {
    /// Returns the value under a key.
    ///
    /// # Errors
    /// [`WorkInterrupted::Engine`]: to be passed on at once.
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted>;

    /// Puts a value under a key, whatever was there.
    ///
    /// # Errors
    /// Like [`Transaction::get`].
    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// Like [`Transaction::get`].
    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted>;

    /// Removes all keys of a range, whatever is there when it is done. None of them is read or written in the same transaction.
    ///
    /// # Errors
    /// Like [`Transaction::get`].
    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted>;
}

/// Work of one transaction. It may run more than once, and only the last run counts. So it reads and writes nothing but its transaction,
/// and each run starts from scratch.
pub type Work = Box<dyn FnMut(&mut dyn Transaction) -> Result<(), WorkInterrupted> + Send>;

/// Keeps values under keys: durable, and the same for everybody who uses it.
#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Runs the work in a transaction of its own: others see all of it or nothing. It sees everything that was answered before it was
    /// requested. Returns only when its writes would survive a crash.
    ///
    /// # Errors
    /// [`StoreError`]: that of [`WorkInterrupted::Refused`], or the engine's; whether anything was written is not known then if the engine was lost meanwhile.
    async fn transact(&self, work: Work) -> Result<(), StoreError>;

    /// Like [`Engine::transact`], for a decision. Its writes survive the end of the process, but a crash of the machine only after
    /// [`Engine::sync`]. Until then no client may get the answer.
    ///
    /// # Errors
    /// Like [`Engine::transact`].
    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    /// Makes the earlier writes of [`Engine::transact_for_record`] durable. It waits for a disk, and needs a thread of its own.
    ///
    /// # Errors
    /// [`StoreError`]: no client may get an answer.
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Like [`Engine::transact`], for work that only reads. Background work may not be done yet: callers must not depend on it.
    ///
    /// # Errors
    /// Like [`Engine::transact`].
    async fn read(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    /// Runs background work soon, with other work or alone. A crash may undo it. It may also run more than once, if the outcome of a commit
    /// is unknown: so it has to be idempotent.
    fn later(&self, work: Work);

    /// Returns the first `most` values of a range, by key, from one snapshot. Pages that are read one after the other are of different
    /// snapshots.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// Returns the number of keys in a range.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn count(&self, range: KeyRange) -> Result<u64, StoreError>;

    /// Returns which replica uses the engine; `None` if there is only one gateway. A replica must not settle or give back what another's
    /// decisions depend on.
    fn replica(&self) -> Option<&str> {
        None
    }

    /// Registers this gateway as the only one with its state that decides: like [`super::Store::serve`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn serve(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Registers this process as a user of the store: like [`super::Store::join`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn join(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Starts to lead a work, if no gateway leads it: like [`super::Store::acquire_leadership`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn acquire_leadership(&self, _work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        Ok(Some(LeaderGuard::alone()))
    }

    /// Returns the maximum number of keys that one transaction may write or remove; the work of [`super::Store`] stays below.
    fn most_writes(&self) -> usize;

    /// Returns the maximum number of keys that the engine takes in one transaction, however long others wait for it; `None` if there is none.
    fn atomic_writes_limit(&self) -> Option<usize> {
        Some(self.most_writes())
    }

    /// Returns the maximum number of challenges that are remembered, whatever the store time. Beyond it the oldest are forgotten. A
    /// challenge that expires no later than a forgotten one is refused, used or not.
    fn most_challenges(&self) -> u64 {
        CHALLENGES_LIMIT_ROWS
    }

    /// Checks whether there is room for another challenge, as far as is known locally. Unauthenticated clients make challenges, which must
    /// not block other work.
    ///
    /// # Errors
    /// [`StoreError`]: the client has to retry.
    fn has_room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the id and the mark of the store, as far as is known locally. Each transaction that writes raises the mark.
    fn store_mark(&self) -> Option<StoreMark>;

    /// Returns the mark of [`Engine::store_mark`], if this process has learnt it within the last seconds for another reason. It sends no
    /// request. It is for background tasks that look for changes; a decision about a node asks the store.
    fn recent_mark(&self) -> Option<u64> {
        None
    }

    /// Writes the store's mark to the file next to it, so that an older store in its place is detected.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn keep_mark(&self) -> Result<(), StoreError>;

    /// Returns the file next to which the mark is written: like [`super::Store::mark_path`].
    fn mark_path(&self) -> Option<&Path> {
        None
    }
}

/// Reads these keys in advance, so that an engine fetches all of them at once, and not one after the other.
pub(super) fn fetch(transaction: &mut dyn Transaction, keys: impl IntoIterator<Item = String>) -> Result<(), WorkInterrupted> {
    let mut all = Ok(());
    for key in keys {
        all = all.and(transaction.get(&key).map(drop));
    }
    all
}

/// Durability of a transaction when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It survives a crash of the machine: [`Engine::transact`].
    Durable,
    /// It survives the end of the process, and a crash of the machine only once [`Engine::sync`] has ended: [`Engine::transact_for_record`].
    ForRecord,
    /// It only reads: [`Engine::read`].
    Read,
}

/// Does the work in one transaction of this mode.
pub(super) async fn work_in(engine: &impl Engine, mode: Mode, work: Work) -> Result<(), StoreError> {
    match mode {
        Mode::Durable => engine.transact(work).await,
        Mode::ForRecord => engine.transact_for_record(work).await,
        Mode::Read => engine.read(work).await,
    }
}

/// Does the work in one durable transaction, and returns what its last run has found.
pub(super) async fn run<T: Send + 'static>(
    engine: &impl Engine,
    work: impl Fn(&mut dyn Transaction) -> Result<T, WorkInterrupted> + Send + 'static,
) -> Result<T, StoreError> {
    run_in(Mode::Durable, engine, work).await
}

/// Like [`run`], in a transaction of this mode.
pub(super) async fn run_in<T: Send + 'static>(
    mode: Mode,
    engine: &impl Engine,
    work: impl Fn(&mut dyn Transaction) -> Result<T, WorkInterrupted> + Send + 'static,
) -> Result<T, StoreError> {
    let found = Arc::new(Mutex::new(None));
    let place = Arc::clone(&found);
    let work: Work = Box::new(move |transaction: &mut dyn Transaction| {
        let done = work(transaction)?;
        place.lock().unwrap_or_else(PoisonError::into_inner).replace(done);
        Ok(())
    });
    work_in(engine, mode, work).await?;
    let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    found.ok_or(StoreError::Closed)
}
