//! The supported kinds, and their discovery by clients.

use serde_json::{Value, json};

use super::custom_resources;
use super::objects::ObjectStore;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// Set if its objects are in a namespace.
    pub namespaced: bool,
    /// Subresources, which are written separately.
    pub subresources: &'static [&'static str],
}

const STATUS: &[&str] = &["status"];
const MCO: &str = "machineconfiguration.openshift.io";
const MACHINES: &str = "machine.openshift.io";
const MONITORING: &str = "monitoring.coreos.com";
const ADMISSION: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
/// The group of kinds that exist only while a CustomResourceDefinition defines them.
const CUSTOM: &str = "attest-gateway.internal";

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    subresources: &'static [&'static str],
) -> ResourceKind {
    ResourceKind {
        group,
        version,
        kind,
        plural,
        namespaced,
        subresources,
    }
}

/// All kinds that this server supports.
pub(super) const KINDS: [ResourceKind; 34] = [
    kind("", "v1", "Namespace", "namespaces", false, STATUS),
    kind("", "v1", "Node", "nodes", false, STATUS),
    kind("", "v1", "ConfigMap", "configmaps", true, &[]),
    kind("", "v1", "Secret", "secrets", true, &[]),
    kind("", "v1", "ServiceAccount", "serviceaccounts", true, &[]),
    kind("", "v1", "Event", "events", true, &[]),
    kind("", "v1", "Service", "services", true, STATUS),
    kind("apps", "v1", "DaemonSet", "daemonsets", true, STATUS),
    kind("apps", "v1", "Deployment", "deployments", true, STATUS),
    kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true, STATUS),
    kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", true, &[]),
    kind("coordination.k8s.io", "v1", "Lease", "leases", true, &[]),
    kind(RBAC, "v1", "Role", "roles", true, &[]),
    kind(RBAC, "v1", "RoleBinding", "rolebindings", true, &[]),
    kind(RBAC, "v1", "ClusterRole", "clusterroles", false, &[]),
    kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", false, &[]),
    kind(
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        false,
        &["status", "approval"],
    ),
    kind(MCO, "v1", "MachineConfig", "machineconfigs", false, &[]),
    kind(MCO, "v1", "MachineConfigPool", "machineconfigpools", false, STATUS),
    kind(MCO, "v1", "ControllerConfig", "controllerconfigs", false, STATUS),
    kind(MCO, "v1", "MachineOSConfig", "machineosconfigs", false, STATUS),
    kind(MCO, "v1", "MachineOSBuild", "machineosbuilds", false, STATUS),
    kind("config.openshift.io", "v1", "Infrastructure", "infrastructures", false, STATUS),
    kind(MACHINES, "v1beta1", "Machine", "machines", true, STATUS),
    kind(MACHINES, "v1beta1", "MachineSet", "machinesets", true, STATUS),
    // openshift/api: `machine/v1/types_controlplanemachineset.go`, and the definition made of it in `machine/v1/zz_generated.crd-manifests`.
    kind(MACHINES, "v1", "ControlPlaneMachineSet", "controlplanemachinesets", true, STATUS),
    kind(MONITORING, "v1", "ServiceMonitor", "servicemonitors", true, STATUS),
    kind(MONITORING, "v1", "PrometheusRule", "prometheusrules", true, STATUS),
    kind("k8s.ovn.org", "v1", "EgressIP", "egressips", false, &[]),
    kind(
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
        STATUS,
    ),
    kind(
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
        &[],
    ),
    kind(
        "security.openshift.io",
        "v1",
        "SecurityContextConstraints",
        "securitycontextconstraints",
        false,
        &[],
    ),
    kind(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
        STATUS,
    ),
    kind(CUSTOM, "v1alpha1", "AttestedNode", "attestednodes", false, STATUS),
];

/// Kind for the permission to approve, by the signer's name; it has no objects (`plugin/pkg/admission/certificates/approval/admission.go`).
pub(super) const SIGNERS: ResourceKind = kind("certificates.k8s.io", "v1", "Signer", "signers", false, &[]);

impl ResourceKind {
    /// Returns all supported kinds.
    #[must_use]
    pub const fn all() -> &'static [Self] {
        &KINDS
    }

    /// Returns the kind with this plural name, as `kubectl` uses it.
    #[must_use]
    pub fn by_plural(plural: &str) -> Self {
        *KINDS
            .iter()
            .find(|kind| kind.plural == plural)
            .unwrap_or_else(|| panic!("no {plural}"))
    }

    /// Returns whether it exists only while a CustomResourceDefinition does.
    pub(super) fn is_custom(&self) -> bool {
        self.group == CUSTOM
    }

    pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<Self> {
        let is_it = |kind: &&Self| (kind.group, kind.version, kind.plural) == (group, version, plural);
        KINDS.iter().find(is_it).copied()
    }

    /// Returns the kind, namespace and name of an object.
    pub(super) fn identify(object: &Value) -> (Self, String, String) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, name) = (text("/apiVersion"), text("/kind"));
        let kind = KINDS.iter().find(|kind| kind.api_version() == api_version && kind.kind == name);
        let kind = *kind.unwrap_or_else(|| panic!("no kind {api_version} {name}"));
        (kind, text("/metadata/namespace"), text("/metadata/name"))
    }

    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the name of the kind in errors.
    pub(super) fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

/// Returns the discovery document at a path, if it is one.
pub(super) fn discovery(path: &str, objects: &ObjectStore) -> Option<Value> {
    match path {
        "/version" => Some(json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"})),
        "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        "/apis" => {
            // A group with several versions is one group, of which each kind is in one of them here: <https://kubernetes.io/docs/concepts/overview/kubernetes-api/>,
            // and `APIGroup` in `staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go`.
            let there = KINDS
                .iter()
                .filter(|kind| custom_resources::exists(objects, **kind) && !kind.group.is_empty());
            let mut groups: Vec<(&str, Vec<Value>)> = Vec::new();
            for kind in there {
                let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
                match groups.iter_mut().find(|(group, _)| *group == kind.group) {
                    Some((_, versions)) if versions.contains(&version) => {}
                    Some((_, versions)) => versions.push(version),
                    None => groups.push((kind.group, vec![version])),
                }
            }
            // One whose definition serves other versions only.
            let others = custom_resources::other_versions(objects, CUSTOM);
            if !others.is_empty() {
                groups.push((CUSTOM, others));
            }
            let group =
                |(group, versions): (&str, Vec<Value>)| json!({"name": group, "preferredVersion": versions[0], "versions": versions});
            let groups: Vec<Value> = groups.into_iter().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        _ => resources(path, objects),
    }
}

fn resources(path: &str, objects: &ObjectStore) -> Option<Value> {
    let group_version = path
        .strip_prefix("/apis/")
        .or_else(|| path.strip_prefix("/api/").filter(|rest| *rest == "v1"))?;
    let is_it = |kind: &&ResourceKind| kind.api_version() == group_version && custom_resources::exists(objects, **kind);
    let kinds: Vec<&ResourceKind> = KINDS.iter().filter(is_it).collect();
    if kinds.is_empty() {
        return None;
    }
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let mut resources = Vec::new();
    for kind in kinds {
        let singular = kind.kind.to_lowercase();
        let mut resource =
            json!({"name": kind.plural, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs});
        if kind.is_custom() {
            resource["shortNames"] = custom_resources::short_names(objects, *kind);
        }
        resources.push(resource);
        for sub in kind.subresources {
            let name = format!("{}/{sub}", kind.plural);
            resources.push(json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": ["get", "patch", "update"]}));
        }
    }
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}))
}
