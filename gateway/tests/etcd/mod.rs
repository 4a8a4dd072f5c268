//! Engine of the store on a real etcd.

mod audited;
mod concurrent_migration;
mod export;
mod forgetting;
mod gateways;
mod leader;
mod machines;
mod mark;
mod migration;
mod mixed_releases;
mod outage;
mod pending;
mod presence;
mod rotation;
mod schema;
mod set_back;
mod setup;
mod suite;
mod tls;
mod transactions;
mod users;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attest_store::StoreError;
use attest_store::engine::{Engine, Transaction};
use attest_store::etcd::Etcd;
use attest_store::settings::EtcdSettings;
use cloud_fixtures::etcd;

use crate::remote::{self, count_up, get, put, range, run};
use crate::support::LIMIT;

/// Running etcd, and the state of gateways that have their store on it.
struct Site {
    etcd: etcd::EtcdServer,
    states: tempfile::TempDir,
}

impl Site {
    fn start() -> Self {
        Self {
            etcd: etcd::EtcdServer::start(),
            states: tempfile::tempdir().unwrap(),
        }
    }

    fn settings(&self) -> EtcdSettings {
        settings(self.etcd.endpoint())
    }

    /// Opens the store for the gateway of that name.
    fn open(&self, gateway: &str) -> Etcd {
        self.try_open(gateway).unwrap()
    }

    fn try_open(&self, gateway: &str) -> Result<Etcd, StoreError> {
        self.open_by(gateway, &self.settings())
    }

    fn open_by(&self, gateway: &str, settings: &EtcdSettings) -> Result<Etcd, StoreError> {
        Etcd::open(settings, &self.state(gateway).join("gateway.db"))
    }

    fn state(&self, gateway: &str) -> PathBuf {
        let state = self.states.path().join(gateway);
        std::fs::create_dir_all(&state).unwrap();
        state
    }
}

fn settings(endpoint: String) -> EtcdSettings {
    EtcdSettings {
        endpoints: vec![endpoint],
        prefix: "a/gateway".to_owned(),
        ca: None,
        identity: None,
        user: None,
        timeout: Duration::from_secs(10),
    }
}

impl remote::Site for Site {
    type Store = Etcd;
    const ABSENT: &'static str = "lease";

    fn start() -> Self {
        Self::start()
    }

    fn open(&self, gateway: &str) -> Etcd {
        self.open(gateway)
    }

    fn state(&self, gateway: &str) -> PathBuf {
        self.state(gateway)
    }
}

mod alike {
    crate::remote::shares!(super::super::Site);
}

/// Retries until there is an answer: on a busy machine, or during etcd's restart, it may take longer than the timeout of a store here.
async fn in_the_end<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let begun = std::time::Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
    }
}
