//! Fence that keeps a former leader from writing after another leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use super::StoreError;
use super::engine::{Engine, Transaction, Work, WorkInterrupted};
use super::engine_layer::EngineLayer;

/// Refuses works unless the leader leads still. The check is part of the transaction itself: a process that was stopped for longer than its
/// lease, and goes on, finds its work refused.
#[derive(Debug, Clone)]
pub struct Fence(Option<FenceEntry>);

#[derive(Debug, Clone)]
struct FenceEntry {
    work: String,
    key: String,
    value: String,
    /// Set once a work was refused.
    refused: Arc<AtomicBool>,
}

impl Fence {
    /// Returns a fence that refuses nothing: only one process uses the store.
    #[must_use]
    pub const fn alone() -> Self {
        Self(None)
    }

    #[cfg(any(feature = "kubernetes", feature = "etcd"))]
    /// Returns a fence for a leader that has put this value under this key.
    pub(super) fn held(work: &str, key: &str, value: &str) -> Self {
        Self(Some(FenceEntry {
            work: work.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            refused: Arc::default(),
        }))
    }

    /// Returns whether it has refused a work: from then on it refuses each.
    #[cfg(any(feature = "etcd", feature = "kubernetes"))]
    pub(super) fn has_refused(&self) -> bool {
        self.0.as_ref().is_some_and(|key| key.refused.load(Ordering::Relaxed))
    }

    /// # Errors
    /// [`StoreError::Led`] if another gateway leads, or none does.
    pub fn check(&self, transaction: &mut dyn Transaction) -> Result<(), WorkInterrupted> {
        let Some(FenceEntry { work, key, value, refused }) = &self.0 else {
            return Ok(());
        };
        if transaction.get(key)?.as_ref() == Some(value) {
            Ok(())
        } else {
            refused.store(true, Ordering::Relaxed);
            Err(StoreError::Led { work: work.clone() }.into())
        }
    }
}

/// An engine with a fence for all works.
#[derive(Debug, Clone)]
pub struct Fenced<E> {
    engine: E,
    fence: Fence,
}

impl<E: Engine> Fenced<E> {
    pub const fn new(engine: E, fence: Fence) -> Self {
        Self { engine, fence }
    }

    fn behind(&self, mut work: Work) -> Work {
        let fence = self.fence.clone();
        Box::new(move |transaction| match fence.check(transaction) {
            Ok(()) => work(transaction),
            Err(WorkInterrupted::Engine) => {
                // What it needs is fetched with what the fence needs; it counts for nothing.
                drop(work(transaction));
                Err(WorkInterrupted::Engine)
            }
            refused => refused,
        })
    }
}

#[async_trait]
impl<E: Engine> EngineLayer for Fenced<E> {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.engine.transact(self.behind(work)).await
    }

    fn later(&self, work: Work) {
        self.engine.later(self.behind(work));
    }
}
