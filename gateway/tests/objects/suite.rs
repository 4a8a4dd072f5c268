//! Conformance of a store on objects with the suite for all stores.

use async_trait::async_trait;
use attest_store::Store;
use cloud_fixtures::kubernetes::Disturbance;

use super::*;
use crate::conformance::{self, Place};

/// Store on an API, opened by several processes with the state of the same gateway.
struct OnObjects(Arc<Site>);

/// API that is paused until this is dropped.
struct Paused(Arc<Site>);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.api.recover();
    }
}

#[async_trait]
impl Place for OnObjects {
    async fn empty() -> Self {
        Self(Arc::new(Site::start()))
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.open("one"))
    }

    async fn hold(&self) -> Box<dyn Send> {
        self.0.api.disturb(Disturbance::Silent);
        Box::new(Paused(Arc::clone(&self.0)))
    }
}

conformance::conforms!(OnObjects);
