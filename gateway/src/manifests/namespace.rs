//! Where the gateway's objects are, and what else may run there: nothing.

use super::{NAME, Namespace};

/// The namespace. It is one of its own: in `openshift-machine-config-operator`, where the Machine Config Server's key is, machine-config-daemon's
/// account, which every node of the cluster has, may change any ConfigMap, and so the pools' rules.
pub(super) fn namespace(name: &Namespace) -> String {
    format!(
        "apiVersion: v1
kind: Namespace
metadata:
  name: {name}
  labels:
    # The host's network and a folder of the host are what pod security calls privileged. Who else may run there what is decided by the
    # SecurityContextConstraints, and these labels are not to be made up from them.
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/audit: privileged
    pod-security.kubernetes.io/warn: privileged
    security.openshift.io/scc.podSecurityLabelSync: \"false\"
  annotations:
    # A default node selector of the cluster would keep the pods from control-plane hosts.
    openshift.io/node-selector: \"\"
"
    )
}

/// Nothing goes to or from pods of this namespace: it has none but the gateway's, which are on their hosts' network, where no policy applies.
pub(super) fn network_policy(namespace: &Namespace) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {NAME}-nothing-else
  namespace: {namespace}
spec:
  # No NetworkPolicy applies to the gateway's own pods, which are on their hosts' network. This is for whatever else is started here.
  podSelector: {{}}
  policyTypes: [Ingress, Egress]
"
    )
}
