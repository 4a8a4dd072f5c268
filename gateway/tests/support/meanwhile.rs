//! Somebody changes the store when a decision has read it all, and has written nothing.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attest_store::Store;
use tokio::sync::Semaphore;

use super::stand_in::{Beside, StandIn};

type Step = Box<dyn Fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What is done meanwhile, and how often still.
pub struct Meanwhile {
    store: Arc<dyn Store>,
    step: Step,
    /// How many steps of decisions are left alone still.
    before: AtomicUsize,
    left: Semaphore,
}

impl Debug for Meanwhile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[async_trait]
impl Beside for Meanwhile {
    async fn decided(&self) {
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

/// A store in which this is done meanwhile, so many times.
pub fn meanwhile<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    times: usize,
    step: impl Fn(Arc<dyn Store>) -> F + Send + Sync + 'static,
) -> StandIn<Meanwhile> {
    after(store, 0, times, step)
}

/// The same, once so many steps of decisions were left alone: a decision has written something by then.
pub fn after<F: Future<Output = ()> + Send + 'static>(
    store: &Arc<dyn Store>,
    steps: usize,
    times: usize,
    step: impl Fn(Arc<dyn Store>) -> F + Send + Sync + 'static,
) -> StandIn<Meanwhile> {
    let beside = Meanwhile {
        store: Arc::clone(store),
        step: Box::new(move |store| Box::pin(step(store))),
        before: AtomicUsize::new(steps),
        left: Semaphore::new(times.min(Semaphore::MAX_PERMITS)),
    };
    StandIn::over(Arc::clone(store), beside)
}
