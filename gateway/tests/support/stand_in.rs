//! Replacement for the gateway's store that calls a test before and after the gateway's accesses.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use attest_store::{EntryKind, EntryWork, Mode, Pending, Spend, Spendable, Store, StoreEntry, StoreError, StoreMark, Tick, Witness};

/// Hooks that a test implements.
#[async_trait]
pub trait Beside: Send + Sync + std::fmt::Debug {
    /// Called before each transaction: that of a decision is in [`Mode::ForRecord`], its earlier reads are in [`Mode::Read`].
    async fn transacts(&self, _: Mode) {}

    /// Called before an entry of this kind is read by itself.
    async fn reads(&self, _: EntryKind) {}

    /// Called after an entry of this kind was read by itself, and before it is returned.
    async fn has_read(&self, _: EntryKind) {}

    /// Returns whether entries of this kind can currently be read by themselves.
    fn can_read(&self, _: EntryKind) -> bool {
        true
    }
}

/// Real store with the test's hooks.
#[derive(Debug)]
pub struct StandIn<B> {
    store: Arc<dyn Store>,
    pub beside: B,
}

impl<B> StandIn<B> {
    pub fn new(store: impl Store + 'static, beside: B) -> Self {
        Self::over(Arc::new(store), beside)
    }

    pub const fn over(store: Arc<dyn Store>, beside: B) -> Self {
        Self { store, beside }
    }
}

#[async_trait]
impl<B: Beside> Store for StandIn<B> {
    fn atomic_writes_limit(&self) -> Option<usize> {
        None
    }

    async fn work(&self, mode: Mode, work: EntryWork) -> Result<(), StoreError> {
        self.beside.transacts(mode).await;
        self.store.work(mode, work).await
    }

    fn settle(&self, decision: &str) {
        self.store.settle(decision);
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        self.store.give_back(decision).await
    }

    fn give_back_later(&self, decision: &str) {
        self.store.give_back_later(decision);
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        self.store.pending().await
    }

    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        self.store.remove(kind, id).await
    }

    fn has_room(&self) -> Result<(), StoreError> {
        self.store.has_room()
    }

    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<StoreEntry>, StoreError> {
        self.beside.reads(kind).await;
        if !self.beside.can_read(kind) {
            return Err(StoreError::Closed);
        }
        let found = self.store.get(kind, id).await;
        self.beside.has_read(kind).await;
        found
    }

    async fn insert(&self, kind: EntryKind, entry: StoreEntry) -> Result<Option<StoreEntry>, StoreError> {
        self.store.insert(kind, entry).await
    }

    async fn put(&self, kind: EntryKind, entry: StoreEntry) -> Result<(), StoreError> {
        self.store.put(kind, entry).await
    }

    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        self.store.spend(thing).await
    }

    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        self.store.uses(kind, id).await
    }

    async fn list(&self, kind: EntryKind) -> Result<Vec<StoreEntry>, StoreError> {
        self.store.list(kind).await
    }

    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store> {
        Arc::clone(&self.store).witnessed(witness)
    }

    async fn append_to_outbox(&self, told: String) -> Result<(), StoreError> {
        self.store.append_to_outbox(told).await
    }

    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<StoreEntry>, StoreError> {
        self.store.outbox(after, most).await
    }

    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.store.recorded(ids).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }

    fn store_mark(&self) -> Option<StoreMark> {
        self.store.store_mark()
    }

    fn mark_path(&self) -> Option<&Path> {
        self.store.mark_path()
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        self.store.keep_mark().await
    }

    async fn time(&self, now: u64) -> Result<u64, StoreError> {
        self.store.time(now).await
    }

    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError> {
        self.store.forget_expired(tick).await
    }
}
