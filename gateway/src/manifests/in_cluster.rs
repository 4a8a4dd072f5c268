//! All objects of a gateway in a cluster but its settings: the files of `gateway/dist/kubernetes`, with a cluster's own values filled in.

use std::collections::BTreeSet;

use super::monitoring;
use super::{ApiFeature, GatewayImage, NAME, Namespace, PoolName};

const NAMESPACE: &str = include_str!("../../dist/kubernetes/base/namespace.yaml");
const NETWORK_POLICY: &str = include_str!("../../dist/kubernetes/base/network-policy.yaml");
const SERVICE_ACCOUNT: &str = include_str!("../../dist/kubernetes/base/service-account.yaml");
const SECURITY_CONTEXT: &str = include_str!("../../dist/kubernetes/overlays/openshift/security-context.yaml");
const CONTROLLER: &str = include_str!("../../dist/kubernetes/parts/controller/controller.yaml");
const DAEMON_SET: &str = include_str!("../../dist/kubernetes/base/daemon-set.yaml");

/// The image in the files, of a registry that cannot exist: kustomize and `--image` replace it.
const NO_IMAGE: &str = "registry.invalid/attest-gateway:unset";
/// The pool in the files.
const POOL_ITEM: &str = "              - key: worker.toml\n                path: worker/pool.toml\n";
const WITHOUT_TOKEN: &str = "automountServiceAccountToken: false\n";

/// A gateway on each of a cluster's control-plane hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InCluster {
    pub namespace: Namespace,
    pub image: GatewayImage,
    /// The pools that are served. Each has a file of its own.
    pub pools: BTreeSet<PoolName>,
    /// The parts that ask the API.
    pub parts: BTreeSet<ApiFeature>,
    /// Image of the proxy that lets the cluster's Prometheus read the metrics; `None`: they are not served.
    pub metrics_proxy: Option<GatewayImage>,
}

impl InCluster {
    /// Returns the objects as YAML documents, in an order in which the API accepts them one after the other.
    #[must_use]
    pub fn objects(&self) -> Vec<String> {
        let namespace = NAMESPACE.replace(&format!("\n  name: {NAME}\n"), &format!("\n  name: {}\n", self.namespace));
        let roles = self.parts.iter().map(|part| self.in_namespace(part.roles()));
        std::iter::once(namespace)
            .chain([NETWORK_POLICY, SERVICE_ACCOUNT, SECURITY_CONTEXT].map(|text| self.in_namespace(text)))
            .chain(roles)
            .chain(self.controller())
            .chain(self.monitoring())
            .chain([self.daemon_set()])
            .collect()
    }

    fn daemon_set(&self) -> String {
        let mut text = self.filled_in(DAEMON_SET);
        if let Some(proxy) = &self.metrics_proxy {
            text = monitoring::with_proxy(&text, proxy);
        }
        match self.parts.iter().all(|part| part.is_of_controller()) {
            true => text,
            false => text.replace(WITHOUT_TOKEN, "automountServiceAccountToken: true\n"),
        }
    }

    /// Returns the Deployment of `attest-controller` and its account, if a part is its own.
    fn controller(&self) -> Option<String> {
        let is_wanted = self.parts.iter().any(|part| part.is_of_controller());
        is_wanted.then(|| self.filled_in(CONTROLLER))
    }

    /// Returns the objects for the cluster's Prometheus, if it is to read the metrics.
    fn monitoring(&self) -> Vec<String> {
        let objects = self.metrics_proxy.iter().flat_map(|_| monitoring::objects());
        objects.map(|text| self.in_namespace(&text)).collect()
    }

    /// Returns a program's objects, with the image and the pools filled in.
    fn filled_in(&self, text: &str) -> String {
        let pools: Vec<String> = self
            .pools
            .iter()
            .map(|pool| POOL_ITEM.replace("worker", &pool.to_string()))
            .collect();
        let text = self.in_namespace(text);
        text.replace(NO_IMAGE, &self.image.to_string()).replace(POOL_ITEM, &pools.concat())
    }

    /// Replaces the files' own namespace.
    fn in_namespace(&self, text: &str) -> String {
        let namespace = &self.namespace;
        text.replace(&format!("namespace: {NAME}\n"), &format!("namespace: {namespace}\n"))
            .replace(&format!(":serviceaccount:{NAME}:"), &format!(":serviceaccount:{namespace}:"))
            .replace(&format!(".{NAME}.svc\n"), &format!(".{namespace}.svc\n"))
    }
}

/// Joins objects to the input of `kubectl apply -f -`.
#[must_use]
pub fn documents(objects: &[String]) -> String {
    objects.join("---\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Returns the objects of this namespace, image and pool with all parts.
    fn objects(namespace: &str, image: &str, pool: &str) -> String {
        let gateway = InCluster {
            namespace: namespace.parse().unwrap(),
            image: image.parse().unwrap(),
            pools: BTreeSet::from([pool.parse().unwrap()]),
            parts: ApiFeature::ALL.into(),
            metrics_proxy: Some("registry.example.com/proxy:1".parse().unwrap()),
        };
        documents(&gateway.objects())
    }

    #[test]
    fn every_value_is_filled_in() {
        let text = objects("elsewhere", "registry.example.com/ours:1", "infra");
        for left in [
            "namespace: attest-gateway\n",
            "kind: Namespace\nmetadata:\n  name: attest-gateway\n",
            ":serviceaccount:attest-gateway:",
            ".attest-gateway.svc",
            "registry.invalid",
            "worker.toml",
            WITHOUT_TOKEN.trim_end(),
        ] {
            let place = text.find(left);
            // The accounts themselves have no token; their pods have.
            let is_account = left.starts_with("automount") && text.matches(left).count() == 3;
            assert!(place.is_none() || is_account, "{left}");
        }
        for filled in [
            "kind: Namespace\nmetadata:\n  name: elsewhere\n",
            "'system:serviceaccount:elsewhere:attest-controller'",
            "          image: registry.example.com/ours:1\n",
            "              - key: infra.toml\n                path: infra/pool.toml\n",
            "      automountServiceAccountToken: true\n",
        ] {
            assert!(text.contains(filled), "{filled}");
        }
        let bound = |account: &str| {
            let subject = format!("  - kind: ServiceAccount\n    name: {account}\n    namespace: elsewhere\n");
            text.matches(&subject).count()
        };
        assert_eq!(
            bound("attest-gateway") + bound("attest-controller") + bound("attest-gateway-scraper"),
            text.matches("Binding\n").count() - text.matches("PolicyBinding\n").count()
        );
    }

    #[test]
    fn daemon_set_mounts_each_pool_once() {
        let mut gateway = InCluster {
            namespace: NAME.parse().unwrap(),
            image: NO_IMAGE.parse().unwrap(),
            pools: BTreeSet::new(),
            parts: BTreeSet::new(),
            metrics_proxy: None,
        };
        gateway.pools.extend(["worker", "infra"].map(|pool| pool.parse().unwrap()));
        let text = gateway.daemon_set();
        assert_eq!(text.matches("/pool.toml\n").count(), 2, "{text}");
        assert!(text.contains("key: infra.toml") && text.contains("key: worker.toml"), "{text}");
    }
}
