//! Machine objects and Nodes, kept as they change: which instances the cluster has made, and which of them have joined.
//!
//! These parts of a Machine object (`machine.openshift.io/v1beta1`, openshift/api `machine/v1beta1/types_machine.go`) are looked at: its
//! controller, by `metadata.ownerReferences`; the labels by which the control plane's are known, which a ControlPlaneMachineSet has to give
//! (openshift/api `machine/v1/types_controlplanemachineset.go`); `spec.providerID`; `status.nodeRef`; `status.phase`; and on AWS
//! `status.providerStatus.instanceId`, which is there earlier than the `providerID`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use attest::MachineObject;
use attest::machine_objects::provider_id_of_aws;
use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, WatchStatus, keep};
use attest_machines::objects::{MachineObjects, ObjectSnapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{Api, ListParams};
use kube::core::Selector;
use serde::Deserialize;
use serde_json::Value;

/// Names of the watches in messages.
const MACHINES: &str = "machines";
const NODES: &str = "nodes";
/// Pause between two updates: Nodes change all the time, and each update goes through all of them.
const TAKE_OVER_EVERY: Duration = Duration::from_millis(200);
/// The role of machines of the control plane, as their labels have it.
const CONTROL_PLANE: &str = "master";

/// The parts of a Machine object that are looked at.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "LenientObject")]
struct WatchedMachine {
    metadata: ObjectMeta,
    object: MachineObject,
}

/// The parts of a Node that are looked at.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "WholeNode")]
struct WatchedNode {
    metadata: ObjectMeta,
    provider_id: String,
}

/// An object as it comes. A field of another type than it should be is as good as none, so that one bad object does not hide the others.
#[derive(Deserialize)]
struct LenientObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

/// A Node as it comes, without its status, which lists all its images.
#[derive(Deserialize)]
struct WholeNode {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

impl k8s_openapi::Resource for WatchedMachine {
    type Scope = NamespaceResourceScope;

    const API_VERSION: &'static str = "machine.openshift.io/v1beta1";
    const GROUP: &'static str = "machine.openshift.io";
    const KIND: &'static str = "Machine";
    const URL_PATH_SEGMENT: &'static str = MACHINES;
    const VERSION: &'static str = "v1beta1";
}

impl k8s_openapi::Metadata for WatchedMachine {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl k8s_openapi::Resource for WatchedNode {
    type Scope = ClusterResourceScope;

    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Node";
    const URL_PATH_SEGMENT: &'static str = NODES;
    const VERSION: &'static str = "v1";
}

impl k8s_openapi::Metadata for WatchedNode {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<LenientObject> for WatchedMachine {
    fn from(LenientObject { metadata, spec, status }: LenientObject) -> Self {
        let object = MachineObject {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            provider_id: provider_id(&spec, &status),
            created: created(&metadata),
            machine_set: controller(&metadata, "MachineSet"),
            control_plane: is_of_control_plane(&metadata),
            ends: ends(&metadata, &status),
            node: node(&status),
        };
        Self {
            metadata: identified(metadata),
            object,
        }
    }
}

impl From<WholeNode> for WatchedNode {
    fn from(WholeNode { metadata, spec }: WholeNode) -> Self {
        Self {
            metadata: identified(metadata),
            provider_id: text(&spec, "/providerID").unwrap_or_default().to_owned(),
        }
    }
}

/// Returns the metadata of an object that a watch needs.
fn identified(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the instance that it names: by its `providerID`, or as soon as AWS has given the instance an id.
fn provider_id(spec: &Value, status: &Value) -> String {
    let said = text(spec, "/providerID").map(Cow::Borrowed);
    let of_aws = || {
        let id = text(status, "/providerStatus/instanceId").filter(|id| id.starts_with("i-"))?;
        let of_aws = text(status, "/providerStatus/kind").is_some_and(|kind| kind == "AWSMachineProviderStatus");
        of_aws.then(|| provider_id_of_aws(id).into())
    };
    said.or_else(of_aws).unwrap_or_default().into_owned()
}

/// Returns its creation time, in seconds since 1970. An object without one is younger than any instance.
fn created(metadata: &ObjectMeta) -> u64 {
    let seconds = metadata.creation_timestamp.as_ref().map(|created| created.0.as_second());
    seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(u64::MAX)
}

/// Returns the name of its controller, if that is of this kind of the Machine API's.
fn controller(metadata: &ObjectMeta, kind: &str) -> Option<String> {
    let owners = metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let owner = controllers.find(|owner| owner.kind == kind && owner.api_version.starts_with("machine.openshift.io/"))?;
    Some(owner.name.clone())
}

fn is_of_control_plane(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    let labelled = |name: &str| labels.and_then(|labels| labels.get(name)).is_some_and(|role| role == CONTROL_PLANE);
    labelled("machine.openshift.io/cluster-api-machine-role")
        || labelled("machine.openshift.io/cluster-api-machine-type")
        || controller(metadata, "ControlPlaneMachineSet").is_some()
}

fn ends(metadata: &ObjectMeta, status: &Value) -> bool {
    metadata.deletion_timestamp.is_some() || matches!(text(status, "/phase"), Some("Deleting" | "Failed"))
}

/// Returns the name of its Node. An unreadable reference counts as a Node, too.
fn node(status: &Value) -> Option<String> {
    let node = status.get("nodeRef").filter(|node| !node.is_null())?;
    Some(text(node, "/name").unwrap_or("unnamed").to_owned())
}

fn apis(cluster: &ClusterClient, namespace: &str) -> (Api<WatchedMachine>, Api<WatchedNode>) {
    (Api::namespaced(cluster.client(), namespace), Api::all(cluster.client()))
}

/// Asks once for each of both.
pub(super) async fn check_access(cluster: &ClusterClient, namespace: &str) -> [(&'static str, Result<(), ClusterError>); 2] {
    let (of_machines, of_nodes) = apis(cluster, namespace);
    let one = ListParams::default().limit(1);
    let (machines, nodes) = tokio::join!(
        cluster.ask(MACHINES, of_machines.list_metadata(&one)),
        cluster.ask(NODES, of_nodes.list_metadata(&one))
    );
    [(MACHINES, machines.map(drop)), (NODES, nodes.map(drop))]
}

/// Returns the time since when the watch on Machine objects or on Nodes is broken.
pub fn failing_since(cluster: &ClusterClient) -> Option<u64> {
    let watches = cluster.health().watches();
    let since = |what: &str| match watches.get(what) {
        Some(WatchStatus::Away { since, .. }) => Some(*since),
        _ => None,
    };
    since(MACHINES).into_iter().chain(since(NODES)).min()
}

/// Keeps what is known of the Machine objects up to date, for as long as it is polled.
pub async fn keep_machines(cluster: Arc<ClusterClient>, namespace: String, machines: Arc<MachineObjects>) {
    let (of_machines, of_nodes) = apis(&cluster, &namespace);
    let (kept_machines, keeping_machines) = keep(&of_machines, (), &Selector::default(), MACHINES, cluster.health());
    let (kept_nodes, keeping_nodes) = keep(&of_nodes, (), &Selector::default(), NODES, cluster.health());
    tokio::join!(
        keeping_machines.run(),
        keeping_nodes.run(),
        take_over(kept_machines, kept_nodes, &machines)
    );
}

async fn take_over(mut of_machines: WatchCache<WatchedMachine>, mut of_nodes: WatchCache<WatchedNode>, machines: &MachineObjects) {
    loop {
        tokio::select! {
            () = of_machines.changed() => {}
            () = of_nodes.changed() => {}
        }
        // Without the Nodes nobody could say that a machine is none of them.
        if let (Some(objects), Some(nodes)) = (of_machines.all(), of_nodes.all()) {
            let nodes = nodes
                .iter()
                .filter_map(|node| Some((node.provider_id.clone(), node.metadata.name.clone()?)));
            machines.replace(ObjectSnapshot::from_objects(
                objects.iter().map(|machine| machine.object.clone()),
                nodes,
            ));
        }
        tokio::time::sleep(TAKE_OVER_EVERY).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    const AWS: &str = "aws:///eu-central-1a/i-0123456789abcdef0";

    fn machine() -> Value {
        json!({
            "metadata": {
                "name": "worker-a-x7k2p",
                "uid": "u",
                "creationTimestamp": "2026-02-16T00:38:27Z",
                "labels": {
                    "machine.openshift.io/cluster-api-machine-role": "worker",
                    "machine.openshift.io/cluster-api-machine-type": "worker",
                    "machine.openshift.io/cluster-api-machineset": "worker-a",
                },
                "ownerReferences": [
                    {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": "worker-a", "uid": "s", "controller": true},
                ],
            },
            "spec": {"providerID": AWS, "providerSpec": {"value": {"any": ["thing"]}}},
            "status": {"phase": "Provisioned", "providerStatus": {"kind": "AWSMachineProviderStatus", "instanceId": "i-0123456789abcdef0"}},
        })
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Value), expect: impl Fn(&mut MachineObject)) {
        let (mut changed, mut expected) = (
            machine(),
            MachineObject {
                name: "worker-a-x7k2p".to_owned(),
                uid: "u".to_owned(),
                provider_id: AWS.to_owned(),
                created: 1_771_202_307,
                machine_set: Some("worker-a".to_owned()),
                control_plane: false,
                ends: false,
                node: None,
            },
        );
        change(&mut changed);
        expect(&mut expected);
        assert_eq!(
            serde_json::from_value::<WatchedMachine>(changed.clone()).unwrap().object,
            expected,
            "{changed}"
        );
    }

    #[test]
    fn reads_the_fields_of_a_machine_object() {
        check(|_| {}, |_| {});
        check(
            |machine| machine["status"]["nodeRef"] = json!({"kind": "Node", "name": "n"}),
            |object| object.node = Some("n".to_owned()),
        );
        check(
            |machine| machine["metadata"]["deletionTimestamp"] = json!("2026-02-16T00:40:00Z"),
            |object| object.ends = true,
        );
        for (phase, ends) in [("Provisioning", false), ("Running", false), ("Deleting", true), ("Failed", true)] {
            check(|machine| machine["status"]["phase"] = json!(phase), |object| object.ends = ends);
        }
        let (role, kind) = (
            "machine.openshift.io/cluster-api-machine-role",
            "machine.openshift.io/cluster-api-machine-type",
        );
        for label in [role, kind] {
            check(
                |machine| machine["metadata"]["labels"][label] = json!("master"),
                |object| object.control_plane = true,
            );
        }
        let owner = |machine: &mut Value, field: &str, value: Value| machine["metadata"]["ownerReferences"][0][field] = value;
        check(
            |machine| owner(machine, "kind", json!("ControlPlaneMachineSet")),
            |object| (object.machine_set, object.control_plane) = (None, true),
        );
        // A label is no machine set, and who only owns it does not control it.
        check(
            |machine| machine["metadata"]["ownerReferences"] = json!([]),
            |object| object.machine_set = None,
        );
        check(
            |machine| owner(machine, "controller", json!(false)),
            |object| object.machine_set = None,
        );
        check(
            |machine| owner(machine, "apiVersion", json!("example.com/v1")),
            |object| object.machine_set = None,
        );
    }

    #[test]
    fn derives_an_aws_provider_id_from_provider_status() {
        let without = |machine: &mut Value| machine["spec"]["providerID"] = Value::Null;
        check(without, |object| object.provider_id = "aws:////i-0123456789abcdef0".to_owned());
        let other_cloud = |machine: &mut Value| {
            without(machine);
            machine["status"]["providerStatus"]["kind"] = json!("GCPMachineProviderStatus");
        };
        check(other_cloud, |object| object.provider_id = String::new());
    }

    #[test]
    fn wrongly_typed_machine_fields_never_help_admission() {
        let nothing = |object: &mut MachineObject| object.provider_id = String::new();
        check(|machine| (machine["spec"], machine["status"]) = (json!(7), json!([])), nothing);
        check(
            |machine| (machine["spec"]["providerID"], machine["status"]) = (json!(["x"]), Value::Null),
            nothing,
        );
        check(
            |machine| machine["status"]["nodeRef"] = json!(true),
            |object| object.node = Some("unnamed".to_owned()),
        );
        let unmade = |machine: &mut Value| drop(machine["metadata"].as_object_mut().unwrap().remove("creationTimestamp"));
        check(unmade, |object| object.created = u64::MAX);
    }

    #[test]
    fn caches_only_name_and_provider_id_of_nodes() {
        let check = |spec: Value, expect: &str| {
            let node = json!({"metadata": {"name": "n", "annotations": {"a": "b"}}, "spec": spec, "status": {"images": [1, 2]}});
            let node: WatchedNode = serde_json::from_value(node).unwrap();
            assert_eq!((node.provider_id.as_str(), node.metadata.annotations), (expect, None));
        };
        check(json!({"providerID": AWS}), AWS);
        check(json!({"providerID": 7}), "");
        check(Value::Null, "");
    }
}
