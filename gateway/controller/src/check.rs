//! `attest-controller check`: what keeps the controller from its work.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest_cluster_api::ClusterClient;
use attest_ignition::machine_config::second_stage::SecondStageObject;
use attest_store::{AnyStore, StoreError};
use attest_system::causes::with_causes;
use attest_system::clock::Clock;

use crate::approval;
use crate::pointers::{self, Here};
use crate::pools;
use crate::run::{self, NOTHING_ENABLED};
use crate::second_stage::{GatewayEndpoints, ObjectState, read_state};
use crate::settings::{ControllerSettings, PointerSettings, SecondStageSettings};

/// The result of one check, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckResult {
    /// As it should be.
    Good(String),
    /// The controller runs, and cannot do all of its work.
    Degraded(String),
    /// The controller does not start.
    Error(String),
    /// The controller does not start: a newer release wrote the store.
    Newer(String),
}

/// Checks pools, store and API. Nothing is made or changed.
pub async fn check(settings: &ControllerSettings, clock: Clock) -> Vec<CheckResult> {
    let mut findings = vec![match run::pools(settings) {
        Ok(pools) => match run::unknown_pools(settings, &pools.files().rules) {
            unknown if unknown.is_empty() => {
                let names: Vec<String> = pools.files().rules.names.into_keys().collect();
                CheckResult::Good(format!("pools: {}", names.join(", ")))
            }
            unknown => CheckResult::Degraded(unknown.join("; ")),
        },
        Err(error) => CheckResult::Error(with_causes(&error)),
    }];
    let store = settings.store.clone();
    findings.push(match tokio::task::spawn_blocking(move || AnyStore::exists(&store)).await {
        Ok(Ok(true)) => CheckResult::Good("store: found".to_owned()),
        Ok(Ok(false)) => CheckResult::Degraded("store: no gateway has created it yet".to_owned()),
        Ok(Err(error)) if error.is_unanswered() => CheckResult::Degraded(format!("store: {}", with_causes(&error))),
        Ok(Err(error @ StoreError::Schema { .. })) => CheckResult::Newer(format!("store: {error}")),
        Ok(Err(error)) => CheckResult::Error(format!("store: {}", with_causes(&error))),
        Err(_) => CheckResult::Error("store: not checked".to_owned()),
    });
    let cluster = match ClusterClient::open(&settings.access, clock, Arc::new(())).await {
        Ok(cluster) => cluster,
        Err(error) => {
            findings.push(CheckResult::Error(format!("cluster: {error}")));
            return findings;
        }
    };
    let mut asked = Vec::new();
    if let Some(approval) = &settings.approval {
        asked.extend(approval::check_access(&cluster, approval, &settings.machine_namespace).await);
    } else if !settings.pointers.enabled && settings.second_stage.is_none() {
        findings.push(CheckResult::Degraded(NOTHING_ENABLED.to_owned()));
    }
    if settings.pointers.enabled {
        findings.extend(files(&settings.pointers, clock).err().map(CheckResult::Degraded));
        asked.extend(pointers::ask(&cluster, &settings.machine_namespace).await);
    }
    findings.extend(asked.into_iter().map(|(what, found)| match found {
        Ok(()) => CheckResult::Good(format!("cluster: its API allows a watch of {what}")),
        Err(error) => CheckResult::Degraded(format!("cluster: {error}")),
    }));
    if let Some(of_gateway) = &settings.second_stage {
        second_stage(&cluster, of_gateway, settings, &mut findings).await;
    }
    findings
}

/// Looks whether the cluster has what nodes with a pre-approved config go by.
async fn second_stage(cluster: &ClusterClient, settings: &SecondStageSettings, of: &ControllerSettings, findings: &mut Vec<CheckResult>) {
    let Ok(pools) = pools::read(&of.pools) else {
        // That is an error of the pools.
        return;
    };
    let pools = pools.second_stage;
    // What may be written without that policy is every MachineConfig.
    if !pools.is_empty() && cluster.knows_admission_policies().await.is_ok_and(|known| !known) {
        findings.push(CheckResult::Degraded(
            "cluster: the API has no ValidatingAdmissionPolicy (Kubernetes 1.30, OpenShift 4.17), so the rights of `manifests --with second-stage` allow any MachineConfig: delete the ClusterRoleBinding attest-controller-second-stage, and apply the objects by hand (docs/how-to/second-stage.md)"
                .to_owned(),
        ));
    }
    let source = GatewayEndpoints::new(settings.clone(), of.pointers.authorities.clone());
    for (pool, machine_config_pool) in pools {
        match source.objects(&pool, &machine_config_pool).await {
            Ok(objects) => {
                for object in objects {
                    findings.push(check_object(cluster, &pool, &object).await);
                }
            }
            Err(error) => findings.push(CheckResult::Degraded(format!("pool {pool}: {error}"))),
        }
    }
}

/// Looks for one object.
async fn check_object(cluster: &ClusterClient, pool: &str, object: &SecondStageObject) -> CheckResult {
    let name = &object.name;
    match read_state(cluster, object).await {
        Ok(ObjectState::Well) => CheckResult::Good(format!("pool {pool}: MachineConfig {name} of the second stage is in the cluster")),
        Ok(ObjectState::Missing) => CheckResult::Degraded(format!(
            "pool {pool}: the cluster lacks MachineConfig {name} of the second stage: the leading controller creates it; until then, nodes with the pre-approved config wait"
        )),
        Ok(ObjectState::Otherwise) => CheckResult::Degraded(format!(
            "pool {pool}: MachineConfig {name} of the second stage differs from the config that nodes get: the leading controller restores it if it was created from that config"
        )),
        Err(error) => CheckResult::Degraded(format!(
            "cluster: {error}; cannot determine whether the MachineConfigs of the second stage exist"
        )),
    }
}

/// Reads the files by which pointers are renewed.
fn files(files: &PointerSettings, clock: Clock) -> Result<(), String> {
    let read = Here::read(files, BTreeSet::new(), clock.now());
    read.map(drop).map_err(|error| format!("pointers: {error}"))
}
