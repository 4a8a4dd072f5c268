//! API resources of OpenShift's own kinds.

use kube::core::{ApiResource, GroupVersionKind};

const MACHINE_CONFIGURATION: &str = "machineconfiguration.openshift.io";

fn machine_configuration(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(MACHINE_CONFIGURATION, "v1", kind), plural)
}

#[must_use]
pub fn machine_config_pools() -> ApiResource {
    machine_configuration("MachineConfigPool", "machineconfigpools")
}

#[must_use]
pub fn machine_configs() -> ApiResource {
    machine_configuration("MachineConfig", "machineconfigs")
}

#[must_use]
pub fn controller_configs() -> ApiResource {
    machine_configuration("ControllerConfig", "controllerconfigs")
}

#[must_use]
pub fn machine_os_configs() -> ApiResource {
    machine_configuration("MachineOSConfig", "machineosconfigs")
}

#[must_use]
pub fn machine_os_builds() -> ApiResource {
    machine_configuration("MachineOSBuild", "machineosbuilds")
}

/// Returns the resource of OpenShift's Machine API.
#[must_use]
pub fn machines() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("machine.openshift.io", "v1beta1", "Machine"), "machines")
}

/// Returns the resource of the object that contains the address of the cluster's own API.
#[must_use]
pub fn infrastructures() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("config.openshift.io", "v1", "Infrastructure"),
        "infrastructures",
    )
}
