//! Changes of the store between two transactions of a request.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attest_store::{Mode, Store};
use tokio::sync::Semaphore;

use super::stand_in::{Beside, StandIn};

type Step = Box<dyn Fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Step that runs before transactions, and the number of its remaining runs.
pub struct Interleaved {
    store: Arc<dyn Store>,
    step: Step,
    /// Predicate for the transactions that count.
    counts: fn(Mode) -> bool,
    /// Remaining number of transactions before the first run.
    before: AtomicUsize,
    left: Semaphore,
}

impl Debug for Interleaved {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[async_trait]
impl Beside for Interleaved {
    async fn transacts(&self, mode: Mode) {
        if !(self.counts)(mode) {
            return;
        }
        let one_less = |before: usize| before.checked_sub(1);
        if self.before.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return;
        }
        if let Ok(once) = self.left.try_acquire() {
            once.forget();
            (self.step)(Arc::clone(&self.store)).await;
        }
    }
}

/// Returns a store that runs a step before each writing transaction, `times` times.
pub fn interleave<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    times: usize,
    step: impl Fn(Arc<dyn Store>) -> F + Send + Sync + 'static,
) -> StandIn<Interleaved> {
    stand_in(store, |mode| mode != Mode::Read, 0, times, step)
}

/// Returns a store that runs a step once: after this number of transactions of any mode, and before the next.
pub fn after<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    transactions: usize,
    step: impl Fn(Arc<dyn Store>) -> F + Send + Sync + 'static,
) -> StandIn<Interleaved> {
    stand_in(store, |_| true, transactions, 1, step)
}

fn stand_in<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    counts: fn(Mode) -> bool,
    before: usize,
    times: usize,
    step: impl Fn(Arc<dyn Store>) -> F + Send + Sync + 'static,
) -> StandIn<Interleaved> {
    let beside = Interleaved {
        store: Arc::clone(store),
        step: Box::new(move |store| Box::pin(step(store))),
        counts,
        before: AtomicUsize::new(before),
        left: Semaphore::new(times.min(Semaphore::MAX_PERMITS)),
    };
    StandIn::over(Arc::clone(store), beside)
}
