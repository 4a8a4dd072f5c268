//! The state of the objects, for commands that only read.

use attest_cluster_api::resources::machine_configs;
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_ignition::machine_config::second_stage::SecondStageObject;
use kube::api::Api;
use kube::core::DynamicObject;

/// State of the object of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// It is as the controller makes it.
    Well,
    Missing,
    /// Its content is another one.
    Otherwise,
}

/// Looks whether the cluster has an object as it is wanted.
///
/// # Errors
/// [`ClusterError`].
pub async fn read_state(cluster: &ClusterClient, wanted: &SecondStageObject) -> Result<ObjectState, ClusterError> {
    let api: Api<DynamicObject> = Api::all_with(cluster.client(), &machine_configs());
    let found = cluster.ask("MachineConfigs of the second stage", api.get_opt(&wanted.name)).await?;
    Ok(match found {
        None => ObjectState::Missing,
        Some(found) if found.data.get("spec") == wanted.value.get("spec") => ObjectState::Well,
        Some(_) => ObjectState::Otherwise,
    })
}
