//! What an engine has to do to carry a store: keep values under keys, and change some of them at once.
//!
//! What a spend is, or a claim, is said once, above this ([`super::Store`]), in terms of one [`Transaction`]. An engine knows nothing of it, so
//! that a store may move from one engine to another as it is: key by key.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Lead, StoreError, StoreMark};

/// Most challenges that are remembered when others come, whatever time it is: whoever asks for all that there are makes 800 rows a second, and
/// a day of them would be 20 gigabytes. This many are 270 MB, and more of those than come while the longest-lived challenge can be answered. A ticket costs an attestation.
pub const CHALLENGES_LIMIT_ROWS: u64 = 900_000;

/// A value and the key that it stands under. Keys are ordered as bytes; values are JSON.
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

/// Why a transaction's work came to no end.
#[derive(Debug)]
pub enum Unfinished {
    /// The engine knows why: it has failed, or has to fetch something and begins again.
    Engine,
    /// It must not be done. Nothing of it is written.
    Refused(StoreError),
}

impl From<StoreError> for Unfinished {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// What a transaction can do. What it reads stood there at one moment, with what it has written itself; what it writes is written at that
/// moment, all of it, or not at all.
pub trait Transaction {
    /// What stands under a key.
    ///
    /// # Errors
    /// [`Unfinished::Engine`]: to be passed on at once.
    fn get(&mut self, key: &str) -> Result<Option<String>, Unfinished>;

    /// Puts a value under a key, whatever was there.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    fn put(&mut self, key: &str, value: &str) -> Result<(), Unfinished>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    fn delete(&mut self, key: &str) -> Result<(), Unfinished>;

    /// Removes all keys of a range, whatever is there when it is done. None of them is read or written in the same transaction.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    fn delete_range(&mut self, range: &KeyRange) -> Result<(), Unfinished>;
}

/// The work of one transaction. It may be run more than once, and only what the last run has found and written counts: so it reads and writes
/// nothing but its transaction, and begins anew each time.
pub type Work = Box<dyn FnMut(&mut dyn Transaction) -> Result<(), Unfinished> + Send>;

/// Keeps values under keys: durable, and the same for everybody who uses it.
#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Does the work in a transaction of its own: others see all of it or nothing, and it sees all that was answered before it was asked
    /// for. Returns only when what it wrote would survive a crash.
    ///
    /// # Errors
    /// [`StoreError`]: that of [`Unfinished::Refused`], or the engine's; whether anything was written is not known then if the engine was lost meanwhile.
    async fn transact(&self, work: Work) -> Result<(), StoreError>;

    /// As [`Engine::transact`], for a decision: what it wrote would survive the end of the process, and a crash of the machine only once
    /// [`Engine::sync`] has ended. Until then nobody may be told what was decided.
    ///
    /// # Errors
    /// As [`Engine::transact`].
    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    /// Makes durable what [`Engine::transact_for_record`] wrote before. It waits for a disk: for a thread of one's own.
    ///
    /// # Errors
    /// [`StoreError`]: nobody may be told anything.
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// As [`Engine::transact`], for work that only reads. What is to be done later may not be done yet: it is for what does not depend on that.
    ///
    /// # Errors
    /// As [`Engine::transact`].
    async fn read(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    /// Has the work done soon, with what others ask for or by itself; nobody waits for it. After a crash it may be undone, and
    /// it may be done more than once, if it is not known whether a commit has happened: so it is one that finds done what it would do.
    fn later(&self, work: Work);

    /// The first values of a range, by key, so many at most. Read at one moment; pages that are read one after the other are not.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError>;

    /// How many keys of a range there are.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn count(&self, range: KeyRange) -> Result<u64, StoreError>;

    /// Which of several gateways uses it: what decisions of one stand on is not another's to settle or to give back. `None` if there is one alone.
    fn replica(&self) -> Option<&str> {
        None
    }

    /// From here on this gateway decides, and no other that has the same state: as [`super::Store::serve`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn serve(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Leads a work, if nobody does: as [`super::Store::lead`].
    ///
    /// # Errors
    /// [`StoreError`].
    async fn lead(&self, _work: &str) -> Result<Option<Lead>, StoreError> {
        Ok(Some(Lead::alone()))
    }

    /// How many keys one transaction may write or remove at most; the work of [`super::Store`] stays below.
    fn most_writes(&self) -> usize;

    /// How many challenges it can remember when others come, whatever time it is: beyond that the oldest are forgotten, and what expires no later than they did is
    /// refused, used or not.
    fn most_challenges(&self) -> u64 {
        CHALLENGES_LIMIT_ROWS
    }

    /// Whether it takes one more challenge to remember, as far as is known here. Strangers make challenges, and what they make must not be in the way of all else.
    ///
    /// # Errors
    /// [`StoreError`]: whoever comes with it has to come again.
    fn has_room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Which store this is and how far it has come, as far as is known here: each transaction that writes raises the mark.
    fn standing(&self) -> Option<StoreMark>;

    /// Returns the mark of [`Engine::standing`], if this process has learnt it within the last seconds for another reason. It sends no
    /// request. It is for background tasks that look for changes; a decision about a node asks the store.
    fn recent_mark(&self) -> Option<u64> {
        None
    }

    /// Writes down beside the store how far it has come, so that an older one in its place is noticed.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn keep_mark(&self) -> Result<(), StoreError>;

    /// The file beside which that is written down: as [`super::Store::beside`].
    fn beside(&self) -> Option<&Path> {
        None
    }
}

/// Reads these at once: an engine that has to fetch what stands there knows all of it before it begins, and not one key after the other.
pub(super) fn fetch(transaction: &mut dyn Transaction, keys: impl IntoIterator<Item = String>) -> Result<(), Unfinished> {
    let mut all = Ok(());
    for key in keys {
        all = all.and(transaction.get(&key).map(drop));
    }
    all
}

/// How durable a transaction is when it ends.
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
    work: impl Fn(&mut dyn Transaction) -> Result<T, Unfinished> + Send + 'static,
) -> Result<T, StoreError> {
    run_in(Mode::Durable, engine, work).await
}

/// As [`run`], in a transaction of this mode.
pub(super) async fn run_in<T: Send + 'static>(
    mode: Mode,
    engine: &impl Engine,
    work: impl Fn(&mut dyn Transaction) -> Result<T, Unfinished> + Send + 'static,
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
