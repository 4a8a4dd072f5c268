//! All objects of a gateway in a cluster, but for its settings.

use std::collections::BTreeSet;

use super::{Image, Namespace, Part, PoolName, daemon_set, namespace, roles, security_context};

/// A gateway on each of a cluster's control-plane hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InCluster {
    pub namespace: Namespace,
    pub image: Image,
    /// Each has a file of its own.
    pub pools: BTreeSet<PoolName>,
    /// What of the API it asks.
    pub parts: BTreeSet<Part>,
}

impl InCluster {
    /// In this order they can be made one after the other.
    #[must_use]
    pub fn objects(&self) -> Vec<String> {
        let mut objects = vec![
            namespace::namespace(&self.namespace),
            namespace::network_policy(&self.namespace),
            roles::account(&self.namespace),
        ];
        objects.extend(security_context::constraints(&self.namespace));
        objects.extend(self.parts.iter().flat_map(|part| roles::of_part(*part, &self.namespace)));
        objects.push(daemon_set::daemon_set(self));
        objects
    }
}

/// Objects as `kubectl apply -f -` takes them.
#[must_use]
pub fn documents(objects: &[String]) -> String {
    objects.join("---\n")
}
