//! From a decision to the attestation log: which decisions get a line each, and which are counted in one.

mod aggregated;
mod stages;

use std::collections::BTreeSet;
use std::sync::Arc;

use aggregated::{RecordMode, Strangers};
pub use aggregated::{STRANGERS_AT_ONCE_BYTES, STRANGERS_EACH_SECOND_BYTES};
use attest_log::{Decision, Journal, JournalError, LargeParts, Record, Recorded, RecordedLate, WouldRefuse};
use attest_recording::Unrecorded;
use attest_store::Pending;
use serde_json::Value;
use stages::Stages;

use crate::metrics::Metrics;

/// Alerts of decisions that were recorded after their gateway had ended, or had not been able to write.
const UNANSWERED: &str = "recorded late: the node did not get this answer; its evidence was not stored";
const UNKNOWN: &str =
    "recorded late: missing lines or another gateway's log say whether the node got this answer; its evidence was not stored";

/// Decisions that may wait to be recorded, before no more are made: each is in the store until then.
const UNWRITTEN_LIMIT: usize = 100;

/// Recorder of decisions, with budgets for unauthenticated clients.
#[derive(Debug)]
pub struct Recorder {
    journal: Arc<Journal>,
    metrics: Arc<Metrics>,
    strangers: Strangers,
    stages: Stages,
}

impl Recorder {
    /// Returns a recorder whose budgets are full.
    #[must_use]
    pub fn new(journal: Arc<Journal>, metrics: Arc<Metrics>) -> Self {
        Self {
            journal,
            metrics,
            strangers: Strangers::default(),
            stages: Stages::default(),
        }
    }

    /// Begins a decision: the store may have it from now on.
    pub fn begin(&self, decision: &str) {
        self.stages.begin(decision);
    }

    /// Notes that a decision was not made, or needs nothing of the store.
    pub fn end(&self, decision: &str) {
        self.stages.end(decision);
    }

    /// Notes that a decision could not be written.
    pub fn note_unwritten(&self, decision: &str) {
        self.stages.leave(decision);
    }

    /// Notes that a decision no longer needs a line: it has one, or has changed nothing.
    pub fn note_recorded(&self, decision: &str) {
        self.stages.record(decision);
    }

    /// Returns the decisions that no longer need a line.
    #[must_use]
    pub fn recorded(&self) -> BTreeSet<String> {
        self.stages.recorded()
    }

    /// Returns whether a pending decision is to be recorded by [`Recorder::record_pending`]. It is if it could not be written, if it is not
    /// known whether it was made, or if it was another gateway's. Any other is under way, however long that takes, and the task that
    /// decides it records it.
    #[must_use]
    pub fn is_left(&self, pending: &Pending) -> bool {
        self.stages.is_left(pending)
    }

    /// Returns the number of decisions that could not be written yet.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.stages.left()
    }

    /// Returns whether too many decisions wait to be recorded.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.unwritten() >= UNWRITTEN_LIMIT
    }

    /// Makes a decision durable, as [`Journal::record`] does. Decisions beyond their budget are only counted: a line says so beforehand,
    /// and [`Recorder::sum_up`] records their number.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503, whatever the outcome was.
    pub async fn record<T>(&self, record: &Record, blobs: LargeParts, outcome: T) -> Result<Recorded<T>, JournalError> {
        let line = self.journal.prepare(record)?;
        let bytes = blobs
            .iter()
            .map(|(_, content)| content.len())
            .fold(line.bytes(), usize::saturating_add);
        let recorded = match self.strangers.admit(record, bytes) {
            RecordMode::OneByOne => self.journal.write(line, blobs, outcome).await?,
            RecordMode::Counted { of, announced } => {
                if !announced {
                    let counting = aggregated::begins(of, record.at)?;
                    self.journal.record_event(&counting).await?;
                    self.strangers.announced(of);
                }
                let recorded = self.journal.count(record, outcome).await?;
                self.metrics.decision_counted();
                recorded
            }
        };
        self.metrics.decided(record);
        if record.decision != Decision::Rehearsal {
            for code in WouldRefuse::codes(&record.would_refuse) {
                self.metrics.would_refuse(&record.pool, code);
            }
        }
        Ok(recorded)
    }

    /// Records a pending decision, because its gateway ended, or could not write, before it was recorded. A config whose use was given back
    /// has changed nothing, and needs no line. Returns whether there is a line; `None` if the decision cannot be read, and stays in the
    /// store.
    ///
    /// # Errors
    /// [`JournalError`]: it stays in the store.
    pub async fn record_pending(&self, unrecorded: &Unrecorded) -> Result<Option<bool>, JournalError> {
        let Unrecorded { pending, is_unanswered } = unrecorded;
        let decision = &pending.decided.decision;
        let mut record: Record<Value, Value> = match serde_json::from_str(&pending.decided.record) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, decision, "cannot read a pending decision of the store; not recording it");
                // Nor is its use given back.
                self.stages.begin(decision);
                return Ok(None);
            }
        };
        let needs_line = pending.has_use || record.decision != Decision::Config;
        if needs_line {
            if !pending.has_use {
                (record.use_number, record.again) = (None, false);
            }
            let (late, alert) = match is_unanswered {
                true => (RecordedLate::Unanswered, UNANSWERED),
                false => (RecordedLate::Unknown, UNKNOWN),
            };
            record.recorded_late = Some(late);
            record.alerts.push(alert.to_owned());
            self.journal.record_late(&record).await?;
        }
        self.stages.record(decision);
        Ok(Some(needs_line))
    }

    /// Records how many decisions were counted in the minutes that are over at `now` (seconds since 1970), or in all, at the end.
    ///
    /// # Errors
    /// [`JournalError`]: these counts are lost. The log still says that there was something to count.
    pub async fn sum_up(&self, now: u64, all: bool) -> Result<(), JournalError> {
        for sum in self.strangers.sums(now, all) {
            self.journal.record_event(&aggregated::sum(sum, now)?).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
