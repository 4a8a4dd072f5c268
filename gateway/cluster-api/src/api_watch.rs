//! The list and watch of one kind of objects at the API, independent of the use of its events.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::answer_limit::answered;
use super::{ClusterError, WatchHealth};

/// Objects of one page of a list. An object has 1.5 MB at most (etcd's limit of a request), and a page is in memory as text until it is read.
pub(super) const PAGE_OBJECTS: u32 = 10;
/// Duration of one watch, in seconds. The next one continues from its position; so a connection that has died unnoticed is detected.
const WATCH_SECONDS: u32 = 60;
/// Longest silence of a server: longer than a watch lasts.
pub(super) const SILENCE: Duration = Duration::from_secs(70);
/// A watch from an older version counts as established after this time without an event. A server that has lost that version reports it
/// earlier.
const SETTLED: Duration = Duration::from_secs(1);
/// Pauses after failures: the first, doubled each time, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Interval at which a missing kind is requested again.
const KIND_EVERY: Duration = Duration::from_secs(30);
/// Status codes after which a version cannot be continued, and everything is listed again. 410: it has expired; 404: the kind is gone; 400:
/// it is not a version of this API. 504: it is newer than the API's own, whose etcd was restored from an older snapshot
/// (`NewTooLargeResourceVersionError` in `apimachinery/pkg/api/errors`).
const LIST_AGAIN: [u16; 4] = [400, 404, 410, 504];

/// A receiver of the events of a watch.
pub trait Sink<K> {
    /// Takes an event. During a list, the previous state stays valid.
    fn take(&mut self, event: Event<K>);

    /// Notes that the API has no such kind.
    fn take_absent(&mut self);
}

/// The list and watch of one kind.
pub struct ApiWatch<K, S> {
    what: &'static str,
    api: Api<K>,
    labels: Option<String>,
    fields: Option<String>,
    /// True if the API may lack this kind.
    optional: bool,
    /// Removes the parts of an object that are not used.
    trim: fn(&mut K),
    sink: S,
    health: Arc<WatchHealth>,
}

impl<K, S> ApiWatch<K, S>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    S: Sink<K>,
{
    /// Creates a watch of the objects that match a label selector and a field selector. `what` names them in messages, and labels the
    /// metric.
    pub fn new(what: &'static str, api: Api<K>, selectors: (Option<String>, Option<String>), sink: S, health: &Arc<WatchHealth>) -> Self {
        let (labels, fields) = selectors;
        health.begin(what);
        Self {
            what,
            api,
            labels,
            fields,
            optional: false,
            trim: |_| {},
            sink,
            health: Arc::clone(health),
        }
    }

    /// Allows a cluster to lack this kind; it then has no such objects.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Drops managed fields, which only the API server needs, and which are most of a small object.
    #[must_use]
    pub fn without_managed_fields(self) -> Self {
        self.trimmed(|object| object.managed_fields_mut().clear())
    }

    /// Removes managed fields, annotations and labels. A client that may write an object can make its annotations and labels as large as
    /// the API accepts.
    #[must_use]
    pub fn without_what_anybody_adds(self) -> Self {
        self.trimmed(|object| {
            object.managed_fields_mut().clear();
            object.annotations_mut().clear();
            object.labels_mut().clear();
        })
    }

    /// Sets a function that removes unused parts before an object is stored.
    #[must_use]
    pub fn trimmed(mut self, trim: fn(&mut K)) -> Self {
        self.trim = trim;
        self
    }

    /// Watches for as long as it is polled. It never gives up.
    pub async fn run(mut self) {
        let mut retry = Retry::default();
        loop {
            match self.list().await {
                Ok(version) => self.follow(version, &mut retry).await,
                Err(error) if self.optional && error.is_not_found() => {
                    self.sink.take_absent();
                    self.health.well(self.what);
                    sleep(KIND_EVERY).await;
                }
                Err(error) => {
                    self.health.record_failure(self.what, &error);
                    retry.pause().await;
                }
            }
        }
    }

    /// Lists all objects, page by page, and returns the version of that state.
    async fn list(&mut self) -> Result<String, ClusterError> {
        let mut params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default().limit(PAGE_OBJECTS)
        };
        self.sink.take(Event::Init);
        loop {
            let page = answered(self.what, self.api.list(&params)).await?;
            for mut object in page.items {
                (self.trim)(&mut object);
                self.sink.take(Event::InitApply(object));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => {
                    self.sink.take(Event::InitDone);
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    /// Follows the changes since a state, until they have to be listed again.
    async fn follow(&mut self, mut version: String, retry: &mut Retry) {
        let mut is_listed = true;
        loop {
            let begun = Instant::now();
            let watched = self.watch(&mut version, is_listed).await;
            is_listed = false;
            if begun.elapsed() >= SETTLED {
                retry.reset();
            }
            match watched {
                Ok(Ended::Over) => {}
                Ok(Ended::Outdated) => {
                    tracing::debug!("cluster: watch {}: version {version} is too old, listing again", self.what);
                    return retry.pause_unless_first().await;
                }
                Err(error) => {
                    self.health.record_failure(self.what, &error);
                    retry.pause().await;
                    continue;
                }
            }
            // Each watch ends after a while. One that does so at once is not asked for without a pause.
            retry.pause_unless_first().await;
        }
    }

    /// Runs one watch, until it ends or cannot begin. A watch that is cut off counts as begun, and is restarted before a failure is
    /// reported.
    async fn watch(&mut self, version: &mut String, is_listed: bool) -> Result<Ended, ClusterError> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..WatchParams::default().timeout(WATCH_SECONDS)
        };
        let events = match answered(self.what, self.api.watch(&params, version)).await {
            Ok(events) => events,
            Err(error) if LIST_AGAIN.iter().any(|code| error.is_status(*code)) => return Ok(Ended::Outdated),
            Err(error) => return Err(error),
        };
        let (mut events, mut settled) = (pin!(events), pin!(sleep(SETTLED)));
        let mut is_said = is_listed;
        if is_listed {
            self.health.well(self.what);
        }
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = &mut settled, if !is_said => {
                    is_said = true;
                    self.health.well(self.what);
                    continue;
                }
            };
            match event {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => self.change(object, Event::Apply, version),
                Some(Ok(WatchEvent::Deleted(object))) => self.change(object, Event::Delete, version),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    *version = bookmark.metadata.resource_version;
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    if LIST_AGAIN.contains(&status.code) {
                        return Ok(Ended::Outdated);
                    }
                    let (what, error) = (self.what, kube::Error::Api(status));
                    return Err(ClusterError::Api { what, error });
                }
                // What cannot be read now cannot be read when it is told again.
                Some(Err(kube::Error::SerdeError(_))) => return Ok(Ended::Outdated),
                Some(Err(error)) => {
                    tracing::debug!("cluster: watch {}: cut: {error}", self.what);
                    return Ok(Ended::Over);
                }
                None => return Ok(Ended::Over),
            }
            is_said = true;
            self.health.well(self.what);
        }
    }

    fn change(&mut self, mut object: K, event: fn(K) -> Event<K>, version: &mut String) {
        if let Some(newer) = object.resource_version() {
            *version = newer;
        }
        (self.trim)(&mut object);
        self.sink.take(event(object));
    }
}

/// The end of an established watch.
enum Ended {
    Over,
    /// Its version cannot be continued: list again.
    Outdated,
}

/// An exponential backoff between [`RETRY_FIRST`] and [`RETRY_LONGEST`].
#[derive(Default)]
struct Retry {
    failures: u32,
}

impl Retry {
    fn reset(&mut self) {
        self.failures = 0;
    }

    async fn pause(&mut self) {
        sleep(pause(self.failures)).await;
        self.failures = self.failures.saturating_add(1);
    }

    /// Pauses, except after the first failure.
    async fn pause_unless_first(&mut self) {
        match self.failures {
            0 => self.failures = 1,
            _ => self.pause().await,
        }
    }
}

fn pause(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(10)).min(RETRY_LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_a_limit() {
        let pauses = [0, 1, 4, 5, 100, u32::MAX].map(|failures| pause(failures).as_millis());
        assert_eq!(pauses, [250, 500, 4000, 5000, 5000, 5000]);
    }
}
