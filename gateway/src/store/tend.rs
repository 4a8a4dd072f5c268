//! What is done for the store now and then, by one of the gateways that have it open.

use std::sync::Arc;
use std::time::Duration;

use super::{Store, StoreError, Tick, Turn};

/// Tends the store when it is this gateway's turn.
#[derive(Debug)]
pub struct Tending {
    store: Arc<dyn Store>,
    turn: Turn,
    /// In which of its turns this gateway has tended it last, and when, by how long it had run by then.
    last: Option<(u64, Duration)>,
}

/// What came of it.
#[derive(Debug)]
pub struct Tended {
    /// The store's own time, seconds since 1970.
    pub time: u64,
    /// The store, for what else there is to tend; `None` if that is another gateway's.
    pub store: Option<Arc<dyn Store>>,
}

impl Tending {
    #[must_use]
    pub fn of(store: &Arc<dyn Store>) -> Self {
        Self {
            store: Arc::clone(store),
            turn: Turn::new(Arc::clone(store), "tend"),
            last: None,
        }
    }

    /// Lets the store's time go on, and forgets what has expired by it, if it is this gateway's turn. `now` is what the clock says, seconds since
    /// 1970, and `running` how long this process has run: what goes by between two gateways' turns does not count.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tick(&mut self, now: u64, running: Duration) -> Result<Tended, StoreError> {
        let Some(store) = self.turn.shared().await?.map(Arc::clone) else {
            let time = self.store.time(now).await?;
            return Ok(Tended { time, store: None });
        };
        let turn = self.turn.count();
        let last = self.last.take().filter(|(last, _)| *last == turn);
        let passed = last.map_or(Duration::ZERO, |(_, last)| running.saturating_sub(last));
        let time = store.forget_expired(Tick { now, passed }).await?;
        self.last = Some((turn, running));
        Ok(Tended { time, store: Some(store) })
    }
}
