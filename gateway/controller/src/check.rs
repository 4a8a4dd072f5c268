//! `attest-controller check`: what keeps the controller from its work.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest_cluster_api::Cluster;
use attest_store::AnyStore;
use attest_system::causes::with_causes;
use attest_system::clock::Clock;

use crate::approval;
use crate::pointers::{self, Here};
use crate::run::{NOTHING_ENABLED, pools};
use crate::settings::{PointerSettings, Settings};

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
    let mut asked = Vec::new();
    if let Some(approval) = &settings.approval {
        asked.extend(approval::look(&cluster, approval, &settings.machine_namespace).await);
    } else if !settings.pointers.enabled {
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
    findings
}

/// Reads the files by which pointers are renewed.
fn files(files: &PointerSettings, clock: Clock) -> Result<(), String> {
    let read = Here::read(files, BTreeSet::new(), clock.now());
    read.map(drop).map_err(|error| format!("pointers: {error}"))
}
