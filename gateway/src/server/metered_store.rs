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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest_store::Embedded;
    use attest_store::engine::{Transaction, WorkInterrupted};

    use super::*;

    type Fails = fn() -> StoreError;

    fn work(fails: Option<Fails>) -> Work {
        Box::new(move |transaction: &mut dyn Transaction| {
            transaction.get("key")?;
            fails.map_or(Ok(()), |fails| Err(WorkInterrupted::Refused(fails())))
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn measures_transactions_and_counts_failures_of_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let store = AnyStore::Embedded(Embedded::open(&folder.path().join("gateway.db")).unwrap());
        let store = MeteredStore::new(store, &metrics);
        EngineLayer::read(&store, work(None)).await.unwrap();
        EngineLayer::transact(&store, work(None)).await.unwrap();
        let decided = EngineLayer::transact_for_record(&store, work(Some(|| StoreError::Refused))).await;
        assert!(matches!(decided, Err(StoreError::Refused)));
        assert!(EngineLayer::acquire_leadership(&store, "tend").await.unwrap().is_some());
        let has = |line: &str| {
            let text = metrics.text().unwrap();
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        };
        for mode in ["read", "decision", "durable"] {
            has(&format!(
                "attest_gateway_store_transaction_duration_seconds_count{{mode=\"{mode}\"}} 1"
            ));
        }
        has("attest_gateway_store_errors_total 0");
        has("attest_gateway_leader{task=\"tend\"} 1");
        let failures: [Fails; 2] = [|| StoreError::Closed, || StoreError::Random];
        for fails in failures {
            EngineLayer::read(&store, work(Some(fails))).await.unwrap_err();
        }
        has("attest_gateway_store_errors_total 2");
    }
}
