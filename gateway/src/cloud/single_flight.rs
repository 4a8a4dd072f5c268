//! Shared fetches: at most one for each key at a time. Further requests wait for the one that is under way.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

/// Result of a fetch, to be awaited by all that joined it; `None` if the gateway is being stopped.
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
    /// Returns the fetch that is under way, or one that `fetch` begins. It continues when no request waits for it, so that the next one
    /// gets its result. Returns `None` if nothing is under way and `fetch` returns `None`.
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
