//! An engine in front of another: what goes through it is the other one's, but for what it says itself.

use std::path::Path;

use async_trait::async_trait;

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::{LeaderGuard, StoreError, StoreMark};

/// An engine in front of another one. It can override the methods here; all others are those of the other engine.
#[async_trait]
pub trait EngineLayer: Send + Sync + std::fmt::Debug {
    /// Returns the engine behind this one.
    fn engine(&self) -> &dyn Engine;

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.engine().transact(work).await
    }

    /// Like [`Engine::transact_for_record`]. An override of [`EngineLayer::transact`] applies here, too.
    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    /// Like [`Engine::read`]. An override of [`EngineLayer::transact`] applies here, too.
    async fn read(&self, work: Work) -> Result<(), StoreError> {
        self.transact(work).await
    }

    fn later(&self, work: Work) {
        self.engine().later(work);
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        self.engine().acquire_leadership(work).await
    }

    fn most_writes(&self) -> usize {
        self.engine().most_writes()
    }

    fn atomic_writes_limit(&self) -> Option<usize> {
        self.engine().atomic_writes_limit()
    }
}

#[async_trait]
impl<T: EngineLayer> Engine for T {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        EngineLayer::transact(self, work).await
    }

    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        EngineLayer::transact_for_record(self, work).await
    }

    async fn read(&self, work: Work) -> Result<(), StoreError> {
        EngineLayer::read(self, work).await
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.engine().sync()
    }

    fn later(&self, work: Work) {
        EngineLayer::later(self, work);
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.engine().page(range, most).await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.engine().count(range).await
    }

    fn replica(&self) -> Option<&str> {
        self.engine().replica()
    }

    async fn serve(&self) -> Result<(), StoreError> {
        self.engine().serve().await
    }

    async fn join(&self) -> Result<(), StoreError> {
        self.engine().join().await
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        EngineLayer::acquire_leadership(self, work).await
    }

    fn most_writes(&self) -> usize {
        EngineLayer::most_writes(self)
    }

    fn atomic_writes_limit(&self) -> Option<usize> {
        EngineLayer::atomic_writes_limit(self)
    }

    fn most_challenges(&self) -> u64 {
        self.engine().most_challenges()
    }

    fn has_room(&self) -> Result<(), StoreError> {
        self.engine().has_room()
    }

    fn store_mark(&self) -> Option<StoreMark> {
        self.engine().store_mark()
    }

    fn recent_mark(&self) -> Option<u64> {
        self.engine().recent_mark()
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        self.engine().keep_mark().await
    }

    fn mark_path(&self) -> Option<&Path> {
        self.engine().mark_path()
    }
}
