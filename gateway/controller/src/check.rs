//! `attest-controller check`: what keeps the controller from its work.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest_cluster_api::Cluster;
use attest_ignition::machine_config::second_stage::Object;
use attest_store::AnyStore;
use attest_system::causes::with_causes;
use attest_system::clock::Clock;

use crate::approval;
use crate::pointers::{self, Here};
use crate::pools;
use crate::run::{self, NOTHING_ENABLED};
use crate::second_stage::{Source, There, there};
use crate::settings::{PointerSettings, SecondStageSettings, Settings};

/// The result of one check, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// As it should be.
    Good(String),
    /// The controller runs, and cannot do all of its work.
    Degraded(String),
    /// The controller does not start.
    Error(String),
}

/// Checks pools, store and API. Nothing is made or changed.
pub async fn check(settings: &Settings, clock: Clock) -> Vec<Finding> {
    let mut findings = vec![match run::pools(settings) {
        Ok(pools) => match run::unknown_pools(settings, &pools.files().rules) {
            unknown if unknown.is_empty() => {
                let names: Vec<String> = pools.files().rules.names.into_keys().collect();
                Finding::Good(format!("pools: {}", names.join(", ")))
            }
            unknown => Finding::Degraded(unknown.join("; ")),
        },
        Err(error) => Finding::Error(with_causes(&error)),
    }];
    let store = settings.store.clone();
    findings.push(match tokio::task::spawn_blocking(move || AnyStore::look(&store)).await {
        Ok(Ok(true)) => Finding::Good("the store is there".to_owned()),
        Ok(Ok(false)) => Finding::Degraded("store: no gateway has made it yet".to_owned()),
        Ok(Err(error)) if error.is_unanswered() => Finding::Degraded(format!("store: {}", with_causes(&error))),
        Ok(Err(error)) => Finding::Error(format!("store: {}", with_causes(&error))),
        Err(_) => Finding::Error("store: not looked at".to_owned()),
    });
    let cluster = match Cluster::open(&settings.access, clock, Arc::new(())).await {
        Ok(cluster) => cluster,
        Err(error) => {
            findings.push(Finding::Error(format!("cluster: {error}")));
            return findings;
        }
    };
    let mut asked = Vec::new();
    if let Some(approval) = &settings.approval {
        asked.extend(approval::look(&cluster, approval, &settings.machine_namespace).await);
    } else if !settings.pointers.enabled && settings.second_stage.is_none() {
        findings.push(Finding::Degraded(NOTHING_ENABLED.to_owned()));
    }
    if settings.pointers.enabled {
        findings.extend(files(&settings.pointers, clock).err().map(Finding::Degraded));
        asked.extend(pointers::ask(&cluster, &settings.machine_namespace).await);
    }
    findings.extend(asked.into_iter().map(|(what, found)| match found {
        Ok(()) => Finding::Good(format!("cluster: its API tells of {what}")),
        Err(error) => Finding::Degraded(format!("cluster: {error}")),
    }));
    if let Some(of_gateway) = &settings.second_stage {
        second_stage(&cluster, of_gateway, settings, &mut findings).await;
    }
    findings
}

/// Looks whether the cluster has what nodes with a pre-approved config go by.
async fn second_stage(cluster: &Cluster, settings: &SecondStageSettings, of: &Settings, findings: &mut Vec<Finding>) {
    let Ok(pools) = pools::read(&of.pools) else {
        // That is an error of the pools.
        return;
    };
    let pools = pools.second_stage;
    // What may be written without that policy is every MachineConfig.
    if !pools.is_empty() && cluster.knows_admission_policies().await.is_ok_and(|known| !known) {
        findings.push(Finding::Degraded(
            "cluster: the API knows no ValidatingAdmissionPolicy (Kubernetes 1.30, OpenShift 4.17), so nothing holds an account with the rights of `manifests --with second-stage` to MachineConfigs of the second stage: take the ClusterRoleBinding attest-controller-second-stage away, and apply the objects by hand (docs/second-stage.md)"
                .to_owned(),
        ));
    }
    let source = Source::new(settings.clone(), of.pointers.authorities.clone());
    for (pool, machine_config_pool) in pools {
        match source.objects(&pool, &machine_config_pool).await {
            Ok(objects) => {
                for object in objects {
                    findings.push(of_object(cluster, &pool, &object).await);
                }
            }
            Err(error) => findings.push(Finding::Degraded(format!("pool {pool}: {error}"))),
        }
    }
}

/// Looks for one object.
async fn of_object(cluster: &Cluster, pool: &str, object: &Object) -> Finding {
    let name = &object.name;
    match there(cluster, object).await {
        Ok(There::Well) => Finding::Good(format!("pool {pool}: MachineConfig {name} of the second stage is in the cluster")),
        Ok(There::Missing) => Finding::Degraded(format!(
            "pool {pool}: MachineConfig {name} of the second stage is not in the cluster: a controller that leads makes it, and until then nodes that get the pre-approved config wait for it"
        )),
        Ok(There::Otherwise) => Finding::Degraded(format!(
            "pool {pool}: MachineConfig {name} of the second stage says something else than the config that nodes get: a controller that leads puts it back if it was made of that config"
        )),
        Err(error) => Finding::Degraded(format!(
            "cluster: {error}; whether the MachineConfigs of the second stage are there is not known"
        )),
    }
}

/// Reads the files by which pointers are renewed.
fn files(files: &PointerSettings, clock: Clock) -> Result<(), String> {
    let read = Here::read(files, BTreeSet::new(), clock.now());
    read.map(drop).map_err(|error| format!("pointers: {error}"))
}
