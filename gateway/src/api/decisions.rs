//! Recording of decisions, and return of the uses that a failed one has spent.

use std::sync::Arc;

use attest_log::{Decision, JournalError, LargeParts, Record, Recorded, Verdict};
use attest_store::{DecisionRecord, Store};
use axum::response::{IntoResponse, Response};

use super::gateway::Gateway;
use super::problem::Refusal;
use crate::recording::Recorder;

/// Decision with its record, its blobs and its answer.
pub(super) struct Decided<T> {
    /// Record for the attestation log.
    pub record: Record,
    /// Blobs that the record names and that may still have to be stored.
    pub large_parts: LargeParts,
    /// Answer to give once the record is on disk.
    pub outcome: T,
}

/// The one way into the log.
#[derive(Debug)]
pub(super) struct Decisions {
    recorder: Arc<Recorder>,
    store: Arc<dyn Store>,
}

impl Decisions {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            recorder: Arc::clone(&gateway.recorder),
            store: Arc::clone(&gateway.store),
        }
    }

    /// Makes a decision durable. If it cannot be recorded, the client gets nothing, and the use that it has made is given back. The
    /// decision remains, and is recorded later.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503.
    pub(super) async fn record<T>(&self, decided: Decided<T>) -> Result<Recorded<T>, JournalError> {
        let Decided {
            record,
            large_parts: kept,
            outcome,
        } = decided;
        let recorded = self.recorder.record(&record, kept, outcome).await;
        match &recorded {
            _ if !is_pending(&record) => self.recorder.end(&record.id),
            Ok(_) => self.settle(&record.id),
            Err(_) => self.abandon(&record).await,
        }
        recorded
    }

    /// Answers a decision about an attestation: a refusal names its record. The answer is 503 if it could not be recorded.
    pub(super) async fn answer(&self, decided: Decided<Result<Response, Refusal>>) -> Response {
        let is_acceptable = decided.record.acceptable.is_some();
        let recorded = match self.record(decided).await {
            Ok(recorded) => recorded,
            Err(error) => return Refusal::because(&error).into_response(),
        };
        let line = recorded.line().map(str::to_owned);
        match recorded.into_inner() {
            Ok(response) => response,
            Err(refusal) => refusal.recorded_as(line, is_acceptable),
        }
    }

    /// Records a refusal for which nothing was kept, and answers like [`Self::answer`].
    pub(super) async fn refuse(&self, mut record: Record, refusal: Refusal) -> Response {
        refuse(&mut record, &refusal);
        let (kept, outcome) = (LargeParts::new(), Err(refusal));
        self.answer(Decided {
            record,
            large_parts: kept,
            outcome,
        })
        .await
    }

    /// Gives up a decision whose answer cannot be sent: its use is given back, and it is recorded later. A config whose use is free again has changed nothing.
    pub(super) async fn abandon(&self, record: &Record) {
        match self.store.give_back(&record.id).await {
            Ok(true) if record.decision == Decision::Config => return self.settle(&record.id),
            Ok(_) => {}
            Err(error) => {
                // It is given back as soon as the store can be reached, or at the next start.
                tracing::error!(%error, decision = record.id, "cannot give back the use of a ticket or token; retrying when the store answers or at the next start");
            }
        }
        self.recorder.note_unwritten(&record.id);
    }

    /// Begins a decision that the store may keep until it is recorded.
    pub(super) fn begin(&self, decision: &str) {
        self.recorder.begin(decision);
    }

    /// Ends a decision that was not made.
    pub(super) fn end(&self, decision: &str) {
        self.recorder.end(decision);
    }

    fn settle(&self, decision: &str) {
        self.recorder.note_recorded(decision);
        self.store.settle(decision);
    }

    /// Returns 503 while too many decisions wait to be recorded: nothing is decided whose line is not to be expected.
    ///
    /// # Errors
    /// That refusal.
    pub(super) fn can_record(&self) -> Result<(), Refusal> {
        if self.recorder.is_behind() {
            return Err(Refusal::because(&JournalError::Failed));
        }
        Ok(())
    }
}

/// Returns whether the store keeps a decision until it is recorded.
fn is_pending(record: &Record) -> bool {
    match record.verdict {
        Verdict::Trusted => record.decision != Decision::Rehearsal,
        Verdict::Served => record.use_number.is_some(),
        Verdict::Refused => false,
    }
}

/// Returns the part of a decision that the store keeps until it is recorded. Its basis is left out: that is added to the record later, and
/// is not worth a second write at each boot.
///
/// # Errors
/// The record cannot be written as JSON.
pub(super) fn pending(record: &Record) -> Result<DecisionRecord, Refusal> {
    Ok(DecisionRecord {
        decision: record.id.clone(),
        at: record.at,
        record: serde_json::to_string(record).map_err(|error| Refusal::because(&error))?,
    })
}

/// Puts a refusal into a record.
pub(super) fn refuse(record: &mut Record, refusal: &Refusal) {
    record.verdict = Verdict::Refused;
    record.code = Some(refusal.code().to_owned());
    record.decided_by = refusal.decided_by();
    record.reason = refusal.reason();
    record.acceptable = record.acceptable.take().or_else(|| refusal.acceptable().cloned());
    record.grant = None;
    record.grants = None;
    record.would_refuse.clear();
}
