//! Periodic maintenance of the store, by one of the gateways that have it open.

use std::sync::Arc;
use std::time::Duration;

use super::{LeaderTask, Store, StoreError, Tick};

/// Tends the store when it is this gateway's turn.
#[derive(Debug)]
pub struct MaintenanceTask {
    store: Arc<dyn Store>,
    turn: LeaderTask,
    /// Last time that this gateway has tended the store: the number of its turn, and its running time.
    last: Option<(u64, Duration)>,
}

/// Result of a call of [`MaintenanceTask::tick`].
#[derive(Debug)]
pub struct MaintenanceResult {
    /// The store's own time, seconds since 1970.
    pub time: u64,
    /// The store, for what else there is to tend; `None` if that is another gateway's.
    pub store: Option<Arc<dyn Store>>,
}

impl MaintenanceTask {
    #[must_use]
    pub fn new(store: &Arc<dyn Store>) -> Self {
        Self {
            store: Arc::clone(store),
            turn: LeaderTask::new(Arc::clone(store), "tend"),
            last: None,
        }
    }

    /// Advances the store time, and forgets what has expired by it, if it is this gateway's turn. `now` is the clock's time, in seconds
    /// since 1970, and `running` the running time of this process. Time between two gateways' turns does not count.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tick(&mut self, now: u64, running: Duration) -> Result<MaintenanceResult, StoreError> {
        let Some(store) = self.turn.shared().await?.map(Arc::clone) else {
            let time = self.store.time(now).await?;
            return Ok(MaintenanceResult { time, store: None });
        };
        let turn = self.turn.count();
        let last = self.last.take().filter(|(last, _)| *last == turn);
        let passed = last.map_or(Duration::ZERO, |(_, last)| running.saturating_sub(last));
        let time = store.forget_expired(Tick { now, passed }).await?;
        self.last = Some((turn, running));
        Ok(MaintenanceResult { time, store: Some(store) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::super::engine::{Engine, Work};
    use super::super::engine_layer::EngineLayer;
    use super::super::{Embedded, LeaderGuard, LeaderLock};
    use super::*;

    /// Clock time beyond any store time in these tests.
    const NOW: u64 = 1_000_000;

    /// A store of several gateways, as one of them sees it.
    #[derive(Debug, Clone)]
    struct Shared {
        engine: Embedded,
        leads: Arc<Mutex<Leads>>,
    }

    #[derive(Debug, Default)]
    struct Leads {
        /// Number of this gateway's current or next turn.
        turn: u64,
        /// Set if it is another gateway's turn.
        other: bool,
        /// Number of works after which an answer is lost.
        loses: Option<u64>,
    }

    /// One of its turns.
    #[derive(Debug)]
    struct Own(u64, Arc<Mutex<Leads>>);

    impl LeaderLock for Own {
        fn is_lost(&self) -> bool {
            self.1.lock().unwrap().turn != self.0
        }
    }

    #[async_trait]
    impl EngineLayer for Shared {
        fn engine(&self) -> &dyn Engine {
            &self.engine
        }

        async fn transact(&self, work: Work) -> Result<(), StoreError> {
            self.engine.transact(work).await?;
            let loses = &mut self.leads.lock().unwrap().loses;
            *loses = loses.and_then(|works| works.checked_sub(1));
            if *loses == Some(0) { Err(StoreError::Closed) } else { Ok(()) }
        }

        async fn acquire_leadership(&self, _: &str) -> Result<Option<LeaderGuard>, StoreError> {
            let leads = self.leads.lock().unwrap();
            let held = Box::new(Own(leads.turn, Arc::clone(&self.leads)));
            Ok((!leads.other).then(|| LeaderGuard::new(Arc::new(self.clone()), held)))
        }
    }

    impl Shared {
        fn begin(folder: &tempfile::TempDir) -> (Self, MaintenanceTask) {
            let shared = Self {
                engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
                leads: Arc::default(),
            };
            let store: Arc<dyn Store> = Arc::new(shared.clone());
            (shared, MaintenanceTask::new(&store))
        }

        /// Ends the turn of this gateway.
        fn is_lost(&self, to_another: bool) {
            let mut leads = self.leads.lock().unwrap();
            leads.turn += 1;
            leads.other = to_another;
        }
    }

    /// The store's time, when this gateway has run for so long; and whether it has tended it.
    async fn tick(tending: &mut MaintenanceTask, now: u64, running: u64) -> (u64, bool) {
        let tended = tending.tick(now, Duration::from_secs(running)).await.unwrap();
        (tended.time, tended.store.is_some())
    }

    #[tokio::test]
    async fn store_time_skips_gaps_between_leader_terms() {
        for another_tended in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (shared, mut tending) = Shared::begin(&folder);
            assert_eq!(tick(&mut tending, 1000, 5).await, (1000, true));
            assert_eq!(tick(&mut tending, NOW, 15).await, (1100, true), "ten times as fast as it runs");
            shared.is_lost(another_tended);
            if another_tended {
                assert_eq!(tick(&mut tending, NOW, 100).await, (1100, false));
                assert_eq!(tick(&mut tending, NOW, 200).await, (1100, false));
                shared.leads.lock().unwrap().other = false;
            }
            assert_eq!(tick(&mut tending, NOW, 500).await, (1100, true), "its next turn begins");
            assert_eq!(tick(&mut tending, NOW, 501).await, (1110, true));
        }
    }

    #[tokio::test]
    async fn a_lost_answer_never_counts_time_twice() {
        // One of the works of a tick is done, and its answer is lost: what reads the time, or what writes it.
        for (works, expect) in [(1, 1000), (2, 1100)] {
            let folder = tempfile::tempdir().unwrap();
            let (shared, mut tending) = Shared::begin(&folder);
            tick(&mut tending, 1000, 0).await;
            shared.leads.lock().unwrap().loses = Some(works);
            tending.tick(NOW, Duration::from_secs(10)).await.unwrap_err();
            assert_eq!(tick(&mut tending, NOW, 20).await, (expect, true));
            assert_eq!(tick(&mut tending, NOW, 21).await, (expect + 10, true));
        }
    }
}
