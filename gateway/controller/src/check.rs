//! `attest-controller check`: what keeps the controller from its work.

use std::sync::Arc;

use attest_cluster_api::Cluster;
use attest_store::AnyStore;
use attest_system::causes::with_causes;
use attest_system::clock::Clock;

use crate::approval;
use crate::run::pools;
use crate::settings::Settings;

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
    let mut findings = vec![match pools(settings) {
        Ok(pools) => {
            let names: Vec<String> = pools.rules().names.into_keys().collect();
            Finding::Good(format!("pools: {}", names.join(", ")))
        }
        Err(error) => Finding::Error(error.to_string()),
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
    match &settings.approval {
        Some(settings_of_approval) => {
            let asked = approval::look(&cluster, settings_of_approval, &settings.machine_namespace).await;
            findings.extend(asked.into_iter().map(|(what, found)| match found {
                Ok(()) => Finding::Good(format!("cluster: its API tells of {what}")),
                Err(error) => Finding::Degraded(format!("cluster: {error}")),
            }));
        }
        None => findings.push(Finding::Degraded("approval.enabled is false: no CSR is approved".to_owned())),
    }
    findings
}
