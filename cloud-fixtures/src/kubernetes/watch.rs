//! Response to a watch: a line for each change, until the watch ends.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use hyper::Response;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::kinds::ResourceKind;
use super::objects::{ObjectChange, ObjectStore};
use super::selectors::ObjectSelector;
use super::service::{ObjectDetail, parameter};
use super::status::ApiStatus;
use super::{ApiState, Changed, locked};

/// Duration of a watch that does not specify it.
const TIMEOUT_SECONDS: u64 = 1800;

/// A watch, and its position.
pub(super) struct Watch {
    kind: ResourceKind,
    namespace: Option<String>,
    selector: ObjectSelector,
    form: ObjectDetail,
    bookmarks: bool,
    lasts: Duration,
    /// Revision up to which events were sent.
    revision: u64,
    /// Events to send before any others.
    first: Vec<Value>,
    over: bool,
}

impl Watch {
    pub(super) fn new(
        kind: ResourceKind,
        namespace: Option<&str>,
        selector: ObjectSelector,
        (query, form): (&str, ObjectDetail),
        objects: &ObjectStore,
    ) -> Result<Self, ApiStatus> {
        if parameter(query, "sendInitialEvents") == "true" {
            let why = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            return Err(ApiStatus::invalid(kind, "", why));
        }
        let asked = parameter(query, "resourceVersion");
        let after: u64 = match &*asked {
            "" => 0,
            asked => asked
                .parse()
                .map_err(|_| ApiStatus::bad_request(format!("invalid resource version {asked:?}")))?,
        };
        let mut watch = Self {
            kind,
            namespace: namespace.map(str::to_owned),
            selector,
            form,
            bookmarks: parameter(query, "allowWatchBookmarks") == "true",
            lasts: Duration::from_secs(parameter(query, "timeoutSeconds").parse().unwrap_or(TIMEOUT_SECONDS)),
            revision: if after == 0 { objects.revision() } else { after },
            first: Vec::new(),
            over: false,
        };
        if after == 0 {
            let page = objects.list(kind, namespace, &watch.selector, 0, None)?;
            watch.first = page.items.iter().map(|item| event("ADDED", &form.project(item))).collect();
        }
        Ok(watch)
    }

    /// Returns the events for the changes since the watch's position.
    fn news(&mut self, objects: &ObjectStore) -> Vec<Value> {
        let changes = match objects.since(self.revision, self.kind, self.namespace.as_deref()) {
            Ok(changes) => changes,
            Err(status) => {
                self.over = true;
                return vec![json!({"type": "ERROR", "object": status.json()})];
            }
        };
        self.revision = self.revision.max(objects.revision());
        changes.iter().filter_map(|change| self.event_for(change)).collect()
    }

    /// Returns the event for a change. An object that leaves the selection is deleted for the watch.
    fn event_for(&self, change: &ObjectChange) -> Option<Value> {
        let was = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let is = !change.gone && self.selector.matches(&change.object);
        let of = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(event(of, &self.form.project(&change.object)))
    }

    fn bookmark(&self) -> Value {
        let metadata = json!({"resourceVersion": self.revision.to_string(), "creationTimestamp": null});
        let object = json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata});
        event("BOOKMARK", &self.form.project(&object))
    }
}

fn event(of: &str, object: &Value) -> Value {
    json!({"type": of, "object": object})
}

/// Returns the response, which streams events.
pub(super) fn stream(watch: Watch, shared: Arc<ApiState>) -> Response<Body> {
    let changed = shared.changed.subscribe();
    let broken = changed.borrow().broken;
    let ends = Instant::now() + watch.lasts;
    let state = WatchState {
        watch,
        shared,
        changed,
        broken,
        ends,
    };
    let lines = stream::unfold(state, |mut state| async move {
        let events = state.next().await?;
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        Some((Ok::<_, axum::Error>(Bytes::from(lines)), state))
    });
    let builder = Response::builder().header(CONTENT_TYPE, "application/json");
    builder.body(Body::from_stream(lines)).unwrap()
}

struct WatchState {
    watch: Watch,
    shared: Arc<ApiState>,
    changed: tokio::sync::watch::Receiver<Changed>,
    /// Number of times that all watches had been broken when it began.
    broken: u64,
    ends: Instant,
}

impl WatchState {
    /// Returns the next events; `None` after the end.
    async fn next(&mut self) -> Option<Vec<Value>> {
        let pause = *locked(&self.shared.bookmarks);
        let mut bookmark = Instant::now() + pause;
        loop {
            if self.watch.over {
                return None;
            }
            let first = std::mem::take(&mut self.watch.first);
            if !first.is_empty() {
                return Some(first);
            }
            if self.changed.borrow_and_update().broken != self.broken {
                return None;
            }
            let news = self.watch.news(&locked(&self.shared.objects));
            if !news.is_empty() {
                return Some(news);
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = sleep_until(self.ends) => return None,
                () = sleep_until(bookmark) => {
                    if self.watch.bookmarks {
                        return Some(vec![self.watch.bookmark()]);
                    }
                    bookmark = Instant::now() + pause;
                }
            }
        }
    }
}
