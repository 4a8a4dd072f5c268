//! A store that keeps requests waiting, so that a test can do something in their midst.

use async_trait::async_trait;
use attest_gateway::store::{Claim, Embedded, Entry, Kind, Pending, Spend, Spendable, Store, StoreError, StoreMark, Tick};
use tokio::sync::Semaphore;

/// Each use is made durable, and then its request waits until it is let go.
#[derive(Debug)]
pub struct Held {
    store: Embedded,
    made: Semaphore,
    go_on: Semaphore,
}

impl Held {
    pub fn new(store: Embedded) -> Self {
        Self {
            store,
            made: Semaphore::new(0),
            go_on: Semaphore::new(0),
        }
    }

    /// Waits until one more use was made.
    pub async fn made(&self) {
        self.made.acquire().await.unwrap().forget();
    }

    /// Lets so many requests go on, now or when they come.
    pub fn let_go(&self, requests: usize) {
        self.go_on.add_permits(requests);
    }

    async fn hold(&self) {
        self.made.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl Store for Held {
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        let spent = self.store.spend(thing).await;
        self.hold().await;
        spent
    }

    async fn spend_for(&self, thing: Spendable, pending: Pending) -> Result<Spend, StoreError> {
        let spent = self.store.spend_for(thing, pending).await;
        self.hold().await;
        spent
    }

    async fn claim(&self, kind: Kind, claim: Claim, pending: Pending) -> Result<Option<Entry>, StoreError> {
        self.store.claim(kind, claim, pending).await
    }

    async fn share(&self, kind: Kind, entry: Entry, pending: Pending) -> Result<bool, StoreError> {
        self.store.share(kind, entry, pending).await
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

    async fn uses(&self, kind: Kind, id: &str) -> Result<u32, StoreError> {
        self.store.uses(kind, id).await
    }

    async fn insert(&self, kind: Kind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.store.insert(kind, entry).await
    }

    async fn put(&self, kind: Kind, entry: Entry) -> Result<(), StoreError> {
        self.store.put(kind, entry).await
    }

    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, StoreError> {
        self.store.get(kind, id).await
    }

    async fn stays(&self, kind: Kind, id: &str) -> Result<bool, StoreError> {
        self.store.stays(kind, id).await
    }

    async fn remove(&self, kind: Kind, id: &str) -> Result<bool, StoreError> {
        self.store.remove(kind, id).await
    }

    async fn change(&self, kind: Kind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.store.change(kind, expected, write).await
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Entry>, StoreError> {
        self.store.list(kind).await
    }

    fn standing(&self) -> Option<StoreMark> {
        self.store.standing()
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        self.store.keep_mark().await
    }

    async fn forget_expired(&self, tick: Tick) -> Result<u64, StoreError> {
        self.store.forget_expired(tick).await
    }
}
