//! Machine sets, and which Secret has the pointer of the machines that they make.
//!
//! It is named in `MachineSpec.providerSpec.value`, below `spec.template` of a MachineSet, and below `spec.template.machines_v1beta1_machine_openshift_io` of a
//! ControlPlaneMachineSet (openshift/api `machine/v1/types_controlplanemachineset.go`):
//!
//! | Field | Platforms, and where their types are |
//! |---|---|
//! | `userDataSecret: {name}` | AWS, GCP, vSphere (openshift/api `machine/v1beta1/types_{aws,gcp,vsphere}provider.go`), Nutanix, Power VS (`machine/v1/types_{nutanix,powervs}provider.go`), IBM Cloud (openshift/machine-api-provider-ibmcloud `pkg/apis/ibmcloudprovider/v1`), oVirt (openshift/cluster-api-provider-ovirt `pkg/apis/ovirtprovider/v1beta1`) |
//! | `userDataSecret: {name, namespace}` | Azure (`machine/v1beta1/types_azureprovider.go`), OpenStack (`machine/v1alpha1/types_openstack.go`) |
//! | `userData: {name, namespace}` | bare metal (openshift/cluster-api-provider-baremetal `pkg/apis/baremetal/v1alpha1/baremetalmachineproviderspec_types.go`) |
//! | `ignition: {userDataSecret: "…"}` | libvirt (openshift/cluster-api-provider-libvirt `pkg/apis/libvirtproviderconfig/v1beta1/libvirtmachineproviderconfig_types.go`) |

use attest_cluster_api::{ClusterClient, ClusterError};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// JSON pointers to a provider's specification, in a MachineSet and in a ControlPlaneMachineSet.
const SETS: &str = "/spec/template/spec/providerSpec/value";
const CONTROL_PLANE: &str = "/spec/template/machines_v1beta1_machine_openshift_io/spec/providerSpec/value";
/// The `authoritativeAPI` of a machine set whose machines the Machine API makes; so do those without the field.
const MACHINE_API: &str = "MachineAPI";

/// An object that makes machines, and its pointer's Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineSet {
    pub kind: &'static str,
    pub name: String,
    pub replicas: i64,
    pub secret: SecretName,
}

/// The Secret with the pointer, in the namespace of the machine set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretName {
    Named(String),
    /// The Secret could not be determined, for this reason.
    Unknown(String),
}

impl std::fmt::Display for SecretName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Unknown(_) => f.write_str("unknown"),
        }
    }
}

/// Returns all of them in a namespace; a kind that the cluster does not have yields nothing.
pub(super) async fn all(cluster: &ClusterClient, namespace: &str) -> Result<Vec<MachineSet>, ClusterError> {
    let kinds = [
        ("MachineSet", "v1beta1", "machinesets", SETS),
        ("ControlPlaneMachineSet", "v1", "controlplanemachinesets", CONTROL_PLANE),
    ];
    let mut found = Vec::new();
    for (kind, version, plural, place) in kinds {
        let of = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("machine.openshift.io", version, kind), plural);
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), namespace, &of);
        match cluster.list(plural, &api, &ListParams::default()).await {
            Err(error) if error.is_not_found() => {}
            list => found.extend(list?.iter().map(|object| machine_set(kind, object, namespace, place))),
        }
    }
    found.sort();
    Ok(found)
}

fn machine_set(kind: &'static str, object: &DynamicObject, namespace: &str, place: &str) -> MachineSet {
    MachineSet {
        kind,
        name: object.name_any(),
        replicas: object.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default(),
        secret: secret(&object.data, namespace, place),
    }
}

fn secret(object: &Value, namespace: &str, place: &str) -> SecretName {
    // openshift/api `machine/v1beta1/types_machineset.go`: `Migrating` in the status besides.
    let makers = ["/status/authoritativeAPI", "/spec/authoritativeAPI"].map(|place| object.pointer(place).and_then(Value::as_str));
    if let Some(maker) = makers.into_iter().flatten().find(|maker| !["", MACHINE_API].contains(maker)) {
        return SecretName::Unknown(format!(
            "its authoritativeAPI is {maker}: this controller does not renew Secrets of the Cluster API's machines"
        ));
    }
    let spec = object.pointer(place).unwrap_or(&Value::Null);
    let referred = ["/userDataSecret", "/userData"]
        .into_iter()
        .find_map(|field| spec.pointer(field).filter(|value| value.is_object()));
    if let Some(reference) = referred {
        let text = |field: &str| reference.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        return match (text("name"), text("namespace")) {
            (Some(_), Some(other)) if other != namespace => SecretName::Unknown(format!(
                "its Secret is in namespace {other}: this controller renews only Secrets in {namespace} (cluster.machine_namespace)"
            )),
            (Some(name), _) => SecretName::Named(name.to_owned()),
            (None, _) => SecretName::Unknown("its reference to user data has no name".to_owned()),
        };
    }
    let plain = spec.pointer("/ignition/userDataSecret").and_then(Value::as_str);
    if let Some(name) = plain.filter(|name| !name.is_empty()) {
        return SecretName::Named(name.to_owned());
    }
    let of = spec.get("kind").and_then(Value::as_str).unwrap_or("no kind");
    SecretName::Unknown(format!(
        "its provider specification ({of}) has no userDataSecret, userData or ignition.userDataSecret"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMESPACE: &str = "openshift-machine-api";

    /// Reads a specification in a MachineSet, and the same in a ControlPlaneMachineSet.
    #[track_caller]
    fn found(spec: &Value) -> SecretName {
        let template = json!({"spec": {"metadata": {}, "providerSpec": {"value": spec}}});
        let set = json!({"spec": {"replicas": 3, "template": template}});
        let control_plane = json!({"spec": {"template": {"machineType": "machines_v1beta1_machine_openshift_io", "machines_v1beta1_machine_openshift_io": template}}});
        let found = secret(&set, NAMESPACE, SETS);
        assert_eq!(secret(&control_plane, NAMESPACE, CONTROL_PLANE), found);
        found
    }

    #[track_caller]
    fn is_named(spec: &Value, name: &str) {
        assert_eq!(found(spec), SecretName::Named(name.to_owned()), "{spec}");
    }

    #[track_caller]
    fn is_unknown(spec: &Value, why: &str) {
        let SecretName::Unknown(found) = found(spec) else {
            panic!("{spec} is looked at")
        };
        assert!(found.contains(why), "{found}");
    }

    /// The specifications are those that openshift/installer writes: `pkg/asset/machines/PLATFORM/machines.go`.
    #[test]
    fn finds_the_user_data_secret_on_each_platform() {
        let v1beta1 = "machine.openshift.io/v1beta1";
        is_named(
            &json!({"apiVersion": v1beta1, "kind": "AWSMachineProviderConfig", "ami": {"id": "ami-0"}, "instanceType": "m6i.xlarge", "deviceIndex": 0,
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "aws-cloud-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": v1beta1, "kind": "AzureMachineProviderSpec", "vmSize": "Standard_D4s_v3", "zone": "1",
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "azure-cloud-credentials", "namespace": NAMESPACE}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": v1beta1, "kind": "GCPMachineProviderSpec", "machineType": "n2-standard-4", "canIPForward": false,
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "gcp-cloud-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": v1beta1, "kind": "VSphereMachineProviderSpec", "template": "rhcos", "numCPUs": 4,
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "vsphere-cloud-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "machine.openshift.io/v1alpha1", "kind": "OpenstackProviderSpec", "flavor": "m1.xlarge", "cloudName": "openstack",
                "cloudsSecret": {"name": "openstack-cloud-credentials", "namespace": NAMESPACE}, "userDataSecret": {"name": "worker-user-data", "namespace": NAMESPACE}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "machine.openshift.io/v1", "kind": "NutanixMachineProviderConfig", "vcpusPerSocket": 1,
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "nutanix-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "machine.openshift.io/v1", "kind": "PowerVSMachineProviderConfig", "systemType": "s922", "processorType": "Shared",
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "powervs-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "ibmcloudproviderconfig.openshift.io/v1beta1", "kind": "IBMCloudMachineProviderSpec", "profile": "bx2-4x16",
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "ibmcloud-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "ovirtproviderconfig.machine.openshift.io/v1beta1", "kind": "OvirtMachineProviderSpec", "template_name": "rhcos",
                "userDataSecret": {"name": "worker-user-data"}, "credentialsSecret": {"name": "ovirt-credentials"}}),
            "worker-user-data",
        );
        is_named(
            &json!({"apiVersion": "libvirtproviderconfig.openshift.io/v1beta1", "kind": "LibvirtMachineProviderConfig", "domainMemory": 8192, "domainVcpu": 4,
                "ignition": {"userDataSecret": "worker-user-data"}, "networkInterfaceName": "n", "uri": "qemu+tcp://192.168.122.1/system"}),
            "worker-user-data",
        );
        // The installer gives bare metal the Secret that the Machine Config Operator writes.
        is_named(
            &json!({"apiVersion": "baremetal.cluster.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec",
                "image": {"url": "http://172.22.0.1/rhcos.qcow2.gz", "checksum": "http://172.22.0.1/rhcos.qcow2.gz.md5sum"},
                "userData": {"name": "worker-user-data-managed", "namespace": NAMESPACE}}),
            "worker-user-data-managed",
        );
    }

    #[test]
    fn reports_why_a_user_data_secret_is_unknown() {
        is_unknown(
            &json!({"kind": "BareMetalMachineProviderSpec", "userData": {"name": "a", "namespace": "metal"}}),
            "in namespace metal",
        );
        is_unknown(
            &json!({"kind": "AzureMachineProviderSpec", "userDataSecret": {"namespace": NAMESPACE}}),
            "has no name",
        );
        is_unknown(
            &json!({"kind": "AzureMachineProviderSpec", "userDataSecret": {"name": ""}}),
            "has no name",
        );
        is_unknown(
            &json!({"kind": "OtherProviderSpec", "bootstrap": {"dataSecretName": "a"}}),
            "(OtherProviderSpec)",
        );
        is_unknown(
            &json!({"kind": "LibvirtMachineProviderConfig", "ignition": {"userDataSecret": ""}}),
            "(LibvirtMachineProviderConfig)",
        );
        is_unknown(&Value::Null, "(no kind)");
        is_unknown(&json!({"userData": "text", "userDataSecret": 7}), "(no kind)");
    }

    #[test]
    fn machine_sets_of_cluster_api_are_not_supported() {
        let set = |maker: &str| {
            let spec = json!({"userDataSecret": {"name": "worker-user-data"}});
            json!({"spec": {"authoritativeAPI": maker, "template": {"spec": {"providerSpec": {"value": spec}}}}})
        };
        assert_eq!(
            secret(&set("MachineAPI"), NAMESPACE, SETS),
            SecretName::Named("worker-user-data".to_owned())
        );
        assert!(matches!(secret(&set("ClusterAPI"), NAMESPACE, SETS), SecretName::Unknown(why) if why.contains("is ClusterAPI")));
    }
}
