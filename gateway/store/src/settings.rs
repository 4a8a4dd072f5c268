//! Which engine keeps the store, and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    pub engine: EngineSettings,
    /// The file of the embedded store. What is known of a store lies beside it, whatever engine keeps that.
    pub file: PathBuf,
}

/// Which engine keeps the store.
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
    /// How the API is reached, and the namespace.
    pub cluster: ClusterAccess,
    /// What all names begin with.
    pub name: String,
    /// How long whoever asks waits for an answer.
    pub timeout: Duration,
}

impl KubernetesSettings {
    /// Where the store is, for messages: the same text for whoever asks from wherever, as far as the settings say it.
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
    /// What all keys begin with.
    pub prefix: String,
    /// The CAs of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Who the gateway is to etcd, and the file with the password, where it wants one.
    pub user: Option<(String, PathBuf)>,
    /// How long whoever asks waits for an answer.
    pub timeout: Duration,
}

impl EtcdSettings {
    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:"))
    }

    /// Where the store is, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{} below {}", self.endpoints.join(","), self.prefix)
    }
}

/// How a cluster's API is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAccess {
    pub api: ClusterApi,
    /// Where the gateway's own objects are. None: where the service account is, or what the kubeconfig says.
    pub namespace: Option<String>,
}

/// Which API, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterApi {
    /// By the service account of the pod that this is.
    InCluster,
    Kubeconfig(PathBuf),
}
