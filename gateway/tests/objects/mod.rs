//! The store's engine on objects of a cluster's API.

mod boots;
mod killed;
mod moving;
mod outage;
mod presence;
mod set_back;
mod suite;
mod transactions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attest_gateway::settings::{ClusterApi, ClusterSettings, KubernetesSettings};
use attest_gateway::store::StoreError;
use attest_gateway::store::engine::{Engine, KeyRange, Transaction, Unfinished};
use attest_gateway::store::kubernetes::Kubernetes;
use cloud_fixtures::kubernetes::Kubernetes as Api;
use serde_json::{Value, json};

/// Where the store's objects are, and the gateway's service account.
const NAMESPACE: &str = "attest-gateway";
/// The store's one object that changes.
const HEAD: &str = "store";

/// An API, and the state of gateways that have their store there.
struct Site {
    api: Api,
    states: tempfile::TempDir,
    /// By which each gateway is known to the API.
    tokens: Mutex<HashMap<String, String>>,
}

impl Site {
    fn start() -> Self {
        let api = Api::start();
        // What docs/replicas.md says, and no more.
        let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "patch", "delete"]}]);
        api.grant(NAMESPACE, "gateway", &rules);
        let states = tempfile::tempdir().unwrap();
        let tokens = Mutex::default();
        Self { api, states, tokens }
    }

    fn settings(&self, gateway: &str) -> KubernetesSettings {
        let kubeconfig = self.beside(gateway).with_file_name("kubeconfig");
        let token = self
            .tokens
            .lock()
            .unwrap()
            .entry(gateway.to_owned())
            .or_insert_with(|| self.api.token(NAMESPACE, "gateway"))
            .clone();
        std::fs::write(&kubeconfig, self.api.kubeconfig(&token)).unwrap();
        KubernetesSettings {
            cluster: ClusterSettings {
                namespace: Some(NAMESPACE.to_owned()),
                ..ClusterSettings::at(ClusterApi::Kubeconfig(kubeconfig))
            },
            name: HEAD.to_owned(),
            timeout: Duration::from_secs(10),
        }
    }

    fn beside(&self, gateway: &str) -> PathBuf {
        let state = self.states.path().join(gateway);
        std::fs::create_dir_all(&state).unwrap();
        state.join("gateway.db")
    }

    /// Opens the store for the gateway of that name.
    fn open(&self, gateway: &str) -> Kubernetes {
        self.try_open(gateway).unwrap()
    }

    fn try_open(&self, gateway: &str) -> Result<Kubernetes, StoreError> {
        Kubernetes::open(&self.settings(gateway), &self.beside(gateway))
    }

    fn open_for(&self, gateway: &str, timeout: Duration) -> Result<Kubernetes, StoreError> {
        let settings = self.settings(gateway);
        Kubernetes::open(&KubernetesSettings { timeout, ..settings }, &self.beside(gateway))
    }

    /// From here on nobody hears of the gateway of that name.
    fn cut_off(&self, gateway: &str) {
        self.api.expire(&self.tokens.lock().unwrap()[gateway]);
    }

    /// And from here on the API knows it again.
    fn readmit(&self, gateway: &str) {
        self.api.admit(&self.tokens.lock().unwrap()[gateway], NAMESPACE, "gateway");
    }

    /// The object that is the store, as it stands.
    fn head(&self) -> Value {
        self.api.get("secrets", NAMESPACE, HEAD).unwrap()
    }

    /// The names of all leaves, whether they count or not.
    fn leaves(&self) -> Vec<String> {
        let secrets = self.api.all("secrets").into_iter();
        let names = secrets.map(|secret| secret["metadata"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != HEAD).collect()
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

fn range(from: &str, until: &str) -> KeyRange {
    KeyRange {
        from: from.to_owned(),
        until: until.to_owned(),
    }
}
