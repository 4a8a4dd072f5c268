//! Access to the cluster's API, for watches and for a store that is kept there.

mod error;

use std::time::Duration;

pub use error::is_untrusted_certificate;
pub use error::{ClusterError, RequestCause, explain};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::settings::{ClusterAccess, ClusterApi};

/// Time limit for a connection: an API that is reachable takes milliseconds.
const CONNECT: Duration = Duration::from_secs(10);

/// Returns the API's URL, and the configuration of its client. Service account tokens, and the CA next to one, are read again as they
/// change.
///
/// # Errors
/// [`ClusterError`].
pub async fn config(settings: &ClusterAccess) -> Result<(String, Config), ClusterError> {
    let mut config = match &settings.api {
        ClusterApi::InCluster => Config::incluster().map_err(ClusterError::InCluster)?,
        ClusterApi::Kubeconfig(path) => {
            let unread = |error| ClusterError::Kubeconfig { path: path.clone(), error };
            let file = Kubeconfig::read_from(path).map_err(unread)?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(unread)?;
            if config.accept_invalid_certs {
                return Err(ClusterError::Insecure { path: path.clone() });
            }
            config
        }
    };
    let api = config.cluster_url.to_string();
    if config.cluster_url.scheme_str() != Some("https") {
        return Err(ClusterError::Plain { api });
    }
    config.connect_timeout = Some(CONNECT);
    Ok((api, config))
}

/// A client that asks once, and the gateway's namespace: for a store, which knows itself what can be asked again.
///
/// # Errors
/// Like [`config`].
pub async fn client_that_asks_once(settings: &ClusterAccess) -> Result<(Client, String), ClusterError> {
    let (api, mut config) = config(settings).await?;
    config.default_retry = false;
    let namespace = settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| ClusterError::Client { api, error })?;
    Ok((client, namespace))
}
