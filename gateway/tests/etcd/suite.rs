//! Conformance of a store on etcd with the suite for all stores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use async_trait::async_trait;
use attest_store::Store;

use super::*;
use crate::conformance::{self, Place};

/// Store below a prefix of an etcd, opened by several processes with the state of the same gateway.
struct OnEtcd {
    etcd: Arc<etcd::EtcdServer>,
    prefix: String,
    states: tempfile::TempDir,
}

/// Running etcd of the current cases: each has a prefix of its own, and the last one stops it.
static SHARED: Mutex<Weak<etcd::EtcdServer>> = Mutex::new(Weak::new());
static PREFIXES: AtomicUsize = AtomicUsize::new(0);

impl OnEtcd {
    fn on(etcd: Arc<etcd::EtcdServer>) -> Self {
        Self {
            etcd,
            prefix: format!("case/{}", PREFIXES.fetch_add(1, Ordering::Relaxed)),
            states: tempfile::tempdir().unwrap(),
        }
    }
}

/// Process that is stopped until this is dropped.
struct Paused(u32);

impl Drop for Paused {
    fn drop(&mut self) {
        etcd::signal(self.0, "CONT");
    }
}

#[async_trait]
impl Place for OnEtcd {
    async fn empty() -> Self {
        let mut shared = SHARED.lock().unwrap();
        let etcd = shared.upgrade().unwrap_or_else(|| Arc::new(etcd::EtcdServer::start()));
        *shared = Arc::downgrade(&etcd);
        Self::on(etcd)
    }

    async fn alone() -> Self {
        Self::on(Arc::new(etcd::EtcdServer::start()))
    }

    async fn open(&self) -> Arc<dyn Store> {
        let settings = EtcdSettings {
            prefix: self.prefix.clone(),
            ..settings(self.etcd.endpoint())
        };
        Arc::new(Etcd::open(&settings, &self.states.path().join("gateway.db")).unwrap())
    }

    async fn hold(&self) -> Box<dyn Send> {
        self.etcd.pause();
        Box::new(Paused(self.etcd.id()))
    }
}

conformance::conforms!(OnEtcd);
