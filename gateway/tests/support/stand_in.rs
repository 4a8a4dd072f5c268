//! A store in the place of the gateway's own, that does what a test has it do beside.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use attest_store::{
    ChangeUnlessServed, Claim, Deciding, Entry, EntryKind, Occasion, Pending, Rewrite, Seen, Spend, Spendable, Store, StoreError,
    StoreMark, Tick, Witness,
};

/// What is otherwise than in the real one.
#[async_trait]
pub trait Beside: Send + Sync + std::fmt::Debug {
    /// Comes before what a decision writes, or confirms: what it was made from is read by then.
    async fn decided(&self) {}

    /// Comes after each use, which is durable by then.
    async fn used(&self) {}

    /// Comes before an entry of this kind is read.
    async fn reads(&self, _: EntryKind) {}

    /// Comes after an entry of this kind was read, and before it is given.
    async fn has_read(&self, _: EntryKind) {}

    /// Whether entries of this kind can be read at the moment.
    fn can_read(&self, _: EntryKind) -> bool {
        true
    }
}

/// The real store, and what is otherwise.
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
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        let spent = self.store.spend(thing).await;
        self.beside.used().await;
        spent
    }

    async fn spend_for(&self, thing: Spendable, occasion: Occasion, decision: Deciding) -> Result<Spend, StoreError> {
        self.beside.decided().await;
        let spent = self.store.spend_for(thing, occasion, decision).await;
        self.beside.used().await;
        spent
    }

    async fn confirm(&self, seen: Seen) -> Result<(), StoreError> {
        self.beside.decided().await;
        self.store.confirm(seen).await
    }

    async fn would_spend(&self, thing: Spendable, occasion: Occasion, at: u64) -> Result<Spend, StoreError> {
        self.store.would_spend(thing, occasion, at).await
    }

    async fn claim(&self, kind: EntryKind, claim: Claim, decision: Deciding) -> Result<Option<Entry>, StoreError> {
        self.beside.decided().await;
        self.store.claim(kind, claim, decision).await
    }

    async fn share(&self, kind: EntryKind, entry: Entry, decision: Deciding) -> Result<bool, StoreError> {
        self.beside.decided().await;
        self.store.share(kind, entry, decision).await
    }

    fn settle(&self, decision: &str) {
        self.store.settle(decision);
    }

    async fn give_back(&self, decision: &str) -> Result<bool, StoreError> {
        self.store.give_back(decision).await
    }

    async fn pending(&self) -> Result<Vec<Pending>, StoreError> {
        self.store.pending().await
    }

    async fn uses(&self, kind: EntryKind, id: &str) -> Result<u32, StoreError> {
        self.store.uses(kind, id).await
    }

    async fn insert(&self, kind: EntryKind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.store.insert(kind, entry).await
    }

    async fn put(&self, kind: EntryKind, entry: Entry) -> Result<(), StoreError> {
        self.store.put(kind, entry).await
    }

    async fn note(&self, kind: EntryKind, entries: Vec<Entry>) -> Result<(), StoreError> {
        self.store.note(kind, entries).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }

    async fn get(&self, kind: EntryKind, id: &str) -> Result<Option<Entry>, StoreError> {
        self.beside.reads(kind).await;
        if !self.beside.can_read(kind) {
            return Err(StoreError::Closed);
        }
        let found = self.store.get(kind, id).await;
        self.beside.has_read(kind).await;
        found
    }

    async fn get_all(&self, wanted: Vec<(EntryKind, String)>) -> Result<Vec<Option<Entry>>, StoreError> {
        let mut found = Vec::new();
        for (kind, id) in wanted {
            found.push(self.get(kind, &id).await?);
        }
        Ok(found)
    }

    async fn stays(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        self.store.stays(kind, id).await
    }

    async fn stands(&self, kind: EntryKind, entry: Entry) -> Result<bool, StoreError> {
        self.store.stands(kind, entry).await
    }

    async fn remove(&self, kind: EntryKind, id: &str) -> Result<bool, StoreError> {
        self.store.remove(kind, id).await
    }

    async fn change(&self, kind: EntryKind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.beside.decided().await;
        self.store.change(kind, expected, write).await
    }

    async fn change_unless_served(
        &self,
        gateways: Vec<String>,
        kind: EntryKind,
        expected: Vec<Entry>,
        write: Vec<Entry>,
    ) -> Result<ChangeUnlessServed, StoreError> {
        self.store.change_unless_served(gateways, kind, expected, write).await
    }

    async fn rewrite(&self, seen: Seen, rewrites: Vec<Rewrite>) -> Result<(), StoreError> {
        self.beside.decided().await;
        self.store.rewrite(seen, rewrites).await
    }

    async fn list(&self, kind: EntryKind) -> Result<Vec<Entry>, StoreError> {
        self.store.list(kind).await
    }

    fn witnessed(self: Arc<Self>, witness: Arc<dyn Witness>) -> Arc<dyn Store> {
        Arc::clone(&self.store).witnessed(witness)
    }

    async fn tell(&self, told: String) -> Result<(), StoreError> {
        self.store.tell(told).await
    }

    async fn outbox(&self, after: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError> {
        self.store.outbox(after, most).await
    }

    async fn recorded(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.store.recorded(ids).await
    }

    fn standing(&self) -> Option<StoreMark> {
        self.store.standing()
    }

    fn beside(&self) -> Option<&Path> {
        self.store.beside()
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
