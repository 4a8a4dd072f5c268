//! Engine of the store on objects of a cluster's API.

mod boots;
mod challenges;
mod idle;
mod killed;
mod machines;
mod migration;
mod outage;
mod presence;
mod refused;
mod set_back;
mod suite;
mod transactions;
mod writes;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use attest_store::StoreError;
use attest_store::engine::Engine;
use attest_store::kubernetes::{Kubernetes, KubernetesLimits};
use attest_store::settings::{ClusterAccess, ClusterApi, KubernetesSettings};
use cloud_fixtures::kubernetes::KubernetesApi as Api;
use serde_json::{Value, json};

use crate::remote::{self, count_up, get, put, range, run};

/// Namespace of the store's objects and of the gateway's service account.
const NAMESPACE: &str = "attest-gateway";
/// Lease for tests that wait for its end: a busy machine may delay a process by some of it.
const LEASE: Duration = Duration::from_secs(3);
/// Timeout of the store's requests.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the store's one object that changes.
const HEAD: &str = "store";

/// API, and the state of gateways that have their store there.
struct Site {
    api: Api,
    states: tempfile::TempDir,
    /// Tokens by which the API knows each gateway.
    tokens: Mutex<HashMap<String, String>>,
}

impl Site {
    fn start() -> Self {
        let api = Api::start();
        // The rights that docs/how-to/replicas.md names, and no more.
        let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "patch", "delete"]}]);
        api.grant(NAMESPACE, "gateway", &rules);
        let states = tempfile::tempdir().unwrap();
        let tokens = Mutex::default();
        Self { api, states, tokens }
    }

    fn settings(&self, gateway: &str) -> KubernetesSettings {
        let kubeconfig = self.mark_path(gateway).with_file_name("kubeconfig");
        let token = self
            .tokens
            .lock()
            .unwrap()
            .entry(gateway.to_owned())
            .or_insert_with(|| self.api.token(NAMESPACE, "gateway"))
            .clone();
        std::fs::write(&kubeconfig, self.api.kubeconfig(&token)).unwrap();
        KubernetesSettings {
            cluster: ClusterAccess {
                api: ClusterApi::Kubeconfig(kubeconfig),
                namespace: Some(NAMESPACE.to_owned()),
            },
            name: HEAD.to_owned(),
            timeout: TIMEOUT,
        }
    }

    fn mark_path(&self, gateway: &str) -> PathBuf {
        self.state(gateway).join("gateway.db")
    }

    fn state(&self, gateway: &str) -> PathBuf {
        let state = self.states.path().join(gateway);
        std::fs::create_dir_all(&state).unwrap();
        state
    }

    /// Opens the store for the gateway of that name.
    fn open(&self, gateway: &str) -> Kubernetes {
        self.try_open(gateway).unwrap()
    }

    fn try_open(&self, gateway: &str) -> Result<Kubernetes, StoreError> {
        Kubernetes::open(&self.settings(gateway), &self.mark_path(gateway))
    }

    fn open_for(&self, gateway: &str, timeout: Duration) -> Result<Kubernetes, StoreError> {
        let settings = self.settings(gateway);
        Kubernetes::open(&KubernetesSettings { timeout, ..settings }, &self.mark_path(gateway))
    }

    fn open_within(&self, gateway: &str, limits: KubernetesLimits) -> Result<Kubernetes, StoreError> {
        Kubernetes::open_within(&self.settings(gateway), &self.mark_path(gateway), limits)
    }

    /// Opens the store with a short lease, for tests that wait for its end.
    fn open_briefly(&self, gateway: &str, timeout: Duration) -> Kubernetes {
        let settings = KubernetesSettings {
            timeout,
            ..self.settings(gateway)
        };
        let limits = KubernetesLimits {
            lease: LEASE,
            ..KubernetesLimits::default()
        };
        Kubernetes::open_within(&settings, &self.mark_path(gateway), limits).unwrap()
    }

    /// Makes the API reject this gateway from here on.
    fn cut_off(&self, gateway: &str) {
        self.api.expire(&self.tokens.lock().unwrap()[gateway]);
    }

    /// Makes the API accept this gateway again.
    fn readmit(&self, gateway: &str) {
        self.api.admit(&self.tokens.lock().unwrap()[gateway], NAMESPACE, "gateway");
    }

    /// Returns the current head, the object with the store's state.
    fn head(&self) -> Value {
        self.api.get("secrets", NAMESPACE, HEAD).unwrap()
    }

    /// Returns the decoded content of the head.
    fn decoded(&self) -> Value {
        let data = data_encoding::BASE64.decode(self.head()["data"]["data"].as_str().unwrap().as_bytes());
        serde_json::from_slice(&zstd::decode_all(&*data.unwrap()).unwrap()).unwrap()
    }

    /// Returns the names of all leaves, whether the head refers to them or not.
    fn leaves(&self) -> Vec<String> {
        let secrets = self.api.all("secrets").into_iter();
        let names = secrets.map(|secret| secret["metadata"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != HEAD).collect()
    }
}

impl remote::Site for Site {
    type Store = Kubernetes;
    const ABSENT: &'static str = "this gateway's session in the store has expired";

    fn start() -> Self {
        Self::start()
    }

    fn open(&self, gateway: &str) -> Kubernetes {
        self.open(gateway)
    }

    fn state(&self, gateway: &str) -> PathBuf {
        self.state(gateway)
    }
}

mod alike {
    crate::remote::shares!(super::super::Site);
}
