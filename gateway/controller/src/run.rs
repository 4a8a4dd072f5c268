//! The program's life: open the store, become the leader, act until the lease is lost.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use attest_cluster_api::{ClusterClient, ClusterError};
use attest_log::admin::By;
use attest_pool::PoolError;
use attest_store::settings::{EngineSettings, StoreSettings};
use attest_store::{AnyStore, Store, StoreError};
use attest_system::clock::Clock;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::approval::{Approver, PoolRules};
use crate::health::{self, ControllerHealth};
use crate::lease::{LeaseCandidate, Timing};
use crate::metrics::ControllerMetrics;
use crate::pointers;
use crate::pools::Pools;
use crate::second_stage::{self, GatewayEndpoints};
use crate::settings::{ApprovedKeys, ControllerSettings};

/// The message about settings that enable nothing.
pub(crate) const NOTHING_ENABLED: &str =
    "approval.enabled, pointers.enabled and second_stage.enabled are false: this controller does nothing";
/// Pause between two attempts to open the store.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Reason why the controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("listen {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cluster: {0}")]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("pools: {0}")]
    Pools(#[from] PoolError),
    /// Any key would be approved of a client that attests nothing.
    #[error(
        "approval.keys is \"any\", and pool {0} may give the bootstrap credential to unauthenticated clients (grants.nothing in its pool.toml is not \"refuse\"): any client with that credential could get a CSR approved for a booting machine's name; set approval.keys = \"attested\", or grants.nothing = \"refuse\""
    )]
    AnyKey(String),
    #[error("no random bytes for the identity in the lease")]
    Random,
}

/// Reads the pools, and refuses them where they and the settings would approve any client.
///
/// # Errors
/// [`RunError::Pools`], [`RunError::AnyKey`].
pub(crate) fn pools(settings: &ControllerSettings) -> Result<Pools, RunError> {
    let pools = Pools::open(&settings.pools)?;
    let approves_any = settings
        .approval
        .as_ref()
        .is_some_and(|approval| approval.keys == ApprovedKeys::Any);
    match pools.files().rules.gives_credential.filter(|_| approves_any) {
        Some(pool) => Err(RunError::AnyKey(pool)),
        None => Ok(pools),
    }
}

/// Returns a message for each setting that names an unknown pool.
pub(crate) fn unknown_pools(settings: &ControllerSettings, rules: &PoolRules) -> Vec<String> {
    let approval = settings.approval.iter();
    let named = approval
        .flat_map(|approval| &approval.pools)
        .filter(|name| !rules.names.contains_key(*name));
    named
        .map(|name| format!("approval.pools names {name}, but {} has no such pool", settings.pools.display()))
        .collect()
}

/// Runs until `stop` completes.
///
/// # Errors
/// [`RunError`].
pub async fn run(settings: ControllerSettings, clock: Clock, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let pools = Arc::new(pools(&settings)?);
    for unknown in unknown_pools(&settings, &pools.files().rules) {
        tracing::warn!("{unknown}");
    }
    let health = ControllerHealth::default();
    let observer = Arc::<ControllerMetrics>::clone(&health.metrics);
    let cluster = Arc::new(ClusterClient::open(&settings.access, clock, observer).await?);
    let listen = |source| RunError::Listen {
        address: settings.listen,
        source,
    };
    let listener = TcpListener::bind(settings.listen).await.map_err(listen)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(health::serve(listener, health.clone()));
    tracing::info!("health and metrics: http://{}", settings.listen);
    let mut stop = std::pin::pin!(stop);
    let store = tokio::select! {
        opened = open_store(&settings.store) => opened?,
        () = &mut stop => return Ok(()),
    };
    health.ready.store(true, Ordering::Relaxed);
    let by = By::controller(settings.name.as_deref());
    let host = by.controller.clone().unwrap_or_default();
    let store: Arc<dyn Store> = Arc::new(store);
    let (rules, names) = (Arc::clone(&pools), Arc::clone(&pools));
    let approver = settings.approval.as_ref().map(|approval| Approver {
        cluster: Arc::clone(&cluster),
        settings: approval.clone(),
        machine_namespace: settings.machine_namespace.clone(),
        store: Arc::clone(&store),
        clock,
        by: by.clone(),
        pools: Arc::new(move || rules.files().rules),
    });
    let pointers = settings.pointers.enabled.then(|| pointers::PointerTask {
        cluster: Arc::clone(&cluster),
        namespace: settings.machine_namespace.clone(),
        files: settings.pointers.clone(),
        pools: Arc::new(move || names.files().rules.names.into_keys().collect()),
        store,
        clock,
        by,
    });
    let second_stage = settings.second_stage.clone().map(|of_gateway| second_stage::SecondStageTask {
        cluster: Arc::clone(&cluster),
        source: GatewayEndpoints::new(of_gateway, settings.pointers.authorities.clone()),
        pools: Arc::new(move || pools.files().second_stage),
        clock,
        metrics: Arc::clone(&health.metrics),
    });
    if approver.is_none() && pointers.is_none() && second_stage.is_none() {
        tracing::warn!("{NOTHING_ENABLED}");
    }
    let act = async || {
        let approve = async {
            match &approver {
                Some(approver) => Box::pin(approver.run()).await,
                None => pending().await,
            }
        };
        let renew = async {
            match &pointers {
                Some(pointers) => pointers.run().await,
                None => pending().await,
            }
        };
        let make = async {
            match &second_stage {
                Some(second_stage) => second_stage.run().await,
                None => pending().await,
            }
        };
        tokio::join!(approve, renew, make);
    };
    if settings.store.engine == EngineSettings::Embedded {
        // The store is one gateway's, so that nobody else acts on it.
        health.metrics.leads(true);
        tokio::select! {
            () = act() => {}
            () = stop => {}
        }
        return Ok(());
    }
    let candidate = LeaseCandidate::new((cluster, clock), &settings.lease, &host, Timing::default()).map_err(|_| RunError::Random)?;
    Box::pin(run_as_leader(candidate, &health.metrics, act, stop)).await;
    Ok(())
}

/// Acts whenever this controller holds the lease, until `stop` completes.
async fn run_as_leader(
    mut candidate: LeaseCandidate,
    metrics: &ControllerMetrics,
    act: impl AsyncFn(),
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) {
    loop {
        tokio::select! {
            () = candidate.acquire() => {}
            () = &mut stop => break,
        }
        metrics.leads(true);
        tracing::info!("acquired the lease as {}; leading", candidate.identity());
        let lost = tokio::select! {
            biased;
            lost = candidate.renew_until_lost() => Some(lost),
            () = &mut stop => None,
            () = act() => None,
        };
        metrics.leads(false);
        // Who leads now says it.
        metrics.second_stage_missing(false);
        match lost {
            Some(lost) => tracing::warn!("lost the lease; no longer leading: {lost}"),
            None => break,
        }
    }
    candidate.release().await;
}

/// Opens the store once there is one and it answers.
async fn open_store(settings: &StoreSettings) -> Result<AnyStore, StoreError> {
    let said = AtomicBool::new(false);
    let wait = |problem: &str| {
        if !said.swap(true, Ordering::Relaxed) {
            tracing::warn!("waiting for the store: {problem}");
        }
    };
    loop {
        let settings = settings.clone();
        // A gateway makes the store.
        let opening = tokio::task::spawn_blocking(move || match AnyStore::exists(&settings)? {
            true => AnyStore::open(&settings).map(Some),
            false => Ok(None),
        });
        match opening.await.map_err(|_| StoreError::Closed)? {
            Ok(Some(store)) => match store.join().await {
                Ok(()) => return Ok(store),
                Err(error) if error.is_unanswered() => wait(&error.to_string()),
                Err(error) => return Err(error),
            },
            Ok(None) => wait("no gateway has created it yet"),
            Err(error) if error.is_unanswered() => wait(&error.to_string()),
            Err(error) => return Err(error),
        }
        sleep(RETRY_EVERY).await;
    }
}
