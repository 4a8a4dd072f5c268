//! Client of the cluster's API.

use std::sync::Arc;

use attest_store::cluster_api;
use attest_store::settings::ClusterAccess;
use attest_system::clock::Clock;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::answer_limit::answered;
use super::{ClusterError, WatchHealth, WatchObserver, api_watch};

/// Maximum number of objects in a list: more nodes than a cluster can have.
const LIST_LIMIT_OBJECTS: usize = 50_000;

/// The cluster's API, with this gateway's credentials.
#[derive(Clone)]
pub struct ClusterClient {
    client: Client,
    namespace: String,
    health: Arc<WatchHealth>,
}

impl ClusterClient {
    /// Reads the address and credentials of the API, without a request. Service account tokens, and the CA next to a token, are read again
    /// when they change.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn open(access: &ClusterAccess, clock: Clock, observer: Arc<dyn WatchObserver>) -> Result<Self, ClusterError> {
        let (api, mut config) = cluster_api::config(access).await?;
        // A server that takes requests and is silent is found out: a watch says something within its own time.
        config.read_timeout = Some(api_watch::SILENCE);
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| ClusterError::Client { api, error })?;
        Ok(Self {
            client,
            namespace,
            health: Arc::new(WatchHealth::new(clock, observer)),
        })
    }

    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the namespace of the gateway's own objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    #[must_use]
    pub const fn health(&self) -> &Arc<WatchHealth> {
        &self.health
    }

    /// Lists objects, page by page; without a limit in `params`, in pages that are small enough for whole objects.
    ///
    /// # Errors
    /// [`ClusterError`], about `what`.
    pub async fn list<K>(&self, what: &'static str, api: &Api<K>, params: &ListParams) -> Result<Vec<K>, ClusterError>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let page_objects = params.limit.unwrap_or(api_watch::PAGE_OBJECTS);
        let (mut all, mut params) = (Vec::new(), params.clone().limit(page_objects));
        while all.len() < LIST_LIMIT_OBJECTS {
            let page = self.ask(what, api.list(&params)).await?;
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
        let limit = LIST_LIMIT_OBJECTS;
        Err(ClusterError::TooMany { what, limit })
    }

    /// Asks for the API's version, which any account may.
    ///
    /// # Errors
    /// [`ClusterError`]
    pub async fn version(&self) -> Result<(), ClusterError> {
        self.ask("version", self.client.apiserver_version()).await.map(drop)
    }

    /// Asks whether the API has the kind ValidatingAdmissionPolicy.
    ///
    /// # Errors
    /// [`ClusterError`]
    pub async fn knows_admission_policies(&self) -> Result<bool, ClusterError> {
        const GROUP: &str = "admissionregistration.k8s.io/v1";
        match self.ask(GROUP, self.client.list_api_group_resources(GROUP)).await {
            Ok(list) => Ok(list.resources.iter().any(|resource| resource.kind == "ValidatingAdmissionPolicy")),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the response to a request, within the time limit for one.
    ///
    /// # Errors
    /// [`ClusterError`], about `what`.
    pub async fn ask<T>(&self, what: &'static str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
        answered(what, answer).await
    }
}

/// Shows nothing of the client, because it holds a token.
impl std::fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
