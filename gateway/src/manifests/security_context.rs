//! What OpenShift lets the gateway's pods have of their hosts.

use super::{NAME, Namespace, USER};

/// The constraints, and the right to use them, for the gateway's account alone.
pub(super) fn constraints(namespace: &Namespace) -> [String; 3] {
    let constraints = format!(
        "apiVersion: security.openshift.io/v1
kind: SecurityContextConstraints
metadata:
  name: {NAME}
allowHostNetwork: true
allowHostPorts: true
# For the state, and what keeps it on its host.
allowHostDirVolumePlugin: true
volumes: [configMap, hostPath, projected, secret]
allowHostIPC: false
allowHostPID: false
allowPrivilegedContainer: false
allowPrivilegeEscalation: false
defaultAllowPrivilegeEscalation: false
requiredDropCapabilities: [ALL]
# For the container that gives the state's folder to the gateway's user, and ends.
allowedCapabilities: [CHOWN]
defaultAddCapabilities: null
forbiddenSysctls: [\"*\"]
readOnlyRootFilesystem: true
# That container is root, the gateway is not; the pods say so themselves.
runAsUser:
  type: RunAsAny
seLinuxContext:
  type: RunAsAny
fsGroup:
  type: MustRunAs
  ranges:
    - min: {USER}
      max: {USER}
supplementalGroups:
  type: MustRunAs
  ranges:
    - min: {USER}
      max: {USER}
seccompProfiles: [runtime/default]
users: []
groups: []
# Nobody has others to choose among.
priority: 0
"
    );
    let name = format!("{NAME}-scc");
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {name}
  namespace: {namespace}
rules:
  - apiGroups: [\"security.openshift.io\"]
    resources: [securitycontextconstraints]
    resourceNames: [{NAME}]
    verbs: [use]
"
    );
    let binding = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {name}
  namespace: {namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {name}
subjects:
  - kind: ServiceAccount
    name: {NAME}
    namespace: {namespace}
"
    );
    [constraints, role, binding]
}
