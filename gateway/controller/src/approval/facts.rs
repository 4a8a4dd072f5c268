//! Facts about machines and nodes from the cluster's API, as far as a request is judged by them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use attest_certificates::kubelet::NamePatterns;
use attest_machines::attested::Provider;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize;

use crate::settings::ApprovedKeys;

/// Label by which the Machine API gives a machine its role (openshift/api `machine/v1beta1`, `MachineClusterRoleLabel` of the
/// machine-api-operator).
const ROLE_LABEL: &str = "machine.openshift.io/cluster-api-machine-role";
/// Role of a host of the control plane, by that label.
pub const CONTROL_PLANE_ROLE: &str = "master";
/// Labels of a node of the control plane.
const CONTROL_PLANE_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Most addresses that are looked at of one object.
const ADDRESSES_LIMIT: usize = 256;

/// Most egress addresses that are looked at of a cluster: clusters have dozens.
const EGRESS_ADDRESSES_LIMIT: usize = 10_000;

/// Names and addresses of a host: a serving certificate may be for these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Names, without the dot at the end.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Addresses {
    fn from_pairs<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut found = Self::default();
        for (kind, address) in all.take(ADDRESSES_LIMIT) {
            match (kind, address.parse::<IpAddr>()) {
                // A kubelet puts a host name that is an address among the addresses (`addressesToHostnamesAndIPs`).
                ("InternalIP" | "ExternalIP" | "Hostname", Ok(address)) => found.addresses.push(address),
                ("InternalDNS" | "ExternalDNS" | "Hostname", Err(_)) => found.names.push(address.trim_end_matches('.').to_owned()),
                _ => {}
            }
        }
        found
    }

    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// A Machine of the Machine API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineApiMachine {
    /// Its name, as `NAMESPACE/NAME`.
    pub id: String,
    pub role: Option<String>,
    pub provider_id: Option<String>,
    /// The node that it has become.
    pub node: Option<String>,
    /// Its names inside of the cluster: what its node will be called (cluster-machine-approver, `FindMatchingMachineFromInternalDNS`).
    pub internal_names: Vec<String>,
    pub addresses: Addresses,
    /// Set if it is being removed.
    pub going: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MachineSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MachineStatus {
    node_ref: Option<NodeRef>,
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct NodeRef {
    name: String,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl MachineApiMachine {
    /// Reads one. `None` if it is not what a Machine is.
    #[must_use]
    pub fn from_object(object: &DynamicObject) -> Option<Self> {
        let spec = object
            .data
            .get("spec")
            .map_or(Ok(MachineSpec::default()), MachineSpec::deserialize)
            .ok()?;
        let status = object
            .data
            .get("status")
            .map_or(Ok(MachineStatus::default()), MachineStatus::deserialize)
            .ok()?;
        let all = || status.addresses.iter().map(|one| (one.kind.as_str(), one.address.as_str()));
        let internal = all().filter(|(kind, _)| *kind == "InternalDNS").take(ADDRESSES_LIMIT);
        Some(Self {
            id: format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()),
            role: object.labels().get(ROLE_LABEL).cloned(),
            provider_id: spec.provider_id,
            internal_names: internal.map(|(_, name)| name.trim_end_matches('.').to_owned()).collect(),
            addresses: Addresses::from_pairs(all()),
            node: status.node_ref.map(|node| node.name),
            going: object.metadata.deletion_timestamp.is_some(),
        })
    }

    /// Returns whether its node will have this name.
    #[must_use]
    pub fn will_be(&self, name: &str) -> bool {
        self.internal_names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns the cloud instance that it is, if attestation can identify one.
    #[must_use]
    pub fn provider(&self) -> Option<Provider> {
        self.provider_id.as_deref().and_then(Provider::read)
    }
}

/// Facts about one Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub is_control_plane: bool,
    pub addresses: Addresses,
}

impl NodeFacts {
    #[must_use]
    pub fn from_node(node: &Node) -> Self {
        let status = node.status.as_ref();
        let all = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        Self {
            addresses: Addresses::from_pairs(all.iter().map(|one| (one.type_.as_str(), one.address.as_str()))),
            ..Self::from_metadata(&node.metadata)
        }
    }

    /// Returns the facts that are in a Node's metadata.
    #[must_use]
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        let has = |label: &&str| metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(*label));
        Self {
            is_control_plane: CONTROL_PLANE_LABELS.iter().any(has),
            addresses: Addresses::default(),
        }
    }
}

/// The nodes of egress addresses of OVN-Kubernetes (`status.items` of EgressIPs of k8s.ovn.org), by address. Kubelets put the addresses of
/// all their interfaces into the CSRs of their serving certificates, and Machine objects do not list these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressAddresses(BTreeMap<IpAddr, String>);

impl EgressAddresses {
    /// Takes up the addresses of one EgressIP object, as many as there is room for.
    pub fn add(&mut self, assigned: &[EgressItem]) {
        for EgressItem { node, egress_ip } in assigned.iter().take(ADDRESSES_LIMIT) {
            if let Ok(address) = egress_ip.parse()
                && self.0.len() < EGRESS_ADDRESSES_LIMIT
            {
                self.0.insert(address, node.clone());
            }
        }
    }

    /// Returns whether the node has this egress address.
    #[must_use]
    pub fn is_of(&self, address: IpAddr, node: &str) -> bool {
        self.0.get(&address).is_some_and(|of| of == node)
    }
}

/// An address that is assigned to a node (`EgressIPStatusItem` in `go-controller/pkg/crd/egressip/v1/types.go` of ovn-kubernetes).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EgressItem {
    pub node: String,
    #[serde(rename = "egressIP")]
    pub egress_ip: String,
}

/// Rules of approval, from the administrator's settings and from the pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRules {
    /// Seconds after a machine's attestation in which its client certificate is approved.
    pub within_seconds: u64,
    /// User that requests client certificates; it has to be in exactly these groups.
    pub requester: String,
    pub groups: Vec<String>,
    /// Machines of which pools are approved.
    pub pools: Vec<String>,
    /// Those of them that are the control plane's.
    pub control_plane_pools: Vec<String>,
    /// Set if each node has a Machine object.
    pub machines: bool,
    /// Set if a name counts that the machine itself has asked for.
    pub asked_names: bool,
    /// Kubelet keys that are approved.
    pub keys: ApprovedKeys,
    /// The names of nodes that pools have said, of all pools that are served.
    pub names: BTreeMap<String, NamePatterns>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(spec: &Value, status: &Value) -> Option<MachineApiMachine> {
        let object = json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n", "labels": {ROLE_LABEL: "worker"}}, "spec": spec, "status": status,
        });
        MachineApiMachine::from_object(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn reads_addresses_and_node_of_a_machine_object() {
        let addresses = json!([
            {"type": "InternalDNS", "address": "worker-1.example.com."},
            {"type": "Hostname", "address": "10.0.0.9"},
            {"type": "InternalIP", "address": "10.0.0.7"},
            {"type": "ExternalIP", "address": "nonsense"},
            {"type": "Else", "address": "10.0.0.8"},
        ]);
        let read = machine(
            &json!({"providerID": "aws:///us-east-1a/i-0"}),
            &json!({"nodeRef": {"name": "worker-1"}, "addresses": addresses}),
        );
        let read = read.unwrap();
        assert_eq!(
            (read.id.as_str(), read.role.as_deref(), read.node.as_deref()),
            ("n/m", Some("worker"), Some("worker-1"))
        );
        assert!(read.will_be("worker-1.example.com") && read.will_be("WORKER-1.example.com") && !read.will_be("worker-1"));
        assert!(!read.will_be("10.0.0.9"));
        assert_eq!(
            read.addresses.addresses,
            ["10.0.0.9", "10.0.0.7"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        assert!(read.provider().is_some() && !read.going);
        assert_eq!(machine(&json!({}), &json!({})).unwrap().internal_names, Vec::<String>::new());
        assert_eq!(machine(&json!({}), &json!({"nodeRef": null})).unwrap().node, None);
    }

    #[test]
    fn rejects_a_malformed_machine_object() {
        for (spec, status) in [
            (json!(7), json!({})),
            (json!({"providerID": 7}), json!({})),
            (json!({}), json!("x")),
            (json!({}), json!({"addresses": {"type": "InternalDNS"}})),
            (json!({}), json!({"addresses": [{"type": "InternalDNS"}]})),
            (json!({}), json!({"nodeRef": {"name": 1}})),
        ] {
            assert_eq!(machine(&spec, &status), None, "{spec} {status}");
        }
        let many = vec![json!({"type": "InternalDNS", "address": "a"}); 100_000];
        assert_eq!(
            machine(&json!({}), &json!({"addresses": many})).unwrap().internal_names.len(),
            ADDRESSES_LIMIT
        );
    }
}
