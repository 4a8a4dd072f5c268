//! One fetch at a time of the same thing: whoever asks meanwhile waits for that one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

/// What a fetch came to; `None` if the gateway is being stopped.
pub(super) type Flight<V> = Shared<BoxFuture<'static, Option<V>>>;

/// Fetches that are under way.
pub(super) struct Flights<K, V> {
    under_way: Mutex<BTreeMap<K, (AbortHandle, Flight<V>)>>,
}

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
        }
    }
}

impl<K: Ord, V: Clone + Send + Sync + 'static> Flights<K, V> {
    /// The fetch that is under way, or one that `fetch` begins. It goes on when nobody waits for it any longer: the next one who asks
    /// shall have it. `None` if nothing is under way and `fetch` does not want to.
    pub(super) fn join<F: Future<Output = V> + Send + 'static>(&self, key: K, fetch: impl FnOnce() -> Option<F>) -> Option<Flight<V>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|_, (task, _)| !task.is_finished());
        if let Some((_, flight)) = under_way.get(&key) {
            return Some(flight.clone());
        }
        let task = tokio::spawn(fetch()?);
        let abort = task.abort_handle();
        let flight = async move { task.await.ok() }.boxed().shared();
        under_way.insert(key, (abort, flight.clone()));
        Some(flight)
    }
}
