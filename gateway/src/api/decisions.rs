//! Decisions on their way into the log, and what was used up for one that comes to nothing.

use std::sync::Arc;

use attest_log::{JournalError, LargeParts, Record, Recorded, Verdict};
use attest_store::Store;
use axum::response::{IntoResponse, Response};

use super::gateway::Gateway;
use super::problem::Refusal;
use crate::recording::Recorder;

/// A decision, whole.
pub(super) struct Decided<T> {
    /// What is recorded of it.
    pub record: Record,
    /// What the record refers to, and nobody has kept yet.
    pub kept: LargeParts,
    /// What is answered when that is on disk.
    pub outcome: T,
}

/// The one way into the log.
#[derive(Debug)]
pub(super) struct Decisions {
    recorder: Arc<Recorder>,
    store: Arc<dyn Store>,
}

impl Decisions {
    pub(super) fn of(gateway: &Gateway) -> Self {
        Self {
            recorder: Arc::clone(&gateway.recorder),
            store: Arc::clone(&gateway.store),
        }
    }

    /// Makes a decision durable. What it used up and has claimed is settled then; if it cannot be recorded, nobody gets anything for it, and it
    /// is given back.
    ///
    /// # Errors
    /// [`JournalError`]: the answer is then 503.
    pub(super) async fn record<T>(&self, decided: Decided<T>) -> Result<Recorded<T>, JournalError> {
        let Decided { record, kept, outcome } = decided;
        let recorded = self.recorder.record(&record, kept, outcome).await;
        if may_have_taken(&record) && record.verdict != Verdict::Refused {
            match &recorded {
                Ok(_) => self.store.settle(&record.id),
                Err(_) => self.take_back(&record).await,
            }
        }
        recorded
    }

    /// The answer to a decision about an attestation, of which a refusal says which record it is; 503 if it could not be recorded.
    pub(super) async fn answer(&self, decided: Decided<Result<Response, Refusal>>) -> Response {
        let recorded = match self.record(decided).await {
            Ok(recorded) => recorded,
            Err(error) => return Refusal::because(&error).into_response(),
        };
        let line = recorded.line().map(str::to_owned);
        match recorded.into_inner() {
            Ok(response) => response,
            Err(refusal) => refusal.recorded_as(line),
        }
    }

    /// The answer to a refusal for which nothing was kept, likewise.
    pub(super) async fn refuse(&self, mut record: Record, refusal: Refusal) -> Response {
        refuse(&mut record, &refusal);
        let (kept, outcome) = (LargeParts::new(), Err(refusal));
        self.answer(Decided { record, kept, outcome }).await
    }

    /// Gives back what a decision used up that has come to a refusal after all, as far as its record says that it may have.
    pub(super) async fn give_back(&self, record: &mut Record) {
        if may_have_taken(record) {
            self.give_all_back(record).await;
        }
    }

    /// Gives back what a decision used up, or has claimed, that has come to a refusal after all.
    pub(super) async fn give_all_back(&self, record: &mut Record) {
        self.take_back(record).await;
        record.use_number = None;
        record.again = false;
        record.late_seconds = None;
    }

    async fn take_back(&self, record: &Record) {
        if let Err(error) = self.store.give_back(&record.id).await {
            // It is done as soon as the store can be reached; after a crash the next start finds it among what is pending, and in the log that it was refused, or
            // is not recorded.
            tracing::error!(%error, decision = record.id, "cannot give back yet what was used up for nothing");
        }
    }
}

/// Whether a decision may have used something up, or have claimed an instance or a name.
fn may_have_taken(record: &Record) -> bool {
    record.use_number.is_some() || record.claims.is_some()
}

/// Puts a refusal into a record.
pub(super) fn refuse(record: &mut Record, refusal: &Refusal) {
    record.verdict = Verdict::Refused;
    record.code = Some(refusal.code().to_owned());
    record.decided_by = refusal.decided_by();
    record.reason = refusal.reason();
    record.grant = None;
    record.grants = None;
    record.would_refuse.clear();
}
