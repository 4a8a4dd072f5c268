//! Somebody changes the store when a decision has read it all, and has written nothing.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use attest_gateway::store::Store;
use tokio::sync::Semaphore;

use super::stand_in::{Beside, StandIn};

type Step = Box<dyn Fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What is done meanwhile, and how often still.
pub struct Meanwhile {
    store: Arc<dyn Store>,
    step: Step,
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
    let beside = Meanwhile {
        store: Arc::clone(store),
        step: Box::new(move |store| Box::pin(step(store))),
        left: Semaphore::new(times.min(Semaphore::MAX_PERMITS)),
    };
    StandIn::over(Arc::clone(store), beside)
}
