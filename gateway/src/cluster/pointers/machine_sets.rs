//! Machine sets, and which Secret has the pointer of the machines that they make.
//!
//! Where that stands: `MachineSpec.providerSpec.value.userDataSecret.name`, for each platform, in `machine/v1beta1/types_*provider.go` of openshift/api, and in a
//! ControlPlaneMachineSet below `spec.template.machines_v1beta1_machine_openshift_io` (`machine/v1/types_controlplanemachineset.go`).

use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use crate::cluster::{Cluster, ClusterError};

/// Most that are looked at: a cluster has some dozen.
const LIMIT: u32 = 500;

/// What makes machines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineSet {
    pub kind: &'static str,
    pub name: String,
    pub replicas: i64,
    /// The Secret with the pointer, in the same namespace.
    pub secret: String,
}

/// All of them in a namespace; those of a kind that the cluster does not have are none.
pub(super) async fn all(cluster: &Cluster, namespace: &str) -> Result<Vec<MachineSet>, ClusterError> {
    const SETS: &str = "/spec/template/spec/providerSpec/value/userDataSecret/name";
    const CONTROL_PLANE: &str = "/spec/template/machines_v1beta1_machine_openshift_io/spec/providerSpec/value/userDataSecret/name";
    let kinds = [
        ("MachineSet", "v1beta1", "machinesets", SETS),
        ("ControlPlaneMachineSet", "v1", "controlplanemachinesets", CONTROL_PLANE),
    ];
    let mut found = Vec::new();
    for (kind, version, plural, place) in kinds {
        let of = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("machine.openshift.io", version, kind), plural);
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), namespace, &of);
        let list = match cluster.ask(plural, api.list(&ListParams::default().limit(LIMIT))).await {
            Err(error) if error.is_not_found() => continue,
            list => list?,
        };
        found.extend(list.items.iter().filter_map(|object| of_object(kind, object, place)));
    }
    found.sort();
    Ok(found)
}

fn of_object(kind: &'static str, object: &DynamicObject, place: &str) -> Option<MachineSet> {
    Some(MachineSet {
        kind,
        name: object.name_any(),
        replicas: object.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default(),
        secret: object.data.pointer(place)?.as_str()?.to_owned(),
    })
}
