//! From a decision to the attestation log: which decisions get a line each, and which are counted in one.

mod counted;

use std::sync::Arc;

use attest_log::{Decision, Journal, JournalError, LargeParts, Record, Recorded, WouldRefuse, word};
use attest_store::Pending;
use counted::{Recording, Strangers};
pub use counted::{STRANGERS_AT_ONCE_BYTES, STRANGERS_EACH_SECOND_BYTES};
use serde_json::Value;

use crate::metrics::Metrics;

/// The alert of a decision that was recorded after its gateway had ended, or had not been able to write.
const NOT_ANSWERED: &str = "recorded late: the node has not got this answer, and its evidence was not kept";

/// Records decisions, within the budgets of those who prove nothing.
#[derive(Debug)]
pub struct Recorder {
    journal: Arc<Journal>,
    metrics: Arc<Metrics>,
    strangers: Strangers,
}

impl Recorder {
    /// Returns a recorder whose budgets are full.
    #[must_use]
    pub fn new(journal: Arc<Journal>, metrics: Arc<Metrics>) -> Self {
        Self {
            journal,
            metrics,
            strangers: Strangers::default(),
        }
    }

    /// Makes a decision durable, as [`Journal::record`] does. Of decisions beyond the budget for them, a line says beforehand that they are counted,
    /// and [`Recorder::sum_up`] how many there were.
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
            Recording::OneByOne => self.journal.write(line, blobs, outcome).await?,
            Recording::Counted { of, announced } => {
                if !announced {
                    let counting = counted::begins(of, record.at)?;
                    self.journal.tell(&counting).await?;
                    self.strangers.announced(of);
                }
                let recorded = self.journal.count(record, outcome).await?;
                self.metrics.decision_counted();
                recorded
            }
        };
        self.metrics
            .decided(word(&record.decision), word(&record.verdict), record.code.as_deref());
        for code in WouldRefuse::codes(&record.would_refuse) {
            self.metrics.would_refuse(&record.pool, code);
        }
        Ok(recorded)
    }

    /// Records a decision that the store has kept, because its gateway ended, or could not write, before it was recorded. Its node has no answer. A config
    /// whose use was given back has changed nothing, and needs no line. Returns whether there is one.
    ///
    /// # Errors
    /// [`JournalError`]: it stays in the store.
    pub async fn record_pending(&self, pending: &Pending) -> Result<bool, JournalError> {
        let mut record: Record<Value, Value> = serde_json::from_str(&pending.decided.record)?;
        if !pending.has_use {
            if record.decision == Decision::Config {
                return Ok(false);
            }
            (record.use_number, record.again) = (None, false);
        }
        record.unanswered = true;
        record.alerts.push(NOT_ANSWERED.to_owned());
        self.journal.record_late(&record).await?;
        Ok(true)
    }

    /// Records how many decisions were counted in the minutes that are over at `now` (seconds since 1970), or in all, at the end.
    ///
    /// # Errors
    /// [`JournalError`]: what was counted is lost with it; that something was stands in the log.
    pub async fn sum_up(&self, now: u64, all: bool) -> Result<(), JournalError> {
        for sum in self.strangers.sums(now, all) {
            self.journal.tell(&counted::sum(sum, now)?).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
