//! Watch cache of the objects of one kind.

use std::fmt::Debug;
use std::future::pending;
use std::hash::Hash;
use std::sync::Arc;

use kube::Resource;
use kube::api::Api;
use kube::core::Selector;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::WatchHealth;
use super::api_watch::{ApiWatch, Sink};

/// Watch cache of all objects of one kind; the reading side.
#[derive(Clone)]
pub struct WatchCache<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    /// Grows with each change; 0 until all objects were listed once.
    revision: watch::Receiver<u64>,
}

/// The watch that keeps a cache current.
pub type Keeping<K> = ApiWatch<K, StoreSink<K>>;

/// The writing side of a [`WatchCache`].
pub struct StoreSink<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    writer: Writer<K>,
    revision: watch::Sender<u64>,
}

/// Creates a cache of the objects of one kind, and the watch that keeps it current while it runs. `what` names them in messages, and labels
/// the metric. For large objects, use an API of [`kube::api::PartialObjectMeta`], if their metadata suffices.
pub fn keep<K>(
    api: &Api<K>,
    of: K::DynamicType,
    which: &Selector,
    what: &'static str,
    health: &Arc<WatchHealth>,
) -> (WatchCache<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    keep_by(api, of, (which, None), what, health)
}

/// Creates a cache like [`keep`], of the objects that match a field selector of the API.
pub fn keep_by_fields<K>(
    api: &Api<K>,
    of: K::DynamicType,
    fields: &str,
    what: &'static str,
    health: &Arc<WatchHealth>,
) -> (WatchCache<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    keep_by(api, of, (&Selector::default(), Some(fields)), what, health)
}

fn keep_by<K>(
    api: &Api<K>,
    of: K::DynamicType,
    (labels, fields): (&Selector, Option<&str>),
    what: &'static str,
    health: &Arc<WatchHealth>,
) -> (WatchCache<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    let writer = Writer::new(of);
    let (revision, receiver) = watch::channel(0);
    let kept = WatchCache {
        store: writer.as_reader(),
        revision: receiver,
    };
    let selectors = ((!labels.selects_all()).then(|| labels.to_string()), fields.map(str::to_owned));
    let keeping = ApiWatch::new(what, api.clone(), selectors, StoreSink { writer, revision }, health);
    (kept, keeping)
}

impl<K> WatchCache<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    /// Returns all objects in their last known state; `None` until they were listed once.
    #[must_use]
    pub fn all(&self) -> Option<Vec<Arc<K>>> {
        (*self.revision.borrow() > 0).then(|| self.store.state())
    }

    /// Completes when something has changed since the last call; never again once the watch is dropped.
    pub async fn changed(&mut self) {
        if self.revision.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

impl<K> Sink<K> for StoreSink<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    fn take(&mut self, event: Event<K>) {
        self.writer.apply_watcher_event(&event);
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.revision.send_modify(|revision| *revision += 1);
        }
    }

    /// Empties the cache, unless it is empty already.
    fn take_absent(&mut self) {
        if *self.revision.borrow() == 0 || !self.writer.as_reader().state().is_empty() {
            self.take(Event::Init);
            self.take(Event::InitDone);
        }
    }
}
