//! The store's engine on a real etcd.

mod at_once;
mod audited;
mod forgetting;
mod gateways;
mod house;
mod leader;
mod mark;
mod moved;
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

use std::sync::{Arc, Mutex};
use std::time::Duration;

use attest_gateway::settings::EtcdSettings;
use attest_gateway::store::StoreError;
use attest_gateway::store::engine::{Engine, KeyRange, Transaction, Unfinished};
use attest_gateway::store::etcd::Etcd;
use cloud_fixtures::etcd;

use crate::support::LIMIT;

/// An etcd, and the state of gateways that have their store on it.
struct Site {
    etcd: etcd::Etcd,
    states: tempfile::TempDir,
}

impl Site {
    fn start() -> Self {
        Self {
            etcd: etcd::Etcd::start(),
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
        let state = self.states.path().join(gateway);
        std::fs::create_dir_all(&state).unwrap();
        Etcd::open(settings, &state.join("gateway.db"))
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

/// Does a work, and gives what its last run has found.
async fn run<T: Send + 'static>(
    engine: &impl Engine,
    mut work: impl FnMut(&mut dyn Transaction) -> Result<T, Unfinished> + Send + 'static,
) -> Result<T, StoreError> {
    let slot = Arc::new(Mutex::new(None));
    let found = Arc::clone(&slot);
    let work = Box::new(move |transaction: &mut dyn Transaction| {
        *found.lock().unwrap() = Some(work(transaction)?);
        Ok(())
    });
    engine.transact(work).await?;
    Ok(slot.lock().unwrap().take().unwrap())
}

async fn put(engine: &impl Engine, key: &str, value: &str) -> Result<(), StoreError> {
    let (key, value) = (key.to_owned(), value.to_owned());
    run(engine, move |transaction| transaction.put(&key, &value)).await
}

async fn get(engine: &impl Engine, key: &str) -> Result<Option<String>, StoreError> {
    let key = key.to_owned();
    run(engine, move |transaction| transaction.get(&key)).await
}

/// Counts one up, and gives the number.
async fn count_up(engine: &impl Engine, key: &str) -> Result<u32, StoreError> {
    let key = key.to_owned();
    run(engine, move |transaction| {
        let number = transaction.get(&key)?.map_or(0, |number| number.parse::<u32>().unwrap()) + 1;
        transaction.put(&key, &number.to_string())?;
        Ok(number)
    })
    .await
}

/// Asks until it is answered: on a busy machine, or while it comes back, etcd may take longer than a store here has patience.
async fn in_the_end<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let begun = std::time::Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
    }
}

fn range(from: &str, until: &str) -> KeyRange {
    KeyRange {
        from: from.to_owned(),
        until: until.to_owned(),
    }
}
