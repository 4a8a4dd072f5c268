//! The MachineConfigs that nodes need before they are approved, as the API has them.

use std::collections::BTreeMap;

use attest_cluster_api::{ClusterClient, ClusterError, RequestCause, resources};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, PartialObjectMeta};
use serde_json::{Value, json};

use super::role_selector;
use super::snapshot::Meta;
use attest_pool::needed_before_approval::{Needed, is_needed};

/// Most MachineConfigs that are taken. A cluster has a dozen that nodes need at first; each may have 1.5 MB.
const LIMIT: usize = 200;
/// Name of the objects in messages.
const WHAT: &str = "machineconfigs that are needed before approval";

/// Objects that were fetched so far: only changed ones are fetched again.
#[derive(Default)]
pub(super) struct Had {
    /// MachineConfigs by name, with their versions.
    objects: BTreeMap<String, (String, Value)>,
    pools: Vec<Value>,
}

/// Reason why the objects are unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotHad {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{found} of them; at most {LIMIT} are supported")]
    TooMany { found: usize },
    /// An object is gone or has changed meanwhile: the API reports that.
    #[error("they change")]
    Changing,
}

impl NotHad {
    pub(super) fn cause(&self) -> RequestCause {
        match self {
            Self::Cluster(error) => error.cause(),
            other => RequestCause::Other(other.to_string()),
        }
    }
}

impl Had {
    /// Returns whether these are the objects that were fetched.
    pub(super) fn is(&self, pools: &[Value], metas: &[Meta]) -> bool {
        let versions = self.objects.iter().map(|(name, (version, _))| (name.clone(), version.clone()));
        self.pools == pools && versions.eq(needed(metas))
    }

    /// Fetches missing objects, and returns all, with the pools' own.
    pub(super) async fn fetch(&mut self, cluster: &ClusterClient, metas: &[Meta], pools: Vec<Value>) -> Result<Needed, NotHad> {
        let wanted = needed(metas);
        if wanted.len() > LIMIT {
            return Err(NotHad::TooMany { found: wanted.len() });
        }
        self.objects.retain(|name, (version, _)| wanted.get(name) == Some(version));
        let missing: Vec<String> = wanted.into_keys().filter(|name| !self.objects.contains_key(name)).collect();
        let api: Api<DynamicObject> = Api::all_with(cluster.client(), &resources::machine_configs());
        for name in missing {
            let object = cluster.ask(WHAT, api.get_opt(&name)).await?.ok_or(NotHad::Changing)?;
            let (name, version) = (object.name_any(), object.resource_version().unwrap_or_default());
            self.objects.insert(name, (version, value(object)));
        }
        self.pools.clone_from(&pools);
        if !self.is(&pools, metas) {
            return Err(NotHad::Changing);
        }
        Ok(Needed::new(
            pools,
            self.objects.values().map(|(_, object)| object.clone()).collect(),
        ))
    }
}

/// Asks once, for who does not watch.
pub(super) async fn ask(cluster: &ClusterClient) -> Result<Needed, NotHad> {
    let (client, configs) = (cluster.client(), resources::machine_configs());
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &resources::machine_config_pools());
    let pools = cluster.list("machineconfigpools", &pools, &ListParams::default()).await?;
    let configs: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &configs);
    let of_a_role = ListParams::default().labels_from(&role_selector());
    let metas = cluster.list("machineconfigs", &configs, &of_a_role).await?;
    let metas: Vec<Meta> = metas.into_iter().map(Meta::new).collect();
    Had::default().fetch(cluster, &metas, pools.iter().map(selecting).collect()).await
}

/// Returns the part of a MachineConfigPool that selects its MachineConfigs.
pub(super) fn selecting(pool: &DynamicObject) -> Value {
    let selector = pool.data.pointer("/spec/machineConfigSelector").cloned().unwrap_or_default();
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfigPool",
        "metadata": {"name": pool.name_any()},
        "spec": {"machineConfigSelector": selector},
    })
}

/// Returns an object without the parts that only the API server needs.
fn value(mut object: DynamicObject) -> Value {
    object.managed_fields_mut().clear();
    serde_json::to_value(&object).unwrap_or_default()
}

/// Names and versions of those that are needed.
fn needed(metas: &[Meta]) -> BTreeMap<String, String> {
    let needed = metas.iter().filter(|meta| is_needed(meta.annotations()));
    needed
        .map(|meta| (meta.name_any(), meta.resource_version().unwrap_or_default()))
        .collect()
}
