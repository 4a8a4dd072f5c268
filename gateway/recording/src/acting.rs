//! Actors that change the store, and the record of their changes in the outbox.

use std::sync::Arc;

use attest_log::admin::{Act, By, ValueChange, Verb};
use attest_store::{EntryChange, EntryKind, Store, StoreError, Witness};
use attest_system::clock::Clock;

use super::redaction;

/// Key that errors name for the outbox.
const PLACE: &str = "outbox";
/// Kinds that nodes change by what they do. Decisions record these changes, or no decision depends on them.
const OF_ITSELF: [EntryKind; 8] = [
    EntryKind::Challenge,
    EntryKind::Ticket,
    EntryKind::TokenUse,
    EntryKind::Clock,
    EntryKind::Pointer,
    EntryKind::Kubelet,
    EntryKind::Attested,
    EntryKind::Checkpoint,
];

/// An act: who does it, and what it is.
#[derive(Debug, Clone)]
pub struct Acting {
    pub verb: Verb,
    pub by: By,
    pub clock: Clock,
}

impl Acting {
    /// Returns the store for this actor: changes through it are recorded in the outbox.
    #[must_use]
    pub fn on(self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        store.witnessed(Arc::new(self))
    }

    /// Returns the store for this actor, like [`Acting::on`]. The record of a change names these things in place of the entries.
    #[must_use]
    pub fn summarized(self, store: Arc<dyn Store>, things: Vec<ValueChange>) -> Arc<dyn Store> {
        store.witnessed(Arc::new(SummarizedAct { acting: self, things }))
    }

    /// Records an act that was tried, and failed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn refused(self, store: &dyn Store, why: &str) -> Result<(), StoreError> {
        let Self { verb, by, clock } = self;
        store
            .append_to_outbox(text(&Act::refused(verb, clock.now().as_secs(), by, why))?)
            .await
    }
}

impl Witness for Acting {
    fn outbox_entry(&self, changes: &[EntryChange]) -> Result<Option<String>, StoreError> {
        let told = changes.iter().filter(|change| is_recorded(self.verb, change));
        let things: Vec<ValueChange> = told.map(redaction::thing).collect();
        if things.is_empty() {
            return Ok(None);
        }
        let act = Act::done(self.verb, self.clock.now().as_secs(), self.by.clone(), things);
        text(&act).map(Some)
    }
}

/// An act with more changes than its record names.
#[derive(Debug)]
struct SummarizedAct {
    acting: Acting,
    things: Vec<ValueChange>,
}

impl Witness for SummarizedAct {
    fn outbox_entry(&self, _changes: &[EntryChange]) -> Result<Option<String>, StoreError> {
        let Acting { verb, by, clock } = self.acting.clone();
        text(&Act::done(verb, clock.now().as_secs(), by, self.things.clone())).map(Some)
    }
}

fn is_recorded(verb: Verb, change: &EntryChange) -> bool {
    // What a chain had come to is forgotten by nobody else.
    let is_given_up = verb == Verb::LogAbandon && change.kind == EntryKind::Checkpoint.as_str();
    // What a machine's TPM was is forgotten by nobody else, either.
    let is_forgotten = matches!(verb, Verb::NodeForgetHistory | Verb::WaitingAccept) && change.kind == EntryKind::Clock.as_str();
    is_given_up || is_forgotten || OF_ITSELF.iter().all(|kind| kind.as_str() != change.kind)
}

fn text(act: &Act) -> Result<String, StoreError> {
    serde_json::to_string(act).map_err(|source| StoreError::Document {
        key: PLACE.to_owned(),
        source,
    })
}
