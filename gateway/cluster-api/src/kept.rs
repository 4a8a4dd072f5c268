//! Objects of one kind, kept as they change.

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

use super::Health;
use super::api_watch::{ApiWatch, Sink};

/// What is known of all objects of one kind.
#[derive(Clone)]
pub struct Kept<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    /// Grows with each change; 0 until all of them were listed once.
    revision: watch::Receiver<u64>,
}

/// What keeps it so.
pub type Keeping<K> = ApiWatch<K, StoreSink<K>>;

/// The writing side of a [`Kept`].
pub struct StoreSink<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    writer: Writer<K>,
    revision: watch::Sender<u64>,
}

/// Objects of one kind, and what keeps them as they change for as long as it runs. `what` names them in messages, and labels the metric. Of objects that are
/// large and not needed, an API of [`kube::api::PartialObjectMeta`] has what stands in their metadata.
pub fn keep<K>(api: &Api<K>, of: K::DynamicType, which: &Selector, what: &'static str, health: &Arc<Health>) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    keep_by(api, of, (which, None), what, health)
}

/// As [`keep`], of the objects whose fields are these: a field selector of the API's.
pub fn keep_by_fields<K>(api: &Api<K>, of: K::DynamicType, fields: &str, what: &'static str, health: &Arc<Health>) -> (Kept<K>, Keeping<K>)
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
    health: &Arc<Health>,
) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    let writer = Writer::new(of);
    let (revision, receiver) = watch::channel(0);
    let kept = Kept {
        store: writer.as_reader(),
        revision: receiver,
    };
    let selectors = ((!labels.selects_all()).then(|| labels.to_string()), fields.map(str::to_owned));
    let keeping = ApiWatch::new(what, api.clone(), selectors, StoreSink { writer, revision }, health);
    (kept, keeping)
}

impl<K> Kept<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    /// All of them as they were told last; nothing until they were listed once.
    #[must_use]
    pub fn all(&self) -> Option<Vec<Arc<K>>> {
        (*self.revision.borrow() > 0).then(|| self.store.state())
    }

    /// Completes when something has changed since this was asked last; never again once nothing keeps it.
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

    /// Empties the cache, where that is news.
    fn take_absent(&mut self) {
        if *self.revision.borrow() == 0 || !self.writer.as_reader().state().is_empty() {
            self.take(Event::Init);
            self.take(Event::InitDone);
        }
    }
}
