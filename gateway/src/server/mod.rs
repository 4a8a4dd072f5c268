//! Server: accepts connections and serves requests, within limits, until it is stopped.

mod background;
mod checkpoints;
mod configuration_snapshot;
mod connection;
mod descriptors;
mod ek_roots;
mod metered_store;
mod pace;
mod proxy_protocol;
mod recent_warnings;
mod refused;
mod reload;
mod retention;
pub mod service_manager;
mod task_log;
mod waiting;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use attest_log::admin::Verb;
use attest_log::{BlobError, Blobs, CheckpointSigner, Journal, JournalError, LogKey, LogKeyError, Observer, Retention, SegmentLimits};
use attest_machines::objects::MachineObjects;
use attest_recording::{ResolvedDecisions, Signs, missing, resolve_pending, with_store};
use attest_store::{Store, StoreError};
use attest_system::clock::Clock;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::api::{self, Endorsers, Gateway};
#[cfg(feature = "cluster")]
use crate::cluster::failing_since;
use crate::credentials::seal::{SealError, SealKeyRing, Times};
use crate::inspection::{Depth, Faults, Inspected, Inspection};
use crate::metrics::Metrics;
use crate::recording::Recorder;
use crate::settings::Settings;
use crate::sightings::Sightings;
use background::Hangup;
use configuration_snapshot::ConfigurationSnapshot;
use connection::ConnectionService;
use metered_store::MeteredStore;
use recent_warnings::RecentWarnings;
use reload::StartupFiles;
use service_manager::Watchdog;
use task_log::TaskLog;

/// Error for which the gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The state folder cannot be made or opened.
    #[error("{path}: {source}")]
    State { path: std::path::PathBuf, source: std::io::Error },
    /// Something that the settings name cannot be used.
    #[error(transparent)]
    Faults(#[from] Faults),
    /// Another gateway serves with this state: it writes its attestation log.
    #[error("a gateway is writing {0}; stop it first: `systemctl stop attest-gateway`")]
    Served(std::path::PathBuf),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signal(std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The attestation log cannot be opened or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The key of the log's checkpoints cannot be read or made.
    #[error(transparent)]
    LogKey(#[from] LogKeyError),
    /// The folder of the attestation log's large parts cannot be opened.
    #[error(transparent)]
    Blobs(#[from] BlobError),
}

/// A gateway that listens, and does not serve yet.
pub struct Server {
    gateway: Arc<Gateway>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    hangup: Hangup,
    /// Files as they were at the start.
    startup_files: StartupFiles,
    /// Pings of the watchdog until connections are accepted.
    starting: Option<JoinSet<()>>,
    configuration: ConfigurationSnapshot,
    retention: Retention,
}

impl Server {
    /// Reads everything that the settings name, and binds the address.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(settings: Settings, clock: Clock) -> Result<Self, ServeError> {
        let metrics = Arc::new(Metrics::default());
        let found = Box::pin(inspect(&settings, clock, &metrics)).await?;
        attest_system::files::make_private_folder(&settings.state).map_err(|source| ServeError::State {
            path: settings.state.clone(),
            source,
        })?;
        match attest_system::files::restrict_to_owner(&settings.state) {
            Ok(None) => {}
            Ok(Some(mode)) => tracing::warn!(
                "{}: had mode {mode:04o}; removed all access but the owner's",
                settings.state.display()
            ),
            // What may be open to a group, because it is another's, was said before.
            Err(error) => tracing::debug!(%error, "{}", settings.state.display()),
        }
        // Also while it waits for the store a SIGHUP does not end it.
        let hangup = Hangup::listen().map_err(ServeError::Signal)?;
        let (store, starting) = waiting::open_store(&settings, clock, &found, &metrics).await?;
        let store = Arc::new(MeteredStore::new(store, &metrics));
        let server = Self::assemble(settings, clock, store, metrics, (found, hangup)).await?;
        Ok(Self { starting, ..server })
    }

    /// Like [`Server::bind`], but with the caller's store.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind_with(settings: Settings, clock: Clock, store: Arc<dyn Store>) -> Result<Self, ServeError> {
        let metrics = Arc::new(Metrics::default());
        let found = Box::pin(inspect(&settings, clock, &metrics)).await?;
        let hangup = Hangup::listen().map_err(ServeError::Signal)?;
        Self::assemble(settings, clock, store, metrics, (found, hangup)).await
    }

    async fn assemble(
        settings: Settings,
        clock: Clock,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        (found, hangup): (Inspected, Hangup),
    ) -> Result<Self, ServeError> {
        let startup_files = StartupFiles::read(&settings);
        let Inspected {
            tls,
            pools,
            ek_roots,
            clouds,
            listener,
            metrics_listener,
            #[cfg(feature = "cluster")]
            cluster,
        } = found;
        let blobs = Blobs::open(&settings.evidence())?;
        let endorsers = Endorsers::keep(ek_roots, clouds, &blobs)?;
        let signed = &settings.checkpoints;
        let signer = CheckpointSigner::new(LogKey::open(&settings.log_key())?, signed.name.as_deref(), signed.records);
        let key = signer.key();
        let limits = SegmentLimits {
            bytes: settings.segments.bytes,
            age: settings.segments.age,
            compress_after: settings.segments.compress_after,
        };
        let retention = retention::from_settings(&settings, &blobs);
        let observer: Arc<dyn Observer> = Arc::<Metrics>::clone(&metrics);
        let (journal, cut) = Journal::open(&settings.attestation_log(), signer, limits, blobs, observer)?;
        let admission = Arc::new(Admission::new(
            &settings.limits,
            &settings.store.engine,
            metrics.verification_durations(),
        ));
        // Before it is watched for changes.
        if settings.tls.client_ca_of_cluster
            && let Some(folder) = settings.tls.client_ca.as_deref().and_then(Path::parent)
        {
            attest_system::files::make_private_folder(folder).map_err(|source| ServeError::State {
                path: folder.to_owned(),
                source,
            })?;
        }
        #[cfg(feature = "cluster")]
        let cluster = cluster.map(Arc::new);
        #[cfg(feature = "cluster")]
        let machines = cluster
            .as_ref()
            .filter(|_| settings.cluster.as_ref().is_some_and(|settings| settings.machines))
            .map(|cluster| {
                let cluster = Arc::clone(cluster);
                MachineObjects::for_cluster(move || failing_since(&cluster))
            })
            .unwrap_or_default();
        #[cfg(not(feature = "cluster"))]
        let machines = MachineObjects::default();
        let handshakes = admission.handshakes.clone();
        let journal = with_store(journal, &store).with_company(move || handshakes.under_way());
        if cut > 0 {
            tracing::warn!("cut {cut} bytes off the attestation log: an incomplete last line that was never acknowledged");
        }
        // Before anything is given back that another one with this state might have served.
        store.serve().await?;
        let chain = journal.durable().borrow().chain.clone();
        let signs = Signs { chain: &chain, key };
        let missing = missing(&*store, &settings.attestation_log(), signs).await?;
        let ResolvedDecisions { given_back, unrecorded } = resolve_pending(&*store, &settings.attestation_log(), &missing).await?;
        let seal = seal(&settings, clock, &store).await?;
        checkpoints::begin(&journal, &*store, missing, &settings.attestation_log(), clock, &metrics).await;
        journal.compress_closed();
        let journal = Arc::new(journal);
        let recorder = Recorder::new(Arc::clone(&journal), Arc::clone(&metrics));
        let recorded = background::record_pending(&recorder, &*store, &unrecorded).await?;
        if given_back + recorded > 0 {
            tracing::warn!(
                "recovered decisions that the last run left unrecorded: {recorded} recorded, {given_back} uses of tickets and tokens given back"
            );
        }
        let sightings = Sightings::open(&*store, clock.now().as_secs()).await?;
        if !settings.balancers.is_empty() {
            let balancers: Vec<String> = settings.balancers.iter().map(ToString::to_string).collect();
            tracing::info!("expecting PROXY protocol v2 headers on connections from {}", balancers.join(", "));
        }
        let listening = format!(
            "listening on {} (TLS), pools: {}; {} EK certificates; attestation log: {}",
            listener
                .local_addr()
                .map_or_else(|_| settings.listen.to_string(), |address| address.to_string()),
            pools.names().join(", "),
            endorsers.ek_roots().certificates().len(),
            settings.attestation_log().display(),
        );
        let gateway = Arc::new(Gateway {
            admission,
            settings,
            clock,
            seal: Arc::new(seal),
            store,
            recorder: Arc::new(recorder),
            journal,
            endorsers: Arc::new(endorsers),
            pools: Arc::new(pools),
            metrics,
            tls,
            sightings: Arc::new(sightings),
            machines: Arc::new(machines),
            #[cfg(feature = "cluster")]
            cluster,
            draining: Arc::default(),
        });
        // Before anybody is served by it.
        let standing = ConfigurationSnapshot::begin(&gateway).await;
        // What has sealed something from then on is known here.
        if !gateway.seal.is_shared() {
            let mut log = TaskLog::new(background::ROTATE_SEAL);
            background::maintain_keys(&gateway, gateway.clock.now().as_secs().into(), &mut log).await;
        }
        tracing::info!("{listening}");
        Ok(Self {
            gateway,
            listener,
            metrics: metrics_listener,
            hangup,
            startup_files,
            starting: None,
            configuration: standing,
            retention,
        })
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    /// The socket's.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the gateway that it serves.
    #[must_use]
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Serves until `stop` comes, then lets the requests under way finish, for a bounded time.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self {
            gateway,
            listener,
            metrics,
            hangup,
            startup_files,
            starting,
            configuration: standing,
            retention,
        } = self;
        let limits = gateway.settings.limits;
        descriptors::raise(&limits);
        let graceful = GracefulShutdown::new();
        let mut tasks = JoinSet::new();
        background::spawn(&mut tasks, &gateway, (hangup, startup_files), standing);
        let (stop_outbox, stopped) = oneshot::channel();
        let outbox = tokio::spawn(background::take_outbox(Arc::clone(&gateway), stopped));
        tasks.spawn(retention::keep(Arc::clone(&gateway), retention));
        let connections = Arc::new(ConnectionService {
            router: api::router(&gateway),
            refused: RecentWarnings::default(),
            unnamed: RecentWarnings::default(),
            waits: RecentWarnings::default(),
            limits,
            balancers: gateway.settings.balancers.clone(),
            admission: Arc::clone(&gateway.admission),
            clock: gateway.clock,
            tls: Arc::clone(&gateway.tls),
            metrics: Arc::clone(&gateway.metrics),
        });
        if let Some(metrics) = metrics {
            tasks.spawn(serve_metrics(metrics, Arc::clone(&gateway)));
        }
        let mut stop = std::pin::pin!(stop);
        service_manager::ready("serving");
        drop(starting);
        let mut watchdog = Watchdog::of_environment();
        loop {
            let (stream, peer, arrived) = tokio::select! {
                next = connections.next(&listener) => next,
                () = watchdog.ping() => continue,
                () = &mut stop => break,
            };
            // Whoever has no place yet waits for it there, so that the next one is accepted meanwhile.
            let (connections, watcher) = (Arc::clone(&connections), graceful.watcher());
            tokio::spawn(async move { connections.accept(stream, peer, arrived, watcher).await });
        }
        service_manager::stopping();
        gateway.drain();
        drop(listener);
        gateway.admission.connections.close();
        tracing::info!(
            "draining: accepting no new connections, waiting up to {} s for requests in progress",
            limits.drain.as_secs()
        );
        // What is begun is done to its end, also for who has hung up.
        let drained = async {
            graceful.shutdown().await;
            gateway.admission.requests.rest().await;
        };
        match tokio::time::timeout(limits.drain, drained).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => tracing::warn!("stopped; some requests did not finish in time"),
        }
        if let Err(error) = gateway.recorder.sum_up(gateway.clock.now().as_secs(), true).await {
            tracing::warn!(%error, "cannot write the aggregated records to the attestation log");
        }
        if let Err(error) = gateway.sightings.write_all(&*gateway.store, gateway.clock.now().as_secs()).await {
            tracing::warn!(%error, "cannot save sightings of pointers to the store");
        }
        // The store may be replaced before the next start: then the log alone has these acts.
        drop(stop_outbox);
        if let Err(error) = outbox.await {
            tracing::warn!(%error, "cannot record the last administrative acts; they wait in the store");
        }
        checkpoints::end(&gateway).await;
        background::keep_mark(&gateway, &mut TaskLog::new(background::KEEP_MARK)).await;
    }
}

/// Opens the seal, with keys of this gateway alone or with those that replicas share.
async fn seal(settings: &Settings, clock: Clock, store: &Arc<dyn Store>) -> Result<SealKeyRing, ServeError> {
    let Some(key_file) = &settings.store_key_file else {
        return Ok(SealKeyRing::open(&settings.seal_key())?);
    };
    // By the store's time: a clock that is wrong ends no key that others have.
    let now = clock.now().as_secs();
    let believed = store.time(now).await?;
    let own = background::in_own_hands(settings, clock, store, Verb::SealRotate);
    Ok(SealKeyRing::open_shared(own, key_file, Times::new(believed, now)).await?)
}

/// Inspects everything that the settings name. Warnings are logged.
async fn inspect(settings: &Settings, clock: Clock, metrics: &Arc<Metrics>) -> Result<Inspected, ServeError> {
    let inspection = Inspection::run(settings, clock, metrics, Depth::Start).await;
    inspection.log();
    inspection
        .into_inspected()?
        .ok_or_else(|| ServeError::Served(settings.attestation_log()))
}

/// Serves metrics over plain HTTP, on an address that is not for nodes and configs.
async fn serve_metrics(listener: TcpListener, gateway: Arc<Gateway>) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!("metrics: http://{address}/metrics");
    }
    if let Err(error) = attest_plain_http::serve(listener, api::metrics_router(&gateway)).await {
        tracing::warn!(%error, "stopped serving metrics");
    }
}

/// Completes at SIGTERM or Ctrl-C, which stop the process.
///
/// # Errors
/// If signals cannot be handled.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
