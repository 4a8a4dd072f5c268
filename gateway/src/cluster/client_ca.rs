//! The CAs that sign kubelets' client certificates, as the cluster has them: kept in a file of the gateway's own, from where they are used as those of
//! `tls.client_ca` are. So they are there at the next start, whether the API is there or not.
//!
//! It is the ConfigMap `csr-controller-ca` in `openshift-config-managed`, with the CAs of what the kube-controller-manager signs for kubelets
//! (openshift/cluster-machine-approver, `pkg/controller/controller.go`: `kubeletCAConfigMap`; openshift/cluster-kube-apiserver-operator, where it is the part
//! for kubelets of the API server's client CAs). `kube-apiserver-client-ca` has those of administrators and of the control plane besides, whose word is none
//! about a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use serde_json::Value;

use super::{Cluster, ClusterError, Kept, keep_by_fields};
use crate::causes::with_causes;
use crate::credentials::kubelet::Authorities;
use crate::files;

/// How the watch is called in messages.
const CLIENT_CA: &str = "kubelet client CAs";
const NAMESPACE: &str = "openshift-config-managed";
const NAME: &str = "csr-controller-ca";
const FIELDS: &str = "metadata.name=csr-controller-ca";
/// Largest bundle that is looked at, in bytes; an object has 1 MiB at most, and some CAs have some kilobytes.
const BUNDLE_LIMIT_BYTES: usize = 256 * 1024;
/// Certificates are nobody's secret.
const MODE: u32 = 0o644;

/// What is looked at of the ConfigMap.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Value")]
struct ConfigMap {
    metadata: ObjectMeta,
    bundle: Option<String>,
}

impl From<Value> for ConfigMap {
    fn from(mut object: Value) -> Self {
        let bundle = object.pointer("/data/ca-bundle.crt").and_then(Value::as_str);
        let bundle = bundle.filter(|bundle| bundle.len() <= BUNDLE_LIMIT_BYTES).map(str::to_owned);
        let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_default();
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
        Self {
            bundle,
            metadata: ObjectMeta {
                managed_fields: None,
                ..metadata
            },
        }
    }
}

impl k8s_openapi::Resource for ConfigMap {
    type Scope = NamespaceResourceScope;

    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "ConfigMap";
    const URL_PATH_SEGMENT: &'static str = "configmaps";
    const VERSION: &'static str = "v1";
}

impl k8s_openapi::Metadata for ConfigMap {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Asks once.
pub(super) async fn look(cluster: &Cluster) -> (&'static str, Result<(), ClusterError>) {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let one = ListParams::default().limit(1).fields(FIELDS);
    (CLIENT_CA, cluster.ask(CLIENT_CA, api.list_metadata(&one)).await.map(drop))
}

/// Keeps the file as the cluster has it, for as long as it is polled.
pub async fn keep_client_ca(cluster: Arc<Cluster>, path: PathBuf) {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let (kept, keeping) = keep_by_fields(&api, (), FIELDS, CLIENT_CA, cluster.health());
    tokio::join!(keeping.run(), write_each(kept, &path));
}

async fn write_each(mut kept: Kept<ConfigMap>, path: &Path) {
    if !path.exists() {
        tracing::warn!("cluster: {CLIENT_CA}: the cluster has not told them yet; kubelets are told to come again");
    }
    loop {
        kept.changed().await;
        let all = kept.all().unwrap_or_default();
        let bundle = all.iter().find(|object| object.metadata.name.as_deref() == Some(NAME));
        match bundle.and_then(|object| object.bundle.clone()) {
            None => tracing::error!("cluster: {CLIENT_CA}: {NAMESPACE}/{NAME} has no ca-bundle.crt; those that were known last are used"),
            Some(bundle) => {
                let path = path.to_owned();
                let written = tokio::task::spawn_blocking(move || write(&path, &bundle)).await;
                match written.unwrap_or_else(|error| Err(error.to_string())) {
                    Ok(false) => {}
                    Ok(true) => tracing::info!("cluster: {CLIENT_CA}: they are now those of {NAMESPACE}/{NAME}"),
                    Err(problem) => {
                        tracing::error!("cluster: {CLIENT_CA}: {NAMESPACE}/{NAME}: {problem}; those that were known last are used");
                    }
                }
            }
        }
    }
}

/// Writes the file, if it is otherwise; a bundle that could not be used never is: the next start would fail by it.
fn write(path: &Path, bundle: &str) -> Result<bool, String> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == bundle) {
        return Ok(false);
    }
    let candidate = path.with_extension("new");
    files::replace(&candidate, MODE, bundle).map_err(|error| with_causes(&error))?;
    let loaded = Authorities::load(&candidate);
    files::remove(&candidate).map_err(|error| with_causes(&error))?;
    loaded.map_err(|error| with_causes(&error))?;
    files::replace(path, MODE, bundle).map_err(|error| with_causes(&error))?;
    Ok(true)
}
