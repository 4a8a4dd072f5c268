//! The CAs that sign kubelets' client certificates, as the cluster has them. They are kept in a file of the gateway's own, and used like
//! those of `tls.client_ca`. So they are there at the next start, whether the API is there or not.
//!
//! They are in the ConfigMap `csr-controller-ca` in `openshift-config-managed`: the CAs of what the kube-controller-manager signs for
//! kubelets (openshift/cluster-machine-approver, `pkg/controller/controller.go`: `kubeletCAConfigMap`). In
//! openshift/cluster-kube-apiserver-operator it is the part for kubelets of the API server's client CAs. `kube-apiserver-client-ca` also
//! has those of administrators and of the control plane, whose signatures prove nothing about a node.

use std::path::PathBuf;
use std::sync::Arc;

use attest_cluster_api::cached_object::{Bundle, ObjectName, One};
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_system::files::PUBLIC;
use zeroize::Zeroizing;

use super::copies::{CopiedFile, now_and_then};
use attest_certificates::kubelet::Authorities;

const CLIENT_CA: ObjectName = ObjectName {
    what: "kubelet client CAs",
    namespace: "openshift-config-managed",
    name: "csr-controller-ca",
};

/// Checks once whether the CAs can be read.
pub(super) async fn check_access(cluster: &ClusterClient) -> (&'static str, Result<(), ClusterError>) {
    CLIENT_CA.check_access::<Bundle>(cluster).await
}

/// Keeps the file as the cluster has it, for as long as it is polled.
pub async fn keep_client_ca(cluster: Arc<ClusterClient>, path: PathBuf) {
    let (one, keeping) = CLIENT_CA.keep(&cluster);
    tokio::join!(keeping.run(), follow(one, path));
}

async fn follow(mut one: One<Bundle>, path: PathBuf) {
    if !path.exists() {
        tracing::warn!(
            "cluster: {}: not read from the cluster yet; answering kubelets 503 with Retry-After",
            CLIENT_CA.what
        );
    }
    let mut copied = CopiedFile::new(CLIENT_CA.what, path, PUBLIC);
    let mut every = now_and_then();
    loop {
        tokio::select! {
            () = one.changed() => {}
            _ = every.tick() => {}
        }
        if let Some(bundle) = one.now() {
            copied.take(made(bundle)).await;
        }
    }
}

/// Returns a bundle that can be used. Another is never written: the next start would fail by it.
fn made(bundle: Option<Bundle>) -> Result<Zeroizing<String>, String> {
    let Some(Bundle(Some(text))) = bundle else {
        return Err(format!("{CLIENT_CA} has no ca-bundle.crt"));
    };
    Authorities::from_pem(&text).map_err(|problem| format!("{CLIENT_CA}: {problem}"))?;
    Ok(Zeroizing::new(text))
}
