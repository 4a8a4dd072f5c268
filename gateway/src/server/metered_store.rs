//! The store in front of which transactions are measured, and failures counted.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use attest_store::engine::{Engine, Work};
use attest_store::engine_layer::EngineLayer;
use attest_store::{AnyStore, LeaderGuard, StoreError};
use prometheus_client::metrics::histogram::Histogram;

use crate::metrics::Metrics;

/// A store, with metrics of its use.
#[derive(Debug)]
pub(super) struct MeteredStore {
    store: AnyStore,
    metrics: Arc<Metrics>,
    reads: Histogram,
    decisions: Histogram,
    durable: Histogram,
}

impl MeteredStore {
    pub(super) fn new(store: AnyStore, metrics: &Arc<Metrics>) -> Self {
        Self {
            store,
            reads: metrics.store_durations("read"),
            decisions: metrics.store_durations("decision"),
            durable: metrics.store_durations("durable"),
            metrics: Arc::clone(metrics),
        }
    }

    /// Notes a transaction that has ended. A refusal by its own work is no failure of the store.
    fn note(&self, durations: &Histogram, begun: Instant, done: &Result<(), StoreError>) {
        match done {
            Ok(()) | Err(StoreError::Refused | StoreError::Forgotten { .. } | StoreError::Led { .. }) => {
                durations.observe(begun.elapsed().as_secs_f64());
            }
            Err(_) => self.metrics.store_failed(),
        }
    }
}

#[async_trait]
impl EngineLayer for MeteredStore {
    fn engine(&self) -> &dyn Engine {
        &self.store
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        let begun = Instant::now();
        let done = self.engine().transact(work).await;
        self.note(&self.durable, begun, &done);
        done
    }

    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        let begun = Instant::now();
        let done = self.engine().transact_for_record(work).await;
        self.note(&self.decisions, begun, &done);
        done
    }

    async fn read(&self, work: Work) -> Result<(), StoreError> {
        let begun = Instant::now();
        let done = self.engine().read(work).await;
        self.note(&self.reads, begun, &done);
        done
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        let leads = self.engine().acquire_leadership(work).await;
        self.metrics.leads(work, matches!(leads, Ok(Some(_))));
        leads
    }
}
