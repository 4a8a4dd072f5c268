//! Keeps the cache of CSRs as the API has them: one watch for each signer, of trimmed objects.

use std::sync::Arc;

use attest_cluster_api::{ApiWatch, ClusterClient, Sink};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::Event;

use super::csr::{CLIENT_SIGNER, CsrPurpose, SERVING_SIGNER};
use super::csr_object::CsrObject;
use super::request_cache::RequestCache;

/// Names of the watches in messages and metrics.
pub(super) const CLIENT_REQUESTS: &str = "certificate signing requests";
pub(super) const SERVING_REQUESTS: &str = "serving certificate signing requests";

/// The watch of the CSRs of one signer.
pub(super) type RequestWatch = ApiWatch<CsrObject, RequestSink>;

/// Takes up the events of one watch of CSRs.
pub(super) struct RequestSink {
    purpose: CsrPurpose,
    cache: Arc<RequestCache>,
    listing: u64,
}

/// The watch that fills the cache with the CSRs of one signer.
pub(super) fn watch(cluster: &ClusterClient, purpose: CsrPurpose, cache: &Arc<RequestCache>) -> RequestWatch {
    let (what, signer) = match purpose {
        CsrPurpose::Client => (CLIENT_REQUESTS, CLIENT_SIGNER),
        CsrPurpose::Serving => (SERVING_REQUESTS, SERVING_SIGNER),
    };
    let sink = RequestSink {
        purpose,
        cache: Arc::clone(cache),
        listing: 0,
    };
    let fields = format!("spec.signerName={signer}");
    ApiWatch::new(what, Api::all(cluster.client()), (None, Some(fields)), sink, cluster.health())
}

impl Sink<CsrObject> for RequestSink {
    fn take(&mut self, event: Event<CsrObject>) {
        match event {
            Event::Init => self.listing = self.cache.begin_listing(),
            Event::InitApply(object) => self.cache.insert(&object, self.purpose, self.listing, true),
            Event::Apply(object) => self.cache.insert(&object, self.purpose, self.listing, false),
            Event::InitDone => self.cache.end_listing(self.purpose, self.listing),
            Event::Delete(object) => {
                if let Some(uid) = &object.meta().uid {
                    self.cache.remove(uid);
                }
            }
        }
    }

    /// Removes all CSRs of this watch from the cache.
    fn take_absent(&mut self) {
        self.take(Event::Init);
        self.take(Event::InitDone);
    }
}
