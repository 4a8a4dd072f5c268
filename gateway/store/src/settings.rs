//! Settings of the store: its engine, and how that is reached.

use std::path::PathBuf;
use std::time::Duration;

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    pub engine: EngineSettings,
    /// File of the embedded store. With any engine, files next to it tell what is known of the store.
    pub file: PathBuf,
}

/// The engine that keeps the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineSettings {
    /// A file below `state`: for one gateway.
    Embedded,
    /// An etcd cluster: for several.
    Etcd(EtcdSettings),
    /// Objects of the cluster's API: for several.
    Kubernetes(KubernetesSettings),
}

/// The objects of a cluster that are the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The access to the API, with the namespace.
    pub cluster: ClusterAccess,
    /// The prefix of all names.
    pub name: String,
    /// The time within which a request is answered, or fails.
    pub timeout: Duration,
}

impl KubernetesSettings {
    /// Returns where the store is, for messages: the same text from any host, as far as the settings say it.
    #[must_use]
    pub fn place(&self) -> String {
        let namespace = self.cluster.namespace.as_deref().unwrap_or("of the service account");
        let api = match &self.cluster.api {
            ClusterApi::InCluster => "this cluster".to_owned(),
            ClusterApi::Kubeconfig(path) => path.display().to_string(),
        };
        format!("secret {} in namespace {namespace} ({api})", self.name)
    }
}

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `https://HOST:PORT` of each member; or `http://`, all of them.
    pub endpoints: Vec<String>,
    /// The prefix of all keys.
    pub prefix: String,
    /// The CAs of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The gateway's user in etcd, and the file with its password.
    pub user: Option<(String, PathBuf)>,
    /// The time within which a request is answered, or fails.
    pub timeout: Duration,
}

impl EtcdSettings {
    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:"))
    }

    /// Returns where the store is, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{} below {}", self.endpoints.join(","), self.prefix)
    }
}

/// The access to a cluster's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAccess {
    pub api: ClusterApi,
    /// The namespace of the gateway's own objects. `None`: that of the service account, or of the kubeconfig.
    pub namespace: Option<String>,
}

/// The API and the identity of the gateway there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterApi {
    /// By the service account of the process's pod.
    InCluster,
    Kubeconfig(PathBuf),
}
