//! Stages of this process's pending decisions, which the store keeps until the log has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use attest_store::Pending;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionStage {
    /// The task that decides it records it, however long that takes.
    UnderWay,
    /// It could not be written.
    Left,
    /// It needs no line, or has one; the store is to be informed.
    Recorded,
}

/// Decisions by their ids. A pending decision that is not among them may have been written without an answer of the store, and has no line.
#[derive(Debug, Default)]
pub(super) struct Stages {
    stages: Mutex<BTreeMap<String, DecisionStage>>,
}

impl Stages {
    /// Begins a decision: the store may have it from now on.
    pub(super) fn begin(&self, decision: &str) {
        self.set(decision, DecisionStage::UnderWay);
    }

    /// Notes that it was not made, as far as is known.
    pub(super) fn end(&self, decision: &str) {
        self.stages().remove(decision);
    }

    /// Notes that it could not be written.
    pub(super) fn leave(&self, decision: &str) {
        self.set(decision, DecisionStage::Left);
    }

    /// Notes that it no longer needs a line.
    pub(super) fn record(&self, decision: &str) {
        self.set(decision, DecisionStage::Recorded);
    }

    /// Returns how many could not be written.
    pub(super) fn left(&self) -> usize {
        self.stages().values().filter(|stage| **stage == DecisionStage::Left).count()
    }

    /// Returns those that no longer need a line.
    pub(super) fn recorded(&self) -> BTreeSet<String> {
        let stages = self.stages();
        let recorded = stages.iter().filter(|(_, stage)| **stage == DecisionStage::Recorded);
        recorded.map(|(decision, _)| decision.clone()).collect()
    }

    /// Returns whether a pending decision is not under way and not recorded.
    pub(super) fn is_left(&self, pending: &Pending) -> bool {
        matches!(self.stages().get(&pending.decided.decision), None | Some(DecisionStage::Left))
    }

    fn set(&self, decision: &str, stage: DecisionStage) {
        self.stages().insert(decision.to_owned(), stage);
    }

    fn stages(&self) -> MutexGuard<'_, BTreeMap<String, DecisionStage>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
