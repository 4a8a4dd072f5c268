//! Whether the cluster has what nodes with a pre-approved config go by: for who looks, and makes nothing.

use std::sync::Arc;

use attest_cluster_api::resources::machine_configs;
use attest_cluster_api::{Cluster, ClusterError};
use kube::api::Api;
use kube::core::DynamicObject;

use super::objects;
use attest_pool::Pool;

/// How the object of a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum There {
    /// As the gateway makes it.
    Well,
    Missing,
    /// It says something else.
    Otherwise,
}

/// The name of each pool's object, and how it is.
///
/// # Errors
/// [`ClusterError`]: the API is not asked for the others then.
pub async fn there(cluster: &Cluster, pools: &[Arc<Pool>]) -> Result<Vec<(String, String, There)>, ClusterError> {
    let api: Api<DynamicObject> = Api::all_with(cluster.client(), &machine_configs());
    let mut all = Vec::new();
    for object in objects(pools) {
        let found = cluster.ask("MachineConfigs of the second stage", api.get_opt(&object.name)).await?;
        let there = match found {
            None => There::Missing,
            Some(found) if found.data.get("spec") == object.value.get("spec") => There::Well,
            Some(_) => There::Otherwise,
        };
        all.push((object.pool, object.name, there));
    }
    Ok(all)
}
