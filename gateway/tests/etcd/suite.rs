//! A store on etcd does what every store does.

use async_trait::async_trait;
use attest_gateway::store::Store;

use super::*;
use crate::conformance::{self, Place};

/// An etcd, and whoever opens the store on it: each with the state of the same gateway.
struct OnEtcd(Site);

/// Stands still until this is dropped.
struct Paused(u32);

impl Drop for Paused {
    fn drop(&mut self) {
        etcd::signal(self.0, "CONT");
    }
}

#[async_trait]
impl Place for OnEtcd {
    async fn empty() -> Self {
        Self(Site::start())
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.open("one"))
    }

    async fn hold(&self) -> Box<dyn Send> {
        self.0.etcd.pause();
        Box::new(Paused(self.0.etcd.id()))
    }
}

conformance::conforms!(OnEtcd);
