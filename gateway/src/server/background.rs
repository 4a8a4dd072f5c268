//! Background tasks, which run for as long as the gateway serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::UnixTime;
#[cfg(feature = "cluster")]
use attest_cluster_api::ClusterClient;
use attest_log::JournalError;
use attest_log::admin::{By, Verb};
use attest_machines::waiting::questions;
use attest_recording::{Acting, OutboxCount, TakeError, Unrecorded, take};
use attest_store::{LeaderTask, MaintenanceResult, MaintenanceTask, Store, StoreError};
use attest_system::clock::{Clock, rfc3339};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::checkpoints;
use super::configuration_snapshot::ConfigurationSnapshot;
use super::ek_roots;
use super::reload::{self, Reloaders, StartupFiles};
use super::task_log::TaskLog;
use crate::api::Gateway;
#[cfg(feature = "cluster")]
use crate::cluster::{follow_bootstrap_tokens, keep_bootstrap_kubeconfig, keep_client_ca, keep_machines, keep_mcs_certificate};
use crate::credentials::seal::Times;
use crate::credentials::tokens;
use crate::recording::Recorder;
#[cfg(feature = "cluster")]
use crate::settings::ClusterSettings;
use crate::settings::Settings;
use crate::{cloud, pki, pools};

/// Interval at which expired uses are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(300);
/// Interval of checks for sightings of pointers that are due to be written.
const WRITE_SIGHTINGS_EVERY: Duration = Duration::from_secs(10);
/// Pause before another attempt after a new attestation log could not be begun.
const REOPEN_EVERY: Duration = Duration::from_secs(5);
/// Interval of checks whether a minute is over in which decisions were counted.
const SUM_UP_EVERY: Duration = Duration::from_secs(5);
/// The tasks that more than one place logs.
pub(super) const KEEP_MARK: &str = "write the store's position to a file";
pub(super) const ROTATE_SEAL: &str = "rotate the seal's keys";
/// Time by which the clock may be ahead of the store time without a warning: longer than a restart takes.
const CLOCK_JUMP_LIMIT: Duration = Duration::from_secs(3600);
/// Interval of checks whether a token, or the seal's key, is to be rotated: short enough that a folder that lost its token is soon mended.
const ROTATE_EVERY: Duration = Duration::from_secs(60);

/// SIGHUP, the administrator's signal, for each task that listens to it.
pub(super) struct Hangup {
    log: Signal,
    files: Signal,
}

impl Hangup {
    pub(super) fn listen() -> std::io::Result<Self> {
        let hangup = || signal(SignalKind::hangup());
        Ok(Self {
            log: hangup()?,
            files: hangup()?,
        })
    }
}

/// Interval of checks for changes by commands that are to be recorded.
const TAKE_OUTBOX_EVERY: Duration = Duration::from_secs(1);
/// Time for which a gateway leaves the outbox to others, after it has found an act there that it may not record. Each of them looks ten
/// times meanwhile.
const LEAVE_OUTBOX: Duration = Duration::from_secs(10);

/// Interval at which the outbox is read although no write to the store was noticed: another gateway may have ended before it had recorded
/// all.
const TAKE_OUTBOX_IDLE_EVERY: Duration = Duration::from_secs(15);

/// Interval of checks for pending decisions that could not be written.
const RECORD_UNWRITTEN_EVERY: Duration = Duration::from_secs(10);

/// Interval of checks for drift of the configuration files.
const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

/// Interval at which entries of the store are measured for metrics.
const MEASURE_STORE_EVERY: Duration = Duration::from_secs(15);

/// Interval at which rendered configs are dropped that have not been requested since the last time.
const FORGET_RENDERED_EVERY: Duration = Duration::from_secs(600);

/// Starts all background tasks; they end with `tasks`.
pub(super) fn spawn(
    tasks: &mut JoinSet<()>,
    gateway: &Arc<Gateway>,
    (hangup, startup_files): (Hangup, StartupFiles),
    standing: ConfigurationSnapshot,
) {
    tasks.spawn(forget(Arc::clone(gateway)));
    tasks.spawn(forget_rendered(Arc::clone(gateway)));
    tasks.spawn(rotate_tokens(Arc::clone(gateway)));
    if !gateway.seal.is_shared() {
        tasks.spawn(maintain_seal(Arc::clone(gateway)));
    }
    tasks.spawn(write_sightings(Arc::clone(gateway)));
    tasks.spawn(sum_up(Arc::clone(gateway)));
    tasks.spawn(record_unwritten(Arc::clone(gateway)));
    tasks.spawn(record_file_drift(Arc::clone(gateway), standing));
    if gateway.settings.metrics_listen.is_some() {
        tasks.spawn(measure_store(Arc::clone(gateway)));
    }
    tasks.spawn(checkpoints::sign(Arc::clone(gateway)));
    tasks.spawn(checkpoints::keep_them(Arc::clone(gateway)));
    tasks.spawn(reopen_log(Arc::clone(gateway), hangup.log));
    let mut reloaders = Reloaders::default();
    let (pools, requests) = (Arc::clone(&gateway.pools), reloaders.add("pools"));
    tasks.spawn(async move { pools::watch::watch(&pools, requests).await });
    let (tls, metrics, clock) = (Arc::clone(&gateway.tls), Arc::clone(&gateway.metrics), gateway.clock);
    let requests = reloaders.add("certificates");
    tasks.spawn(async move { pki::watch::watch(&tls, clock, &metrics, requests).await });
    #[cfg(feature = "cluster")]
    if let (Some(cluster), Some(settings)) = (&gateway.cluster, &gateway.settings.cluster) {
        spawn_cluster(tasks, gateway, cluster, settings);
    }
    let (endorsers, requests) = (Arc::clone(&gateway.endorsers), reloaders.add("gcp.jwks"));
    tasks.spawn(async move { cloud::watch::watch(endorsers.clouds(), requests).await });
    let roots = gateway.settings.ek_roots.clone();
    let requests = reloaders.add("EK roots");
    tasks.spawn(ek_roots::watch(Arc::clone(&gateway.endorsers), roots, requests));
    let settings = gateway.settings.clone();
    tasks.spawn(reload::at_sighup(settings, startup_files, reloaders, hangup.files));
}

/// Starts the tasks that the settings want for the cluster's API.
#[cfg(feature = "cluster")]
fn spawn_cluster(tasks: &mut JoinSet<()>, gateway: &Arc<Gateway>, cluster: &Arc<ClusterClient>, settings: &ClusterSettings) {
    let parts = crate::cluster::ClusterTasks {
        clock: gateway.clock,
        metrics: &gateway.metrics,
        pools: &gateway.pools,
        store: &gateway.store,
        by: By::gateway(gateway.settings.checkpoints.name.as_deref()),
        log: crate::cluster::LogPlaces {
            log: gateway.settings.attestation_log(),
            note: gateway.settings.attested_nodes_note(),
        },
        durable: gateway.journal.durable(),
    };
    crate::cluster::spawn(tasks, cluster, settings, &parts);
    if settings.machines {
        let namespace = settings.machine_namespace.clone();
        tasks.spawn(keep_machines(Arc::clone(cluster), namespace, Arc::clone(&gateway.machines)));
    }
    if !settings.bootstrap_tokens.is_empty() {
        let own = own_hands(gateway, Verb::TokenFollow);
        let pools = settings.bootstrap_tokens.clone();
        tasks.spawn(follow_bootstrap_tokens(Arc::clone(cluster), pools, own, gateway.clock));
    }
    let tls = &gateway.settings.tls;
    if let (Some(path), true) = (&tls.client_ca, tls.client_ca_of_cluster) {
        tasks.spawn(keep_client_ca(Arc::clone(cluster), path.clone()));
    }
    if tls.serving_of_cluster {
        tasks.spawn(keep_mcs_certificate(Arc::clone(cluster), tls.certificate.clone(), gateway.clock));
    }
    if settings.bootstrap_kubeconfig {
        let path = gateway.settings.bootstrap_kubeconfig();
        tasks.spawn(keep_bootstrap_kubeconfig(Arc::clone(cluster), path));
    }
}

/// Begins a new attestation log after the old one was moved. The signal is not forgotten, however long none can be begun.
async fn reopen_log(gateway: Arc<Gateway>, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        while let Err(error) = begin_new_log(&gateway).await {
            tracing::error!(
                %error,
                "cannot start a new attestation log; continuing in the moved file and retrying in {} s",
                REOPEN_EVERY.as_secs()
            );
            tokio::select! {
                () = tokio::time::sleep(REOPEN_EVERY) => {}
                _ = hangup.recv() => {}
            }
        }
    }
}

async fn begin_new_log(gateway: &Gateway) -> Result<(), JournalError> {
    if gateway.journal.reopen(gateway.clock.now().as_secs()).await? {
        tracing::info!("the attestation log was moved; started a new file");
        // What the old one knows of the store is not looked at any longer; and what it holds is settled.
        keep_mark(gateway, &mut TaskLog::new(KEEP_MARK)).await;
    }
    Ok(())
}

fn own_hands(gateway: &Gateway, verb: Verb) -> Arc<dyn Store> {
    in_own_hands(&gateway.settings, gateway.clock, &gateway.store, verb)
}

/// Returns the store for the gateway's own changes: they are recorded like those of a command.
pub(super) fn in_own_hands(settings: &Settings, clock: Clock, store: &Arc<dyn Store>, verb: Verb) -> Arc<dyn Store> {
    let by = By::gateway(settings.checkpoints.name.as_deref());
    Acting { verb, by, clock }.on(Arc::clone(store))
}

/// Drops what was rendered for nodes that have come and gone.
async fn forget_rendered(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(FORGET_RENDERED_EVERY);
    loop {
        every.tick().await;
        gateway.pools.forget_unasked();
    }
}

/// Measures the tokens, and the machines that wait for an answer.
async fn measure_store(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(MEASURE_STORE_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut log = TaskLog::new("read tokens and waiting machines for metrics");
    loop {
        every.tick().await;
        log.note(try_measure_store(&gateway).await);
    }
}

async fn try_measure_store(gateway: &Gateway) -> Result<(), StoreError> {
    let tokens = tokens::current(&*gateway.store).await?;
    let tokens = tokens.into_iter().map(|token| {
        let rotates = token.rotates_at();
        (token.name, rotates, token.expires)
    });
    gateway.metrics.tokens(tokens);
    let mut waiting: BTreeMap<String, usize> = gateway.pools.names().into_iter().map(|pool| (pool, 0)).collect();
    for row in questions(&*gateway.store, None, gateway.clock.now().as_secs()).await? {
        if row.answered.is_none() {
            let machines = row.showing.iter().filter(|machine| !machine.observed).count();
            *waiting.entry(row.pool).or_default() += machines + row.more;
        }
    }
    gateway.metrics.machines_waiting(waiting.into_iter());
    Ok(())
}

/// Records drift of the configuration files.
async fn record_file_drift(gateway: Arc<Gateway>, mut standing: ConfigurationSnapshot) {
    let mut every = tokio::time::interval(LOOK_AT_FILES_EVERY);
    loop {
        every.tick().await;
        standing.record_drift(&gateway).await;
    }
}

/// Records changes by commands, and by this gateway itself; for a last time when `stop` comes.
pub(super) async fn take_outbox(gateway: Arc<Gateway>, mut stop: oneshot::Receiver<()>) {
    let mut turn = LeaderTask::new(Arc::clone(&gateway.store), "record what was changed");
    let mut every = tokio::time::interval(TAKE_OUTBOX_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut log, mut looked) = (
        TaskLog::new("record administrative acts; they wait in the store"),
        None::<(u64, Instant)>,
    );
    loop {
        let is_last = tokio::select! {
            _ = every.tick() => false,
            _ = &mut stop => true,
        };
        let mark = gateway.store.recent_mark();
        if !is_last && looked.is_some_and(|(at, since)| mark == Some(at) && since.elapsed() < TAKE_OUTBOX_IDLE_EVERY) {
            continue;
        }
        let taken = take_in_turn(&gateway, &mut turn).await;
        if is_last {
            log.note(taken);
            return;
        }
        if matches!(taken, Ok(OutboxCount { left: 1.., .. })) {
            turn.release();
            tokio::select! {
                () = tokio::time::sleep(LEAVE_OUTBOX) => {}
                _ = &mut stop => return,
            }
        }
        // What was written since this mark was heard is looked for once more.
        looked = log.note(taken).and(mark).map(|mark| (mark, Instant::now()));
    }
}

/// Records decisions that could not be written, and those that were another gateway's.
async fn record_unwritten(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(RECORD_UNWRITTEN_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut log = TaskLog::new("record decisions that could not be written; they wait in the store");
    loop {
        every.tick().await;
        log.note(try_record_unwritten(&gateway).await);
    }
}

/// Records pending decisions, but not those under way, however long they take.
async fn try_record_unwritten(gateway: &Gateway) -> Result<(), RecordPendingError> {
    let (recorder, store) = (&gateway.recorder, &gateway.store);
    // Before what the store has: it may be told of one at any moment.
    let mut recorded = recorder.recorded();
    let mut unrecorded = Vec::new();
    for mut pending in store.pending().await? {
        let decision = &pending.decided.decision;
        if recorded.remove(decision) {
            store.settle(decision);
        } else if recorder.is_left(&pending) {
            if !pending.adopted && store.give_back(decision).await? {
                pending.has_use = false;
            }
            unrecorded.push(Unrecorded {
                is_unanswered: !pending.adopted,
                pending,
            });
        }
    }
    for settled in recorded {
        recorder.end(&settled);
    }
    record_pending(recorder, &**store, &unrecorded).await?;
    Ok(())
}

/// Error in recording pending decisions.
#[derive(Debug, thiserror::Error)]
enum RecordPendingError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Records these decisions; returns the number of their lines.
pub(super) async fn record_pending(recorder: &Recorder, store: &dyn Store, unrecorded: &[Unrecorded]) -> Result<usize, JournalError> {
    let mut lines = 0;
    for one in unrecorded {
        if let Some(line) = recorder.record_pending(one).await? {
            lines += usize::from(line);
            store.settle(&one.pending.decided.decision);
        }
    }
    Ok(lines)
}

async fn take_in_turn(gateway: &Gateway, turn: &mut LeaderTask) -> Result<OutboxCount, TakeError> {
    match turn.take().await? {
        // Another gateway's log has it.
        None => Ok(OutboxCount::default()),
        Some(store) => take(&gateway.journal, store, gateway.clock.now().as_secs()).await,
    }
}

/// Keeps the store small, by its own time, if this gateway is the leader of this task.
async fn forget(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(FORGET_EVERY);
    let (begun, mut jumped) = (Instant::now(), false);
    let mut tending = MaintenanceTask::new(&gateway.store);
    let mut expired_log = TaskLog::new("delete expired state from the store");
    let mut tokens_log = TaskLog::new("delete expired tokens");
    let (mut seal_log, mut mark_log) = (TaskLog::new(ROTATE_SEAL), TaskLog::new(KEEP_MARK));
    loop {
        every.tick().await;
        let now = gateway.clock.now().as_secs();
        // Without the store's time the seal's keys are not rotated: their dates are by it, and this clock may be wrong.
        if let Some(MaintenanceResult { time, store }) = expired_log.note(tending.tick(now, begun.elapsed()).await) {
            jumped = note_clock(&gateway, now, time, jumped);
            let both = UnixTime::since_unix_epoch(Duration::from_secs(time.min(now)));
            if let Some(store) = store {
                let own = in_own_hands(&gateway.settings, gateway.clock, &store, Verb::TokenForget);
                tokens_log.note(tokens::forget_expired(&*own, both).await);
            }
            if gateway.seal.is_shared() {
                maintain_keys(&gateway, Times::new(time, now), &mut seal_log).await;
            }
        }
        keep_mark(&gateway, &mut mark_log).await;
    }
}

/// Logs when the clock has jumped, and when the store time has caught up with it. Returns whether it is ahead.
fn note_clock(gateway: &Gateway, now: u64, believed: u64, jumped: bool) -> bool {
    let ahead = now.saturating_sub(believed);
    gateway.metrics.clock_ahead(ahead);
    let jumps = ahead > CLOCK_JUMP_LIMIT.as_secs();
    match (jumped, jumps) {
        (false, true) => tracing::warn!(
            "the clock ({}) is {} s ahead of the store time: correct only if the gateway was stopped for that long. Spent credentials are kept until the store time catches up",
            rfc3339(now),
            ahead
        ),
        (true, false) => tracing::info!("the store time has caught up with the clock"),
        _ => {}
    }
    jumps
}

/// Writes the store's position to a file outside of it. The attestation log has it in each line, but a new log may begin.
pub(super) async fn keep_mark(gateway: &Gateway, log: &mut TaskLog) {
    log.note(gateway.store.keep_mark().await);
}

/// Takes over new keys of the seal, makes one when it is due, and drops expired ones. It has run once before the gateway serves.
async fn maintain_seal(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval_at(tokio::time::Instant::now() + ROTATE_EVERY, ROTATE_EVERY);
    let mut log = TaskLog::new(ROTATE_SEAL);
    loop {
        every.tick().await;
        maintain_keys(&gateway, gateway.clock.now().as_secs().into(), &mut log).await;
    }
}

pub(super) async fn maintain_keys(gateway: &Gateway, now: Times, log: &mut TaskLog) {
    if log.note(gateway.seal.maintain(now, gateway.settings.seal_keep()).await) == Some(true) {
        tracing::info!("created a new key for the seal");
    }
}

/// Rotates the tokens that are due, for as long as the gateway serves.
async fn rotate_tokens(gateway: Arc<Gateway>) {
    let own = own_hands(&gateway, Verb::TokenRotate);
    let mut every = tokio::time::interval(ROTATE_EVERY);
    // A folder that was slow to write to needs no second look at once.
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut log = TaskLog::new("rotate tokens");
    loop {
        every.tick().await;
        log.note(tokens::tick(&*own, &gateway.settings.tls.ca, gateway.clock.now()).await);
    }
}

/// Writes sightings of pointers to the store.
async fn write_sightings(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(WRITE_SIGHTINGS_EVERY);
    let mut log = TaskLog::new("write when each pointer was last used");
    loop {
        tokio::select! {
            _ = every.tick() => {}
            () = gateway.sightings.first() => {}
        }
        log.note(gateway.sightings.write_due(&*gateway.store, gateway.clock.now().as_secs()).await);
    }
}

/// Writes the aggregated records of the minutes that are over.
async fn sum_up(gateway: Arc<Gateway>) {
    let mut every = tokio::time::interval(SUM_UP_EVERY);
    let mut log = TaskLog::new("record aggregated decisions");
    loop {
        every.tick().await;
        log.note(gateway.recorder.sum_up(gateway.clock.now().as_secs(), false).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_page_states_the_takeover_time() {
        assert_eq!(FORGET_EVERY, Duration::from_secs(5 * 60));
        assert!(include_str!("../../../docs/how-to/replicas.md").contains("another takes over within five minutes"));
    }
}
