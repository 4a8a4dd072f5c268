//! Checkpoints of the attestation log: signs them, and writes them to the store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use attest_log::{Journal, Point};
use attest_recording::{CheckpointUpdate, Signs, checkpoints_by_other_keys, keep_checkpoint};
use attest_store::Store;
use attest_system::clock::Clock;

use super::task_log::TaskLog;
use crate::api::Gateway;
use crate::metrics::Metrics;

/// Pause before another attempt after a checkpoint could not be written to the store.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// Name of the task in log messages.
const KEEP_CHECKPOINT: &str = "write the last checkpoint of the attestation log to the store";

/// Begins another chain if the log does not hold all that was signed according to the store. Then readers of the log find out, and nodes
/// are served all the same. A chain that begins has a checkpoint at once.
pub(super) async fn begin(journal: &Journal, store: &dyn Store, missing: Vec<Point>, log: &Path, clock: Clock, metrics: &Metrics) {
    for point in &missing {
        tracing::error!(
            "{} lacks line {} of chain {}, which this gateway has signed: lines were removed or altered, or the file was lost; \
             for details run `attest-audit log audit`. Starting a new chain",
            log.display(),
            point.number,
            point.chain,
        );
    }
    if !missing.is_empty() {
        metrics.log_incomplete();
        if let Err(error) = journal.begin_chain(missing).await {
            tracing::error!(%error, "cannot start a new chain in the attestation log");
        }
    }
    if let Err(error) = journal.checkpoint(clock.now().as_secs()).await {
        tracing::error!(%error, "cannot write a checkpoint to the attestation log");
    }
    keep_last(journal, store, metrics, &mut TaskLog::new(KEEP_CHECKPOINT)).await;
    warn_of_other_keys(journal, store).await;
}

/// Warns about logs of this name with another key that the store knows: `audit` wants them, too.
async fn warn_of_other_keys(journal: &Journal, store: &dyn Store) {
    let name = journal.replica();
    let chain = journal.durable().borrow().chain.clone();
    let key = journal.key();
    match checkpoints_by_other_keys(store, name, Signs { chain: &chain, key }).await {
        Ok(others) => {
            for other in others {
                let Point { chain: of, number, .. } = other.point();
                if of == chain {
                    tracing::warn!(
                        "log.key was replaced: chain {of} of this attestation log was signed up to line {number} by {}, and is now signed by {key}. `attest-audit log audit` requires that line until you accept the new key: `attest-gateway log abandon {of}`",
                        other.key()
                    );
                    continue;
                }
                tracing::warn!(
                    "the store has checkpoints of another log of {name}, chain {of}, up to line {number}, signed by another key: another gateway has this name, or this one was set up again. `attest-audit log audit` requires that log until you declare it lost: `attest-gateway log abandon {of}`"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "cannot read the checkpoints of other logs from the store"),
    }
}

/// Signs checkpoints of the log, at intervals and when one is due.
pub(super) async fn sign(gateway: Arc<Gateway>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(gateway.settings.checkpoints.every) => {}
            () = gateway.journal.checkpoint_due() => {}
        }
        sign_now(&gateway).await;
    }
}

async fn sign_now(gateway: &Gateway) {
    if let Err(error) = gateway.journal.checkpoint(gateway.clock.now().as_secs()).await {
        tracing::error!(%error, "cannot write a checkpoint to the attestation log; retrying when the next is due");
    }
}

/// Writes each checkpoint to the store, for as long as the gateway serves. However slow the store is, the log goes on. A failed write is
/// retried.
pub(super) async fn keep_them(gateway: Arc<Gateway>) {
    let mut signed = gateway.journal.checkpoints();
    let mut log = TaskLog::new(KEEP_CHECKPOINT);
    loop {
        let kept = keep_last(&gateway.journal, &*gateway.store, &gateway.metrics, &mut log).await;
        let again = async {
            if kept {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(KEEP_EVERY).await;
        };
        tokio::select! {
            changed = signed.changed() => if changed.is_err() {
                return;
            },
            () = again => {}
        }
    }
}

/// Signs the end of the log, and writes the checkpoint to the store.
pub(super) async fn end(gateway: &Gateway) {
    sign_now(gateway).await;
    keep_last(
        &gateway.journal,
        &*gateway.store,
        &gateway.metrics,
        &mut TaskLog::new(KEEP_CHECKPOINT),
    )
    .await;
}

/// Writes the last checkpoint to the store. Returns whether the store has it, or a later one of another gateway.
async fn keep_last(journal: &Journal, store: &dyn Store, metrics: &Metrics, log: &mut TaskLog) -> bool {
    let keeping = log.note(keep_checkpoint(journal, store).await);
    if matches!(keeping, Some(CheckpointUpdate::Kept)) {
        metrics.checkpoint_stored();
    }
    if keeping == Some(CheckpointUpdate::Behind) {
        tracing::error!(
            "the store has a later checkpoint of this attestation log: another gateway writes, or wrote, the same chain. Was state/ copied?"
        );
        metrics.log_incomplete();
    }
    keeping.is_some()
}
