//! Objects of one kind, kept as they change.

use std::fmt::Debug;
use std::future::pending;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use kube::api::{Api, ListParams, WatchParams};
use kube::core::Selector;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::Health;
use crate::causes::with_causes;

/// How long one watch lasts. Then it is asked for once more, from where it was; so a connection that has died unnoticed is found out.
const WATCH_SECONDS: u32 = 60;
/// How long a server may be silent: longer than a watch lasts.
pub(super) const SILENCE: Duration = Duration::from_secs(70);
/// How often an API that has failed is asked whether it is back. The watch itself tries less often, the longer the API is away.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Asks whether objects are told of.
type Probe = Box<dyn Fn() -> BoxFuture<'static, kube::Result<()>> + Send + Sync>;

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
pub struct Keeping<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    what: &'static str,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    /// Whether there may be no such kind.
    optional: bool,
    /// Asks for one object, and for a watch: who may list may not watch for that.
    probe: Probe,
    writer: Writer<K>,
    revision: watch::Sender<u64>,
    health: Arc<Health>,
}

/// Objects of one kind, and what keeps them as they change for as long as it runs. `what` names them in messages, and labels the metric. Of objects that are
/// large and not needed, an API of [`kube::api::PartialObjectMeta`] has what stands in their metadata.
pub fn keep<K>(api: &Api<K>, of: K::DynamicType, which: &Selector, what: &'static str, health: &Arc<Health>) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    keep_by(config(which), api, of, what, health)
}

/// As [`keep`], of the objects whose fields are these: a field selector of the API's.
pub fn keep_by_fields<K>(api: &Api<K>, of: K::DynamicType, fields: &str, what: &'static str, health: &Arc<Health>) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    keep_by(config(&Selector::default()).fields(fields), api, of, what, health)
}

fn keep_by<K>(config: watcher::Config, api: &Api<K>, of: K::DynamicType, what: &'static str, health: &Arc<Health>) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    let probe = probe(api, config.field_selector.clone());
    let events = watcher(api.clone(), config).default_backoff().boxed();
    pair(events, probe, of, what, health)
}

fn config(which: &Selector) -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS).labels_from(which)
}

/// Asks for no more than the watch does, which may be all that is allowed.
fn probe<K>(api: &Api<K>, fields: Option<String>) -> Probe
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let api = api.clone();
    let list = ListParams {
        field_selector: fields.clone(),
        ..ListParams::default().limit(1)
    };
    let watch = WatchParams {
        field_selector: fields,
        ..WatchParams::default().timeout(1)
    };
    Box::new(move || {
        let (api, list, watch) = (api.clone(), list.clone(), watch.clone());
        Box::pin(async move {
            let listed = api.list_metadata(&list).await?;
            let from = listed.metadata.resource_version.unwrap_or_default();
            api.watch_metadata(&watch, &from).await.map(drop)
        })
    })
}

fn pair<K>(
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    probe: Probe,
    of: K::DynamicType,
    what: &'static str,
    health: &Arc<Health>,
) -> (Kept<K>, Keeping<K>)
where
    K: Resource + Clone + 'static,
    K::DynamicType: Hash + Eq + Clone,
{
    let writer = Writer::new(of);
    let (revision, receiver) = watch::channel(0);
    let kept = Kept {
        store: writer.as_reader(),
        revision: receiver,
    };
    health.begin(what);
    let keeping = Keeping {
        what,
        events,
        optional: false,
        probe,
        writer,
        revision,
        health: Arc::clone(health),
    };
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

impl<K> Keeping<K>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Hash + Eq + Clone + Send + Sync,
{
    /// A cluster without this kind has none of them.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Without what only the API server needs, and is most of what small objects have.
    #[must_use]
    pub fn without_managed_fields(mut self) -> Self {
        let events = self
            .events
            .map_ok(|event| event.modify(|object| object.managed_fields_mut().clear()));
        self.events = events.boxed();
        self
    }

    /// As [`Keeping::without_managed_fields`], and without annotations and labels, which whoever may write an object makes as large as the API takes them.
    #[must_use]
    pub fn without_what_anybody_adds(mut self) -> Self {
        self = self.without_managed_fields();
        let events = self.events;
        self.events = events
            .map_ok(|event| {
                event.modify(|object| {
                    object.annotations_mut().clear();
                    object.labels_mut().clear();
                })
            })
            .boxed();
        self
    }

    /// Keeps them, for as long as it is polled. It never gives up.
    pub async fn run(mut self) {
        let mut failed = false;
        let mut probes = tokio::time::interval(PROBE_EVERY);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = self.events.next() => match event {
                    None => return,
                    Some(Ok(event)) => {
                        self.take(&event);
                        failed = false;
                    }
                    Some(Err(error)) if self.optional && is_no_such_kind(&error) => self.take(&Event::InitDone),
                    Some(Err(error)) => {
                        self.health.away(self.what, &with_causes(&error));
                        failed = true;
                        probes.reset();
                    }
                },
                // Nothing is told of an API that is back and has no news.
                _ = probes.tick(), if failed && *self.revision.borrow() > 0 => {
                    if (self.probe)().await.is_ok() {
                        self.health.well(self.what);
                        failed = false;
                    }
                }
            }
        }
    }

    fn take(&mut self, event: &Event<K>) {
        self.writer.apply_watcher_event(event);
        // While all are listed, what was known before is known.
        if matches!(event, Event::Apply(_) | Event::Delete(_) | Event::InitDone) {
            self.revision.send_modify(|revision| *revision += 1);
            self.health.well(self.what);
        }
    }
}

/// A list of a kind that the API does not have is answered by 404.
fn is_no_such_kind(error: &watcher::Error) -> bool {
    const NOT_FOUND: u16 = 404;
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == NOT_FOUND)
}
