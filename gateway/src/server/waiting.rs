//! Gateway whose store does not answer yet: it is alive, is not ready, and serves no node.
//!
//! If a whole site starts at once, etcd or the cluster's API comes later than the gateway. A gateway that exited would be restarted after
//! growing pauses, and be missing when the nodes boot.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use attest_store::{AnyStore, StoreError};
use attest_system::clock::Clock;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::ConnectionService;
use super::recent_warnings::RecentWarnings;
use super::service_manager;
use crate::admission::Admission;
use crate::api;
use crate::inspection::Inspected;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Pause between two attempts, each of which takes as long as the store's timeout.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Opens the store, when it answers. Until then the address answers that this gateway is not ready. Returns the pings of the watchdog too,
/// if it had to wait.
///
/// # Errors
/// [`StoreError`], if the store answers and cannot be opened.
pub(super) async fn open_store(
    settings: &Settings,
    clock: Clock,
    found: &Inspected,
    metrics: &Arc<Metrics>,
) -> Result<(AnyStore, Option<JoinSet<()>>), StoreError> {
    let error = match open(settings).await {
        Err(error) if error.is_unanswered() => error,
        opened => return opened.map(|store| (store, None)),
    };
    tracing::warn!("waiting for the store; not ready until it answers: {error}");
    let connections = Arc::new(ConnectionService {
        router: api::waiting_router(metrics),
        refused: RecentWarnings::default(),
        unnamed: RecentWarnings::default(),
        waits: RecentWarnings::default(),
        limits: settings.limits,
        balancers: settings.balancers.clone(),
        admission: Arc::new(Admission::new(
            &settings.limits,
            &settings.store.engine,
            metrics.verification_durations(),
        )),
        clock,
        tls: Arc::clone(&found.tls),
        metrics: Arc::clone(metrics),
    });
    // Else the service manager would end a start that waits.
    service_manager::ready("waiting for the store; not ready until it answers");
    let starting = service_manager::ping_while_starting();
    let opened = tokio::select! {
        opened = open_in_the_end(settings, metrics) => opened?,
        never = answer(&connections, found) => match never {},
        never = answer_scrapes(found, metrics) => match never {},
    };
    tracing::info!("the store answers");
    Ok((opened, Some(starting)))
}

async fn open_in_the_end(settings: &Settings, metrics: &Metrics) -> Result<AnyStore, StoreError> {
    loop {
        metrics.store_failed();
        sleep(RETRY_EVERY).await;
        match open(settings).await {
            Err(error) if error.is_unanswered() => tracing::debug!(%error, "waiting for the store"),
            opened => return opened,
        }
    }
}

/// Opens the store on a thread of its own, which blocks until the store answers, or its time is over.
async fn open(settings: &Settings) -> Result<AnyStore, StoreError> {
    let settings = settings.clone();
    let opening = tokio::task::spawn_blocking(move || AnyStore::open(&settings.store));
    opening.await.map_err(|_| StoreError::Closed)?
}

/// Answers scrapes of the metrics, for as long as it is not dropped: on a copy of the listener, which is served later.
async fn answer_scrapes(found: &Inspected, metrics: &Arc<Metrics>) -> Infallible {
    if let Some(listener) = &found.metrics_listener {
        let copy = listener.as_fd().try_clone_to_owned();
        let copy = copy.and_then(|copy| TcpListener::from_std(copy.into()));
        let ended = match copy {
            Ok(copy) => attest_plain_http::serve(copy, api::waiting_metrics_router(metrics)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "cannot serve metrics while waiting for the store");
        }
    }
    std::future::pending().await
}

/// Answers all connections, for as long as it is not dropped; they end with it.
async fn answer(connections: &Arc<ConnectionService>, found: &Inspected) -> Infallible {
    let (graceful, mut tasks) = (GracefulShutdown::new(), JoinSet::new());
    loop {
        let (stream, peer, arrived) = connections.next(&found.listener).await;
        let (connections, watcher) = (Arc::clone(connections), graceful.watcher());
        tasks.spawn(async move { connections.accept(stream, peer, arrived, watcher).await });
        while tasks.try_join_next().is_some() {}
    }
}
