//! Keeps the cache of CSRs as the API has them: one watch for each signer, listed in small pages of trimmed objects.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::Resource;
use kube::api::{Api, ListParams, WatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::MissedTickBehavior;

use super::csr::{CLIENT_SIGNER, Purpose, SERVING_SIGNER};
use super::csr_object::CsrObject;
use super::request_cache::RequestCache;
use crate::causes::with_causes;
use crate::cluster::{Cluster, Health};

/// Objects in one page of a list: the API takes 1.5 MiB for an object, so a page has 15 MiB at most.
const PAGE_LIMIT: u32 = 10;
/// How long one watch lasts, seconds. Then it is asked for once more, from where it was; so a connection that has died unnoticed is found out.
const WATCH_SECONDS: u32 = 60;
/// How often an API that has failed is asked whether it is back. The watch itself tries less often, the longer the API is away.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// What is watched, as messages and metrics call it.
pub(super) const CLIENT_REQUESTS: &str = "certificate signing requests";
pub(super) const SERVING_REQUESTS: &str = "serving certificate signing requests";

/// One watch of CSRs.
pub(super) struct RequestWatch {
    what: &'static str,
    purpose: Purpose,
    api: Api<CsrObject>,
    fields: String,
    cache: Arc<RequestCache>,
    health: Arc<Health>,
}

impl RequestWatch {
    /// The watch of the CSRs of one signer.
    pub(super) fn new(cluster: &Cluster, purpose: Purpose, cache: &Arc<RequestCache>) -> Self {
        let (what, signer) = match purpose {
            Purpose::Client => (CLIENT_REQUESTS, CLIENT_SIGNER),
            Purpose::Serving => (SERVING_REQUESTS, SERVING_SIGNER),
        };
        let health = Arc::clone(cluster.health());
        health.begin(what);
        Self {
            what,
            purpose,
            api: Api::all(cluster.client()),
            fields: format!("spec.signerName={signer}"),
            cache: Arc::clone(cache),
            health,
        }
    }

    /// Keeps the cache for as long as it is polled. It never gives up.
    pub(super) async fn run(self) {
        let config = watcher::Config::default()
            .timeout(WATCH_SECONDS)
            .page_size(PAGE_LIMIT)
            .fields(&self.fields);
        let mut events: BoxStream<'static, _> = watcher(self.api.clone(), config).default_backoff().boxed();
        let mut probes = tokio::time::interval(PROBE_EVERY);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut failed, mut listed, mut listing) = (false, false, 0);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    None => return,
                    Some(Ok(event)) => {
                        failed = false;
                        listed |= self.take(event, &mut listing);
                    }
                    Some(Err(error)) => {
                        self.health.away(self.what, &with_causes(&error));
                        failed = true;
                        probes.reset();
                    }
                },
                // An API that is back and has no news tells nothing.
                _ = probes.tick(), if failed && listed => {
                    if self.probe().await.is_ok() {
                        self.health.well(self.what);
                        failed = false;
                    }
                }
            }
        }
    }

    /// Takes up an event; says whether all CSRs of this signer are known.
    fn take(&self, event: Event<CsrObject>, listing: &mut u64) -> bool {
        match event {
            Event::Init => {
                *listing = self.cache.begin_listing();
                return false;
            }
            Event::InitApply(object) => {
                self.cache.insert(&object, self.purpose, *listing);
                return false;
            }
            Event::InitDone => self.cache.end_listing(self.purpose, *listing),
            Event::Apply(object) => self.cache.insert(&object, self.purpose, *listing),
            Event::Delete(object) => {
                if let Some(uid) = &object.meta().uid {
                    self.cache.remove(uid);
                }
            }
        }
        self.health.well(self.what);
        true
    }

    /// Asks for one object and for a watch, as the watch itself does.
    async fn probe(&self) -> kube::Result<()> {
        let list = ListParams::default().limit(1).fields(&self.fields);
        let listed = self.api.list_metadata(&list).await?;
        let from = listed.metadata.resource_version.unwrap_or_default();
        let watch = WatchParams::default().timeout(1).fields(&self.fields);
        self.api.watch_metadata(&watch, &from).await.map(drop)
    }
}
