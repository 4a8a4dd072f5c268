//! Inputs of a Machine Config Server: while they are the same, so are its answers.
//!
//! By `pkg/server/cluster_server.go` of machine-config-operator (7ff337a): the pool's rendered MachineConfig, which never changes under its name; the CAs of the
//! ControllerConfig; the image of the pool's MachineOSConfig. What else it reads, the bootstrap kubeconfig's token and CA, is in Secrets and ConfigMaps that a gateway
//! has no business to read: they are seen when the server is asked the next time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{DynamicObject, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use crate::pools::live::UpstreamUpdates;

/// An object of which the metadata is known.
pub(super) type Meta = Arc<PartialObjectMeta<DynamicObject>>;

/// Inputs of a Machine Config Server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigsSnapshot {
    /// For each pool, the rendered MachineConfig that new nodes get; none if it names none.
    pools: BTreeMap<String, Option<String>>,
    /// Inputs of all pools: kinds and names of objects, with their generations or versions.
    common: BTreeMap<(&'static str, String), String>,
}

impl ConfigsSnapshot {
    pub(super) fn new(pools: &[Arc<DynamicObject>], controllers: &[Meta], os_configs: &[Meta], os_builds: &[Meta]) -> Self {
        let pools = pools.iter().map(|pool| (pool.name_any(), rendered(&pool.data))).collect();
        // A ControllerConfig's status changes all the time; its specification has a generation.
        let controllers = controllers
            .iter()
            .map(|object| (("ControllerConfig", object.name_any()), generation(object)));
        // Of the others the status counts: whether an image is built.
        let versions = |kind, objects: &[Meta]| {
            let version = |object: &Meta| ((kind, object.name_any()), object.resource_version().unwrap_or_default());
            objects.iter().map(version).collect::<Vec<_>>()
        };
        let (configs, builds) = (versions("MachineOSConfig", os_configs), versions("MachineOSBuild", os_builds));
        let common = controllers.chain(configs).chain(builds).collect();
        Self { pools, common }
    }

    /// Returns the pools whose answers may have changed; `None` if no pool has changed.
    pub(super) fn news(&self, before: Option<&Self>) -> Option<UpstreamUpdates> {
        let Some(before) = before else { return Some(UpstreamUpdates::All) };
        if self.common != before.common {
            return Some(UpstreamUpdates::All);
        }
        let names = self.pools.keys().chain(before.pools.keys());
        let changed: BTreeSet<String> = names
            .filter(|name| self.pools.get(*name) != before.pools.get(*name))
            .cloned()
            .collect();
        (!changed.is_empty()).then_some(UpstreamUpdates::Of(changed))
    }
}

/// Returns the rendered MachineConfig that new nodes of a pool get: the latest, once a node of the pool has it.
fn rendered(pool: &Value) -> Option<String> {
    let name = |place: &str| Some(pool.pointer(place)?.as_str()?.to_owned());
    let updated = pool
        .pointer("/status/updatedMachineCount")
        .and_then(Value::as_i64)
        .unwrap_or_default();
    if updated > 0 {
        name("/spec/configuration/name")
    } else {
        name("/status/configuration/name")
    }
}

fn generation(object: &Meta) -> String {
    object.meta().generation.unwrap_or_default().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::slice::from_ref;

    use serde_json::json;

    use super::*;

    fn pool(name: &str, spec: &str, status: &str, updated: i64) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": name},
            "spec": {"configuration": {"name": spec}},
            "status": {"configuration": {"name": status}, "updatedMachineCount": updated, "machineCount": updated + 1},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn meta(name: &str, generation: i64, version: &str) -> Meta {
        let metadata = json!({"name": name, "generation": generation, "resourceVersion": version});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn updates_a_pool_when_its_rendered_config_changes() {
        let of = |pools: &[Arc<DynamicObject>]| ConfigsSnapshot::new(pools, &[], &[], &[]);
        let check = |before: &[Arc<DynamicObject>], after: &[Arc<DynamicObject>], expected: &[&str]| {
            let news = of(after).news(Some(&of(before)));
            let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(news, (!expected.is_empty()).then_some(UpstreamUpdates::Of(expected)));
        };
        let worker = pool("worker", "r-2", "r-1", 0);
        let others = || pool("infra", "r-9", "r-9", 3);
        check(&[worker.clone(), others()], &[worker.clone(), others()], &[]);
        // Rendered, but no node has it: new nodes get the old one.
        check(from_ref(&worker), &[pool("worker", "r-3", "r-1", 0)], &[]);
        // The first node has it.
        check(
            &[worker.clone(), others()],
            &[pool("worker", "r-2", "r-1", 1), others()],
            &["worker"],
        );
        check(from_ref(&worker), &[pool("worker", "r-2", "r-2", 0)], &["worker"]);
        // Another node has it: nothing new.
        check(&[pool("worker", "r-2", "r-1", 1)], &[pool("worker", "r-2", "r-1", 2)], &[]);
        check(from_ref(&worker), &[worker.clone(), others()], &["infra"]);
        check(&[worker.clone(), others()], &[worker], &["infra"]);
    }

    #[test]
    fn a_shared_object_change_updates_all_pools() {
        let of = |controller: &Meta, config: &Meta, build: &Meta| {
            let one = |meta: &Meta| vec![Arc::clone(meta)];
            ConfigsSnapshot::new(&[], &one(controller), &one(config), &one(build))
        };
        let (controller, config, build) = (
            meta("machine-config-controller", 4, "10"),
            meta("worker", 1, "11"),
            meta("worker-1", 1, "12"),
        );
        let before = of(&controller, &config, &build);
        assert_eq!(before.news(None), Some(UpstreamUpdates::All));
        assert_eq!(before.news(Some(&before)), None);
        // Its status only.
        assert_eq!(
            of(&meta("machine-config-controller", 4, "99"), &config, &build).news(Some(&before)),
            None
        );
        for after in [
            of(&meta("machine-config-controller", 5, "13"), &config, &build),
            of(&controller, &meta("worker", 1, "13"), &build),
            of(&controller, &config, &meta("worker-1", 1, "13")),
            ConfigsSnapshot::new(&[], &[], &[], &[]),
        ] {
            assert_eq!(after.news(Some(&before)), Some(UpstreamUpdates::All));
        }
    }

    #[test]
    fn ignores_malformed_pool_objects() {
        let check = |data: Value| assert_eq!(rendered(&data), None, "{data}");
        check(Value::Null);
        check(json!({"status": {"configuration": "r-1", "updatedMachineCount": "many"}}));
        check(json!({"spec": [], "status": {"configuration": {"name": 7}}}));
    }
}
